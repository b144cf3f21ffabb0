# SPDX-License-Identifier: Apache-2.0
"""The time of a training step against peers: the same model, weights, data and optimizer, one program for each.

Contenders are programs that stay and make one step when told to. Each peer is timed in turn with ours, step by step, so
that whatever else the machine does hits both alike. What counts is the ratio.
"""

import argparse
import math
import os
import statistics
import sys
from typing import Any, NamedTuple

from _contender import Contender, contender, environment, has_package, options, run
from _report import counted, program
from contenders._problem import Problem

from dovetail.config import ConfigError
from dovetail.hardware import host_settings
from dovetail.progress import note

# Peer: program and further arguments. All but ours share nothing with Dovetail but the problem.
PEERS = {
    "hand-written-jax": ("hand_written.py",),
    "torch-eager": ("pytorch.py", "eager"),
    "torch-compile": ("pytorch.py", "compile"),
    "ours-scanned": ("ours.py", "scan"),
}
_CLOSE = 1e-4  # First losses of the same weights and data may differ by this much.


class Row(NamedTuple):
    """One peer, and ours in the same rounds. Times are medians; ratios are ours / peer, the median over rounds."""

    peer: str
    ours_seconds: float
    peer_seconds: float
    ratio: float
    ours_cpu_seconds: float
    peer_cpu_seconds: float
    ours_memory_gib: float  # The largest resident set.
    peer_memory_gib: float
    temporary_ratio: float | None  # Of the compiler's temporary memory, where both are JAX.
    loss_difference: float  # Of the first step.


class TrainReport(NamedTuple):
    """All rows, what was asked for but could not be run, and the figures that concern ours alone."""

    problem: Problem
    rounds: int
    rows: list[Row]
    missing: dict[str, str]
    flops: int
    peak_flops: float  # Of matrix products on this machine, operations per second.
    settings: dict[str, bool]
    mfu: float  # The share of that peak that our step reaches.


def bench_train(args: argparse.Namespace, problem: Problem) -> TrainReport:
    """Runs ours against each peer; a peer that cannot run is left out, with the reason."""
    peers = args.peers.split(",")
    unknown = [peer for peer in peers if peer not in PEERS]
    if unknown:
        raise ConfigError(f"no peer is called {unknown[0]!r}. There are: {', '.join(PEERS)}.")
    settings, environ = host_settings(os.environ), environment()
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for peer in counted("measuring", peers, "peers"):
        python = sys.executable
        if PEERS[peer][0] == "pytorch.py":
            python = args.torch_python or python
            if not has_package(python, "torch"):
                missing[peer] = f"{python} has no PyTorch. Name one that has: --torch-python PATH."
                continue
        ours = contender(sys.executable, ("ours.py",), problem, environ)
        with ours as a, contender(python, PEERS[peer], problem, environ) as b:
            rows.append(_row(peer, a, b, args.rounds))
    on = {setting.name: setting.active or bool(setting.variables) for setting in settings}
    from dovetail.train import measured_peak  # JAX is imported when nothing is left to refuse.

    fastest, peak = min((row.ours_seconds for row in rows), default=math.inf), measured_peak()
    return TrainReport(problem, args.rounds, rows, missing, problem.flops, peak, on, problem.flops / fastest / peak)


def _row(peer: str, ours: Contender, other: Contender, rounds: int) -> Row:
    first = ours.step(), other.step()  # The first step is not timed: it may compile, and touches memory.
    difference = abs(first[0]["loss"] - first[1]["loss"])
    if not difference <= _CLOSE:
        raise RuntimeError(
            f"{peer}: the first loss is {first[1]['loss']}, ours {first[0]['loss']}: not the same maths."
        )
    taken: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for number in counted(f"ours and {peer}", range(rounds)):
        taken.append((ours.step(), other.step()))
        a, b = (answer["seconds"] for answer in taken[-1])
        note(f"{peer}: round {number + 1}/{rounds}, ours {a:.2f} s, peer {b:.2f} s")
    memory: Any = [each.about.get("temporary_bytes") for each in (ours, other)]

    def median(who: int, key: str) -> float:
        return statistics.median(pair[who][key] for pair in taken)

    def gib(who: int) -> float:
        return max(pair[who]["peak_rss_bytes"] for pair in taken) / 2**30

    return Row(
        peer=peer,
        ours_seconds=median(0, "seconds"),
        peer_seconds=median(1, "seconds"),
        ratio=statistics.median(a["seconds"] / b["seconds"] for a, b in taken),
        ours_cpu_seconds=median(0, "cpu_seconds"),
        peer_cpu_seconds=median(1, "cpu_seconds"),
        ours_memory_gib=gib(0),
        peer_memory_gib=gib(1),
        temporary_ratio=None if None in memory else memory[0] / memory[1],
        loss_difference=difference,
    )


def _text(report: Any, about: dict[str, Any]) -> str:
    p = report.problem
    columns = ("peer", "ours s", "peer s", "ours / peer", "ours CPU-s", "peer CPU-s", "ours GiB", "peer GiB", "memory")
    rows = [
        (
            row.peer,
            f"{row.ours_seconds:.3f}",
            f"{row.peer_seconds:.3f}",
            f"{row.ratio:.3f}",
            f"{row.ours_cpu_seconds:.2f}",
            f"{row.peer_cpu_seconds:.2f}",
            f"{row.ours_memory_gib:.2f}",
            f"{row.peer_memory_gib:.2f}",
            "-" if row.temporary_ratio is None else f"{row.temporary_ratio:.3f}",
        )
        for row in report.rows
    ]
    lines = [
        "A training step: forward, backward, clipping, AdamW; float32. Same weights, data and maths.",
        f"{p.num_layers} layers, dim {p.dim}, hidden {p.hidden_dim}, {p.num_heads} heads, vocabulary {p.vocab_size:,}, "
        f"batch {p.batch_size} x {p.seq_len}. Medians of {report.rounds} rounds, ours and the peer in turn.",
        ", ".join(f"{name} {value}" for name, value in about.items()),
        "host: " + (", ".join(f"{name} {'on' if on else 'off'}" for name, on in report.settings.items()) or "as it is"),
        "",
        f"| {' | '.join(columns)} |",
        f"|{' --- |' * len(columns)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        "memory: temporary memory of the compiled program, ours / peer. GiB: the largest resident set.",
        f"ours: {report.mfu:.1%} of the {report.peak_flops / 1e9:,.0f} GFLOP/s that matrix products reach here.",
        *(f"left out: {peer}: {why}" for peer, why in report.missing.items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = options("train", "The time of a training step of a 110M model against hand-written JAX and PyTorch.")
    parser.add_argument("--peers", default=",".join(PEERS), help="names, separated by commas; all by default")
    parser.add_argument("--rounds", type=int, default=7, help="timed steps of each contender")
    sys.exit(program(lambda: run(parser, bench_train, _text)))
