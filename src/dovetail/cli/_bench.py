# SPDX-License-Identifier: Apache-2.0
"""`dovetail bench`: parse, run, print."""

import argparse
import dataclasses
import json
import sys
from typing import Any

_TRAIN = "The time of a training step of a 110M model against hand-written JAX and PyTorch."


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Adds the benchmarks to the parser of `dovetail bench`."""
    names = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    train = names.add_parser("train", help=_TRAIN, description=_TRAIN)
    train.set_defaults(run=_train)
    train.add_argument("--peers", help="names, separated by commas; all by default")
    train.add_argument("--rounds", type=int, default=7, help="timed steps of each contender")
    train.add_argument("--torch-python", metavar="PATH", help="an interpreter that has PyTorch, if this one has not")
    train.add_argument("--small", action="store_true", help="a model of 2 layers, to see that it runs")
    train.add_argument("--json", action="store_true", help="print JSON")


def _train(args: argparse.Namespace) -> int:
    from dovetail.bench import PEERS, Problem, bench_train, machine

    small = Problem(vocab_size=512, dim=64, hidden_dim=128, num_layers=2, num_heads=2, seq_len=64, batch_size=2)
    report = bench_train(
        args.peers.split(",") if args.peers else list(PEERS),
        rounds=args.rounds,
        torch_python=args.torch_python,
        problem=small if args.small else Problem(),
        log=lambda line: print(line, file=sys.stderr),
    )
    if args.json:
        found: dict[str, Any] = {"machine": machine(), **report._asdict(), "mfu": report.mfu}
        found["problem"] = dataclasses.asdict(report.problem)
        found["rows"] = [row._asdict() for row in report.rows]
        print(json.dumps(found, indent=2))
    else:
        print(_text(report, machine()))
    return 0


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
