# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of greedy generation against Hugging Face transformers, with the same weights and prompts."""

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from ._contender import contender, environment, has_package
from .contenders._problem import Problem


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


def bench_decode(
    batches: list[int],
    *,
    rounds: int,
    new_tokens: int,
    torch_python: str | None,
    problem: Problem,
    log: Callable[[str], None],
) -> DecodeReport:
    """Runs ours and transformers in turn, for each batch size."""
    python, missing = torch_python or sys.executable, ""
    if not has_package(python, "transformers, torch"):
        missing = f"{python} has no transformers with PyTorch. Name one that has: --torch-python PATH."
    speed, weights = _bytes_per_second(), sum(value.nbytes for value in problem.weights().values())
    rows: list[DecodeRow] = []
    for batch in batches:
        sizes = (str(batch), str(new_tokens))
        programs = [(sys.executable, ("decode_ours.py", *sizes))]
        programs += [] if missing else [(python, ("decode_transformers.py", *sizes))]
        taken = _in_turn(programs, problem, rounds, lambda line, batch=batch: log(f"batch {batch}: {line}"))
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
        for number in range(rounds):
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
