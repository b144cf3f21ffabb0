# SPDX-License-Identifier: Apache-2.0
"""One HTML file with the page and all data of some runs in it: it opens without a server, and loads nothing."""

import base64
import contextlib
import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dovetail import __version__

from ._api import Refused, json_bytes, static_file
from ._child import Unavailable
from ._runs import Answer, NotFound, Runs, View
from ._series import AXES

_POINTS, _LINES, _TEXTS, _TABLES = 800, 500, 500, 50
_LONGEST = 256 << 20  # Bytes.
_PATIENCE = 60.0  # Seconds in which memory is computed, which takes some for each run.
_LATE = "It was not computed for this export, which has many runs."
_STYLE = re.compile(r'^<link rel="stylesheet" href="static/([\w.-]+)">$', re.M)
_SCRIPT = re.compile(r'^<script src="static/([\w.-]+)"></script>$', re.M)
_MODULE = re.compile(r'^<script type="module" src="static/([\w.-]+)"></script>$', re.M)
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.-]+)";\n', re.M)


def export(runs: Runs, chosen: Sequence[str]) -> bytes:
    """Returns the page with what it would ask for of some runs. Runs that are gone are left out; one must be there."""
    pieces, size = list[bytes](), 0
    for address, answer in answers(runs, chosen):
        pieces.append(json_bytes(address) + b":" + json_bytes(answer))
        size += len(pieces[-1])
        if size > _LONGEST:
            raise Refused(413, f"The export has more than {_LONGEST >> 20} MiB. Choose fewer runs.")
    return page(b"{" + b",".join(pieces) + b"}")


def answers(runs: Runs, chosen: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yields all that the page asks for, by address."""
    listed = {each["id"]: each for each in runs.listed()["runs"]}
    there = [run for run in dict.fromkeys(chosen) if run in listed]
    if not there:
        raise Refused(404, f"There is no run {', '.join(chosen)!r:.200} here.")
    about = {"directory": runs.where, "now": time.time(), "version": __version__, "problems": []}
    yield "/api/runs", {**about, "runs": [listed[run] for run in there]}
    end = time.monotonic() + _PATIENCE
    for run in there:
        with contextlib.suppress(NotFound):  # It went away meanwhile.
            yield from _run(runs, run)
            yield _address("memory", run=run), _memory(runs, run) if time.monotonic() < end else _not_computed(_LATE)


def _run(runs: Runs, run: str) -> Iterator[tuple[str, Any]]:
    about = runs.about(run)
    yield _address("run", run=run), about
    for axis in AXES:
        for name in about["metrics"]:
            with contextlib.suppress(NotFound):  # It has no units.
                curve = runs.curve(run, View(name, axis, None, None, _POINTS))
                yield _address("curves", run=run, name=name, x=axis), {"curves": [curve]}
    for kind, most in (("texts", _TEXTS), ("tables", _TABLES), ("pictures", None), ("histograms", None)):
        for name in about[kind]:
            answer = runs.samples(run, kind, name, None, most)
            yield _address(kind, run=run, name=name), answer | ({"more": False} if "more" in answer else {})
            if kind == "pictures":
                yield from _pictures(runs, run, answer)
    yield _address("goodput", run=run), runs.goodput(run)
    yield _address("log", run=run), runs.log(run, _LINES, None)


def _memory(runs: Runs, run: str) -> Answer:
    try:
        return runs.memory(run, None)
    except Unavailable as e:
        return _not_computed(str(e))


def _not_computed(why: str) -> Answer:
    return {"parts": [], "predicted": None, "measured": None, "note": why}


def _pictures(runs: Runs, run: str, answer: Answer) -> Iterator[tuple[str, str]]:
    for each in answer["pictures"]:
        try:
            kind, data = runs.picture(run, each["file"])
        except (NotFound, ValueError):
            continue
        yield _address("picture", run=run, file=each["file"]), f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _address(what: str, **parameters: str) -> str:
    pairs = "&".join(f"{name}={quote(value, safe='', errors='replace')}" for name, value in parameters.items())
    return f"/api/{what}?{pairs}"


def page(data: bytes) -> bytes:
    """Returns the page with JSON in it. Nothing in the JSON is ever read as HTML, and only these scripts run."""
    html = static_file("index.html").decode()
    styles, scripts = list[str](), list[str]()

    def style(match: re.Match[str]) -> str:
        styles.append(static_file(match[1]).decode())
        return f"<style>{styles[-1]}</style>"

    def script(match: re.Match[str], kind: str = "") -> str:
        scripts.append(bundled(match[1]) if kind else static_file(match[1]).decode())
        return f"<script{kind}>{scripts[-1]}</script>"

    html = _STYLE.sub(style, html)
    html = _SCRIPT.sub(script, html)
    html = _MODULE.sub(lambda match: script(match, ' type="module"'), html)
    for tag, parts in (("style", styles), ("script", scripts)):
        assert not any(f"</{tag}" in part.lower() for part in parts), f"a {tag} of the page ends itself"
    rules = f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; img-src data:"
    policy = f"<meta http-equiv=\"Content-Security-Policy\" content=\"{rules}; base-uri 'none'; form-action 'none'\">"
    held = b'<script type="application/json" id="data">' + harmless(data) + b"</script>"
    head, body, rest = html.partition("<body>")
    begin, tag, more = head.partition("<head>")
    assert tag, "the page has no head"
    assert body, "the page has no body"
    return (begin + tag + "\n" + policy + more + body + "\n").encode() + held + rest.encode()


def harmless(data: bytes) -> bytes:
    """Returns JSON without any character that HTML gives a meaning to; it says the same.

    >>> harmless(b'{"name": "</script><!--"}').decode()
    '{"name": "\\\\u003c/script\\\\u003e\\\\u003c!--"}'
    """
    for byte in (b"<", b">", b"&"):
        data = data.replace(byte, b"\\u%04x" % ord(byte))
    for separator in ("\u2028", "\u2029"):
        data = data.replace(separator.encode(), f"\\u{ord(separator):04x}".encode())
    return data


def bundled(name: str) -> str:
    """Returns a module of the page and all that it imports as one: each once, after those that it imports itself."""
    order: list[str] = []
    texts: dict[str, str] = {}

    def visit(each: str) -> None:
        if each not in texts:
            texts[each] = static_file(each).decode()
            for below in _IMPORT.findall(texts[each]):
                visit(below)
            order.append(each)

    visit(name)
    return "\n".join(re.sub(r"^export ", "", _IMPORT.sub("", texts[each]), flags=re.M) for each in order)


def _hashes(parts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"


def named(runs: Mapping[str, Any], wanted: Sequence[str]) -> list[str]:
    """Returns the ids that a user has named: as the list has them, or by the end of their path if that is enough."""
    found: list[str] = []
    for each in wanted:
        text = each.rstrip("/")
        matching = [text] if text in runs else [run for run in runs if run.endswith(f"/{text}")]
        if len(matching) != 1:
            known = ", ".join(list(runs)[:10]) + (", ..." if len(runs) > 10 else "")
            why = f"may be {', '.join(matching[:10])}" if matching else f"is none of the runs here: {known or 'none'}"
            raise Refused(404, f"{each!r:.200} {why}.")
        found += matching
    return list(dict.fromkeys(found))
