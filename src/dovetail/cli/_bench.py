# SPDX-License-Identifier: Apache-2.0
"""`dovetail bench`: parse, run, print."""

import argparse
import dataclasses
import json
import sys
from typing import Any

_DECODE = "Tokens per second of a 110M model against Hugging Face transformers."
_TRAIN = "The time of a training step of a 110M model against hand-written JAX and PyTorch."


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Adds the benchmarks to the parser of `dovetail bench`."""
    names = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    train = names.add_parser("train", help=_TRAIN, description=_TRAIN)
    train.set_defaults(run=_train)
    train.add_argument("--peers", help="names, separated by commas; all by default")
    train.add_argument("--rounds", type=int, default=7, help="timed steps of each contender")
    decode = names.add_parser("decode", help=_DECODE, description=_DECODE)
    decode.set_defaults(run=_decode)
    decode.add_argument("--batches", default="1,8", help="batch sizes, separated by commas")
    decode.add_argument("--rounds", type=int, default=5, help="timed generations of each contender")
    decode.add_argument("--new-tokens", type=int, default=64)
    for added in (train, decode):
        added.add_argument("--torch-python", metavar="PATH", help="an interpreter with PyTorch, if this one has none")
        added.add_argument("--small", action="store_true", help="a model of 2 layers, to see that it runs")
        added.add_argument("--json", action="store_true", help="print JSON")


def _train(args: argparse.Namespace) -> int:
    from dovetail.bench import PEERS, bench_train, machine

    report = bench_train(
        args.peers.split(",") if args.peers else list(PEERS),
        rounds=args.rounds,
        torch_python=args.torch_python,
        problem=_problem(args),
        log=_log,
    )
    if args.json:
        found: dict[str, Any] = {"machine": machine(), **report._asdict(), "mfu": report.mfu}
        found["problem"] = dataclasses.asdict(report.problem)
        found["rows"] = [row._asdict() for row in report.rows]
        print(json.dumps(found, indent=2))
    else:
        print(_text(report, machine()))
    return 0


def _decode(args: argparse.Namespace) -> int:
    from dovetail.bench import bench_decode, machine

    report = bench_decode(
        [int(size) for size in args.batches.split(",")],
        rounds=args.rounds,
        new_tokens=args.new_tokens,
        torch_python=args.torch_python,
        problem=_problem(args),
        log=_log,
    )
    if args.json:
        found: dict[str, Any] = {"machine": machine(), **report._asdict()}
        found["problem"] = dataclasses.asdict(report.problem)
        found["rows"] = [row._asdict() for row in report.rows]
        print(json.dumps(found, indent=2))
    else:
        print(_decode_text(report, machine()))
    return 0


def _problem(args: argparse.Namespace) -> Any:
    from dovetail.bench import Problem

    small = Problem(vocab_size=512, dim=64, hidden_dim=128, num_layers=2, num_heads=2, seq_len=64, batch_size=2)
    return small if args.small else Problem()


def _log(line: str) -> None:
    print(line, file=sys.stderr)


def _decode_text(report: Any, about: dict[str, Any]) -> str:
    p = report.problem
    lines = [
        f"Greedy generation of {report.new_tokens} tokens after 32; float32, same weights.",
        f"{p.num_layers} layers, dim {p.dim}, {p.num_heads} heads, vocabulary {p.vocab_size:,}. Medians of "
        f"{report.rounds} rounds, ours and transformers in turn.",
        ", ".join(f"{name} {value}" for name, value in about.items()),
        "",
        "| batch | ours tokens/s | transformers tokens/s | ours / theirs | share of bandwidth | same tokens |",
        f"|{' --- |' * 6}",
    ]
    for row in report.rows:
        theirs = (
            ("-", "-") if row.peer_rate is None else (f"{row.peer_rate:.1f}", f"{row.ours_rate / row.peer_rate:.2f}")
        )
        same = "-" if row.agreement is None else f"{row.agreement:.0%}"
        cells = (str(row.batch), f"{row.ours_rate:.1f}", *theirs, f"{row.bandwidth_share:.0%}", same)
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"bandwidth: all weights once per step, of {report.bytes_per_second / 1e9:.1f} GB/s that reading reaches.",
    ]
    return "\n".join([*lines, *([f"left out: {report.missing}"] if report.missing else [])])


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
