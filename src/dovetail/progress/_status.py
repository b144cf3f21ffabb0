# SPDX-License-Identifier: Apache-2.0
"""What is told of a run over HTTP, and in which words: JSON, the text format of Prometheus, and healthy or not."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dovetail.config import ConfigBase, ConfigError

_LEAST = 16  # Characters of a token.


class Status(ConfigBase):
    """Where a run says how it is. What changes something needs a token, and is not there without one."""

    on: bool = True
    host: str = "127.0.0.1"
    port: int = 0  # 0: one that is free; status.json in the directory of the run says which.
    token_file: str | None = None  # Its first line is the token, for POST /stop and POST /profile.

    def token(self) -> str | None:
        """Returns the token; raises if the file has none."""
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"status.port is {self.port}, expected 0 (any that is free) to 65535.")
        if self.token_file is None:
            return None
        try:
            found = Path(self.token_file).read_text("utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as e:
            why = e.strerror if isinstance(e, OSError) else "it is not text"
            raise ConfigError(f"status.token_file: {self.token_file!r} cannot be read: {why}.") from e
        if len(found) < _LEAST:
            raise ConfigError(
                f"status.token_file: the first line of {self.token_file!r} has {len(found)} characters, expected at "
                f"least {_LEAST}.\n  Make one by `openssl rand -hex 16`."
            )
        return found


def prometheus(found: Mapping[str, Any]) -> str:
    """Returns a status in the text format of Prometheus."""
    about = {"run": found["run"], "recipe": found["recipe"]}
    families: list[tuple[str, str, str, Iterable[tuple[Mapping[str, Any], Any]]]] = [
        ("dovetail_run_info", "gauge", "Which run this is.", [(about, 1)]),
        ("dovetail_healthy", "gauge", "Whether the run goes on.", [({}, int(not found["problem"]))]),
        ("dovetail_step", "gauge", "Steps made.", [({}, found["step"])]),
        ("dovetail_steps", "gauge", "Steps to make.", [({}, found["steps"])]),
        ("dovetail_loss", "gauge", "Of the step logged last.", [({}, found["loss"])]),
        (
            "dovetail_units_per_second",
            "gauge",
            "Throughput, as logged last.",
            [({"unit": unit}, rate) for unit, rate in found["rate"].items()],
        ),
        ("dovetail_left_seconds", "gauge", "Until the last step, at the pace of late.", [({}, found["seconds_left"])]),
        ("dovetail_goodput_ratio", "gauge", "Share of time that went to steps that count.", _of(found, "goodput")),
        (
            "dovetail_time_seconds",
            "gauge",  # No counter: steps that are lost are no steps any more.
            "What the time of the run went to, over all its starts.",
            [({"kind": kind}, s) for kind, s in found["goodput"].get("seconds", {}).items()],
        ),
        ("dovetail_starts", "gauge", "How often the run was started.", _of(found, "starts")),
        ("dovetail_lost_steps", "gauge", "Steps that had to be made again.", _of(found, "lost_steps")),
        ("dovetail_restarts", "gauge", "Starts by this supervisor after the first.", [({}, found["restarts"])]),
        ("dovetail_failures", "gauge", "Failures that this supervisor has seen.", [({}, len(found["failures"]))]),
        (
            "dovetail_heartbeat_age_seconds",
            "gauge",
            "Since a process was last heard.",
            [({"process": each["process"]}, each["heartbeat_seconds"]) for each in found["processes"]],
        ),
        (
            "dovetail_process_step",
            "gauge",
            "Steps made, by process.",
            [({"process": each["process"]}, each["step"]) for each in found["processes"]],
        ),
    ]
    lines: list[str] = []
    for name, kind, text, samples in families:
        shown = [f"{name}{_labels(labels)} {float(value)!r}" for labels, value in samples if value is not None]
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *shown] if shown else []
    return "\n".join(lines).replace(" nan", " NaN").replace(" inf", " +Inf").replace(" -inf", " -Inf") + "\n"


def _of(found: Mapping[str, Any], name: str) -> list[tuple[Mapping[str, Any], Any]]:
    return [({}, found["goodput"].get(name))]


def _labels(labels: Mapping[str, Any]) -> str:
    pairs = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    """Returns a label's value as the format has it.

    >>> print(_escaped('a "b"'))
    a \\"b\\"
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
