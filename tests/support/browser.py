# SPDX-License-Identifier: Apache-2.0
"""A Chromium without a window, driven through its debugging pipe: nothing has to be installed besides."""

import base64
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # Tests may run as root. The page is ours.
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-pipe",
    "--window-size=1000,800",
)
_KEYS = {
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    " ": (32, " "),
    "End": (35, ""),
    "Home": (36, ""),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
}


class Browser:
    """One page of a browser."""

    def __init__(self, program: str, directory: Path) -> None:
        self._program, self._directory = program, directory
        self._count, self._rest, self._session = 0, b"", None
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> "Browser":
        (reads, self._to), (self._from, writes) = os.pipe(), os.pipe()
        command = f'exec "$0" "$@" 3<&{reads} 4>&{writes}'
        arguments = ["bash", "-c", command, self._program, *_FLAGS, f"--user-data-dir={self._directory}", "about:blank"]
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(arguments, pass_fds=(reads, writes), stdout=null, stderr=null)
        os.close(reads)
        os.close(writes)
        (page,) = (each for each in self._call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._to)
        os.close(self._from)

    def open(self, url: str) -> None:
        self._events.clear()
        self._call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, code: str) -> Any:
        """Returns the value of an expression in the page."""
        found = self._call("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, code: str, seconds: float = 10.0) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({code})"):
            assert time.monotonic() < end, f"{code}\n{self.run('document.body.innerText')}"
            time.sleep(0.02)

    def type(self, text: str) -> None:
        """Types into what has the focus."""
        self._call("Input.insertText", text=text)

    def key(self, name: str) -> None:
        """Presses a key: one of those above, or a letter, a digit, a sign."""
        number, text = _KEYS.get(name) or (ord(name.upper()), name)
        options = {"key": name, "code": name, "windowsVirtualKeyCode": number}
        self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **options)
        self._call("Input.dispatchKeyEvent", type="keyUp", **options)

    def click(self, selector: str, *, count: int = 1) -> None:
        """Clicks with the mouse in the middle of the first element that there is."""
        x, y = self._middle(selector)
        for number in range(1, count + 1):
            self._mouse("mousePressed", x, y, clickCount=number)
            self._mouse("mouseReleased", x, y, clickCount=number)

    def hover(self, selector: str, share: float = 0.5) -> None:
        """Moves the mouse to a share of the width of an element."""
        x, y = self._middle(selector, share)
        self._mouse("mouseMoved", x, y, buttons=0, button="none")

    def drag(self, selector: str, begin: float, end: float) -> None:
        """Draws with the mouse from a share of the width of an element to another one."""
        (x, y), (to, _) = self._middle(selector, begin), self._middle(selector, end)
        self._mouse("mouseMoved", x, y, buttons=0, button="none")
        self._mouse("mousePressed", x, y, clickCount=1)
        for part in (0.3, 0.6, 1.0):
            self._mouse("mouseMoved", x + part * (to - x), y + 3)
        self._mouse("mouseReleased", to, y + 3, clickCount=1)

    def _middle(self, selector: str, share: float = 0.5) -> tuple[float, float]:
        element = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{element}.scrollIntoView({{block: 'nearest'}})")
        box = self.run(
            f"(({{left, top, width, height}}) => [left, top, width, height])({element}.getBoundingClientRect())"
        )
        assert box[2] > 0, f"{selector} is not in sight"
        return box[0] + share * box[2], box[1] + box[3] / 2

    def _mouse(self, kind: str, x: float, y: float, **options: Any) -> None:
        settings = {"button": "left", "buttons": 1, **options}
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **settings)

    def media(self, **features: str) -> None:
        """Sets what the page can ask of the system: prefers_color_scheme="dark"."""
        found = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self._call("Emulation.setEmulatedMedia", features=found)

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        options = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self._call("Emulation.setDeviceMetricsOverride", **options)

    def shot(self, file: Path) -> None:
        """Writes a picture of the page."""
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def errors(self) -> list[str]:
        """What the page has complained about since it was opened: exceptions, and what its policy forbids."""
        found = [event["params"] for event in self._events]
        is_error = [
            each.get("entry", {}).get("level") == "error" or each.get("type") == "error" or "exceptionDetails" in each
            for each in found
        ]
        return [json.dumps(each) for each, is_one in zip(found, is_error, strict=True) if is_one]

    def requests(self) -> list[str]:
        """The addresses that the page has asked for since it was opened."""
        self.run("0")  # What came meanwhile is read.
        sent = [event["params"] for event in self._events if event.get("method") == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent]

    def nameless(self) -> list[str]:
        """What one can use on the page, and has no name for who does not see it."""
        self._call("Accessibility.enable")
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        used = (
            "button",
            "link",
            "textbox",
            "searchbox",
            "checkbox",
            "slider",
            "combobox",
            "tab",
            "grid",
            "dialog",
            "separator",
        )
        roles = [
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]
        ]
        return [role for role, name in roles if role in used and not name.strip()]

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        message |= {} if self._session is None else {"sessionId": self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], 60)
            assert ready, "the browser does not answer"
            read = os.read(self._from, 1 << 16)
            assert read, "the browser has ended"
            self._rest += read
        first, _, self._rest = self._rest.partition(b"\0")
        return json.loads(first)
