# SPDX-License-Identifier: Apache-2.0
"""Chats as the text a model was trained on: the template that comes with its tokenizer."""

import collections
import contextlib
import datetime
import json
import math
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError

_FILE = "chat_template.jinja"
_CONFIG = "tokenizer_config.json"
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_REASONING = ("reasoning_content", "thinking", "reasoning")  # What a model thought: names for it, the usual one first.
_PROGRAM = Path(__file__).with_name("_chat_program.py")
_MEMORY = 1 << 29  # Bytes, of the process that renders.
_CHARACTERS = 1 << 24  # Of a chat.


class ChatTemplate:
    """The chat template of a tokenizer, from its `files()`.

    It is in `chat_template.jinja`, or `chat_template` of `tokenizer_config.json`, which also names the special tokens.
    A template comes from elsewhere, and is a program. It is run by Jinja's sandbox, in a process of its own, without an
    environment, with limited time and memory.

    Args:
        seconds: of processor time for a chat; on a busy machine it may take a few times as long.
        ahead: processes that are started before they are needed, as this takes much longer than a chat; see `close`.
    """

    def __init__(self, files: Mapping[str, bytes], *, seconds: float = 5.0, ahead: int = 0) -> None:
        config = _config(files)
        self._place, self._template = _template(files, config)
        self._tokens = {name: _token(name, config[name]) for name in _TOKENS if config.get(name) is not None}
        self._seconds = seconds
        self._ahead, self._waiting = ahead, collections.deque[subprocess.Popen[bytes]]()
        weakref.finalize(self, _end_all, self._waiting)
        self._fill()

    def close(self) -> None:
        """Ends the processes that were started ahead."""
        self._ahead = 0
        _end_all(self._waiting)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Returns messages (`{"role": ..., "content": ...}`) as text, as `apply_chat_template` of transformers does.

        Args:
            tools: that the model may call, as JSON schemas of functions.
            options: more values that the template knows by name.
            add_generation_prompt: the text ends where the answer of the model begins.
        """
        values = {
            **(options or {}),
            **self._tokens,
            "messages": _messages(messages),
            "tools": None if tools is None else list(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        answer = self._run(values)
        if "text" in answer:
            return answer["text"]
        line = "" if answer.get("line") is None else f", line {answer['line']}"
        why = "".join(c if c.isprintable() else " " for c in answer["error"]).strip().removesuffix(".")
        advice = "Change them." if answer.get("refused") else "Use a prompt instead of a chat, or another template."
        raise ConfigError(f"{self._place}{line}: the chat template cannot be rendered: {why}.\n  {advice}")

    def _run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the program says of the template with these values."""
        request = {
            "template": self._template,
            "values": values,
            "now": datetime.datetime.now().isoformat(),
            "seconds": math.ceil(self._seconds),
            "memory": _MEMORY,
            "characters": _CHARACTERS,
        }
        try:
            data = json.dumps(request).encode()
        except (TypeError, ValueError, RecursionError) as e:
            raise ConfigError(f"a message of a chat has something else than texts in it: {e}.") from e
        process = self._started()
        try:
            out, errors = process.communicate(data, timeout=4 * self._seconds + 5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return {"error": self._slow()}
        finally:
            self._fill()
        if process.returncode == 0:
            return json.loads(out)
        if process.returncode == -getattr(signal, "SIGXCPU", 0):
            return {"error": self._slow()}
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        return {"error": f"its process ended with {process.returncode}, {last[:300] or 'without a word'}"}

    def _started(self) -> subprocess.Popen[bytes]:
        """Returns a process that waits for a chat: one of those started ahead, if any is left."""
        with contextlib.suppress(IndexError):
            process = self._waiting.popleft()
            if process.poll() is None:
                return process
            process.communicate()
        return self._started_anew()

    def _started_anew(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-B", str(_PROGRAM)]
        pipe = subprocess.PIPE
        try:
            return subprocess.Popen(command, env={}, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as e:
            raise ConfigError(
                f"a chat template is rendered by {sys.executable!r}, which cannot be started: {e}."
            ) from e

    def _fill(self) -> None:
        while len(self._waiting) < self._ahead:
            self._waiting.append(self._started_anew())

    def _slow(self) -> str:
        return f"it takes more than {self._seconds:g} seconds"


def _end_all(processes: collections.deque[subprocess.Popen[bytes]]) -> None:
    while processes:
        process = processes.pop()
        process.kill()
        process.communicate()


def _config(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Returns what is in `tokenizer_config.json`, if it is there."""
    try:
        config = json.loads(files.get(_CONFIG, b"{}").decode())
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{_CONFIG}: is not JSON: {e}.") from e
    if not isinstance(config, dict):
        raise ConfigError(f"{_CONFIG}: is a {type(config).__name__}, expected a JSON object.")
    return config


def _template(files: Mapping[str, bytes], config: Mapping[str, Any]) -> tuple[str, str]:
    """Returns where the template is, and the template."""
    if _FILE in files:
        try:
            return _FILE, files[_FILE].decode()
        except UnicodeDecodeError as e:
            raise ConfigError(f"{_FILE}: is not text in UTF-8 (byte {e.start}).") from e
    place, found = f"{_CONFIG}: chat_template", config.get("chat_template")
    if found is None:
        raise ConfigError(
            f"the tokenizer has no chat template: neither {_FILE} nor a chat_template in {_CONFIG}.\n"
            "  If the model has one, name its files in `beside` of the tokenizer. If it has none, use a prompt."
        )
    if isinstance(found, list) and all(isinstance(item, dict) for item in found):
        named = {item.get("name"): item.get("template") for item in found if isinstance(item.get("name"), str)}
        if "default" not in named:
            raise ConfigError(f"{place}: has no template 'default'. It has: {', '.join(map(repr, named)) or 'none'}.")
        place, found = f"{place} 'default'", named["default"]
    if not isinstance(found, str):
        raise ConfigError(f"{place}: is {found!r:.60}, expected text, or a list of templates with name and template.")
    return place, found


def _token(name: str, found: Any) -> str:
    content = found.get("content") if isinstance(found, dict) else found
    if not isinstance(content, str):
        raise ConfigError(f"{_CONFIG}: {name}: is {found!r:.60}, expected text, or an object with its content.")
    return content


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages as templates expect them: without what is None, and what was thought under each name for it."""
    if not messages:
        raise ConfigError("a chat has no messages. Give it at least one.")
    ready: list[dict[str, Any]] = []
    for message in messages:
        if not isinstance(message, Mapping):
            raise ConfigError(f"a message of a chat is {message!r:.60}, expected a role and a content by name.")
        found = {key: value for key, value in message.items() if value is not None}
        if (thought := next((found[key] for key in _REASONING if key in found), None)) is not None:
            found = {"thinking": thought, **found, "reasoning_content": thought}
        ready.append(found)
    return ready
