# SPDX-License-Identifier: Apache-2.0
"""The program that renders a chat template, in a process of its own: `python -I _chat_program.py`.

A template comes from elsewhere and is a program: it may loop, or ask for all memory. Jinja's sandbox keeps it from what
it should not reach, and the limits of this process end it. The program reads JSON from its input and writes JSON to its
output: `{"text": ...}`, or `{"error": why, "line": where or null, "refused": whether the template itself said so}`.
Nothing else of dovetail is imported here, and nothing of dovetail imports this: Jinja is in no other process.
"""

import contextlib
import datetime
import json
import sys
from collections.abc import Mapping
from typing import Any, Never

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.utils

try:
    import resource
except ImportError:  # Windows. The one who started this process ends it in time.
    resource = None


class _Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}`: marks what a model wrote. It changes nothing."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller: Any) -> str:
        return caller()


class _NoLoader(jinja2.BaseLoader):
    def get_source(self, environment: Any, template: str) -> Never:
        raise jinja2.TemplateError(f"it asks for another template, {template!r}: a chat template has none")


class _Dict:
    """`dict` in a template."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """`namespace` in a template, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # So that `self` may be a name.
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name!r}")


class _RefusedError(Exception):
    """The template does not take these messages."""


def _raise_exception(message: Any) -> Never:
    raise _RefusedError(f"it does not take these messages: {message}")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def render(template: str, values: Mapping[str, Any], now: datetime.datetime) -> str:
    """Returns a template with its values, as transformers renders it."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols], loader=_NoLoader()
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "dict": _Dict(),
        "namespace": _Namespace,
        "raise_exception": _raise_exception,
        "strftime_now": lambda format: now.strftime(format),
    }
    return environment.from_string(template).render(**values)


def _limit(seconds: int, memory: int) -> None:
    """Limits this process, where the system can. What is limited already stays so."""
    if resource is None:
        return
    limits = {"RLIMIT_CPU": seconds, "RLIMIT_AS": memory, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0}
    for name, value in limits.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):
            kind = getattr(resource, name)
            _, hard = resource.getrlimit(kind)
            soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (soft, hard))


def _why(error: BaseException) -> str:
    """Returns what went wrong, for the user."""
    if isinstance(error, MemoryError):
        return "it needs too much memory"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error) if isinstance(error, _RefusedError) else f"{type(error).__name__}: {error}"


def _line(error: BaseException) -> int | None:
    """Returns the line of the template that an error is about."""
    line, trace = getattr(error, "lineno", None), error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    most = request["characters"]
    try:
        text = render(request["template"], request["values"], datetime.datetime.fromisoformat(request["now"]))
        if len(text) > most:
            raise ValueError(f"it makes {len(text):,} characters, expected at most {most:,}")
        text.encode()  # Half a pair of surrogates is no text.
        return {"text": text}
    except BaseException as e:
        return {"error": _why(e)[:500], "line": _line(e), "refused": isinstance(e, _RefusedError)}


if __name__ == "__main__":
    asked = json.load(sys.stdin.buffer)
    _limit(asked["seconds"], asked["memory"])
    sys.stdout.buffer.write(json.dumps(_answer(asked)).encode())
