# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of greedy generation against Hugging Face transformers, with the same weights and prompts."""

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from _contender import contender, environment, has_package, options, run
from _report import counted, program
from contenders._problem import Problem

from dovetail.progress import note


class DecodeRow(NamedTuple):
    """One batch size. Rates are tokens per second of all rows together, medians over rounds."""

    batch: int
    ours_rate: float
    peer_rate: float | None  # None: the peer could not run.
    bandwidth_share: float  # Of reading all weights once a step, against the rate at which memory is read.
    agreement: float | None  # Share of tokens that are the same; random weights make near ties.


class DecodeReport(NamedTuple):
    """All batch sizes, and what was left out."""

    problem: Problem
    rounds: int
    new_tokens: int
    rows: list[DecodeRow]
    missing: str
    bytes_per_second: float


def bench_decode(args: argparse.Namespace, problem: Problem) -> DecodeReport:
    """Runs ours and transformers in turn, for each batch size."""
    python, missing, rounds, new_tokens = args.torch_python or sys.executable, "", args.rounds, args.new_tokens
    if not has_package(python, "transformers, torch"):
        missing = f"{python} has no transformers with PyTorch. Name one that has: --torch-python PATH."
    speed, weights = _bytes_per_second(), sum(value.nbytes for value in problem.weights().values())
    rows: list[DecodeRow] = []
    for batch in map(int, args.batches.split(",")):
        sizes = (str(batch), str(new_tokens))
        programs = [(sys.executable, ("decode_ours.py", *sizes))]
        programs += [] if missing else [(python, ("decode_transformers.py", *sizes))]
        taken = _in_turn(programs, problem, rounds, lambda line, batch=batch: note(f"batch {batch}: {line}"))
        rates = [batch * new_tokens / statistics.median(one["seconds"] for one in each) for each in taken]
        tokens = [np.asarray(each[0]["tokens"]) for each in taken]
        rows.append(
            DecodeRow(
                batch=batch,
                ours_rate=rates[0],
                peer_rate=None if missing else rates[1],
                bandwidth_share=rates[0] / batch * weights / speed,
                agreement=None if missing else float(np.mean(tokens[0] == tokens[1])),
            )
        )
    return DecodeReport(problem, rounds, new_tokens, rows, missing, speed)


def _in_turn(
    programs: list[tuple[str, tuple[str, ...]]], problem: Problem, rounds: int, log: Callable[[str], None]
) -> list[list[dict[str, Any]]]:
    """Returns the answers of each program; they run in turn, one after the other in each round."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(contender(*program, problem, environment())) for program in programs]
        for one in running:
            one.step()  # Not timed: it may compile.
        taken: list[list[dict[str, Any]]] = [[] for _ in running]
        for number in counted("ours and transformers", range(rounds)):
            for answers, one in zip(taken, running, strict=True):
                answers.append(one.step())
            log(f"round {number + 1}/{rounds}: " + ", ".join(f"{answers[-1]['seconds']:.2f} s" for answers in taken))
    return taken


def _bytes_per_second(size: int = 2**27) -> float:
    """Returns the rate at which this machine reads memory, with a thread on each core."""
    cores = os.cpu_count() or 1
    parts = [np.ones(size // 8) for _ in range(cores)]
    best = 0.0
    with ThreadPoolExecutor(cores) as threads:
        for _ in range(5):
            start = time.perf_counter()
            list(threads.map(np.max, parts))
            best = max(best, cores * size / (time.perf_counter() - start))
    return best


def _text(report: Any, about: dict[str, Any]) -> str:
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


if __name__ == "__main__":
    parser = options("decode", "Tokens per second of a 110M model against Hugging Face transformers.")
    parser.add_argument("--batches", default="1,8", help="batch sizes, separated by commas")
    parser.add_argument("--rounds", type=int, default=5, help="timed generations of each contender")
    parser.add_argument("--new-tokens", type=int, default=64)
    sys.exit(program(lambda: run(parser, bench_decode, _text)))
