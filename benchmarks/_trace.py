# SPDX-License-Identifier: Apache-2.0
"""Requests for a benchmark of servers: drawn from a seed, or read from a file.

Mean lengths are those of ShareGPT as the paper of vLLM gives them (Kwon et al., 2023, arXiv:2309.06180), scaled and
capped to what a small machine can serve. That they are log-normal, and how wide, is our choice.
"""

import dataclasses
import json
import math
import random
from collections.abc import Iterable
from pathlib import Path

from dovetail.config import ConfigError

_PROMPT, _OUTPUT = 161.31, 337.99  # Mean tokens.
_PROMPT_WIDTH, _OUTPUT_WIDTH = 1.2, 0.9  # Standard deviations of the logarithm.
_LEAST = 4  # Tokens.


@dataclasses.dataclass(frozen=True)
class Asked:
    """A prompt, how many tokens are to follow it, and when it is sent."""

    prompt: tuple[int, ...]
    max_tokens: int
    arrival: float = 0.0  # In seconds, at one request a second on average.


@dataclasses.dataclass(frozen=True)
class Lengths:
    """How long the requests of a trace are."""

    scale: float = 0.4  # Of the mean lengths.
    max_prompt: int = 512
    max_output: int = 160


def draw_trace(count: int, vocab: range, lengths: Lengths, seed: int = 0) -> list[Asked]:
    """Returns requests that arrive at random, one a second on average; the same for the same arguments."""
    rng, arrival, made = random.Random(seed), 0.0, list[Asked]()
    for _ in range(count):
        prompt = _length(rng, _PROMPT * lengths.scale, _PROMPT_WIDTH, lengths.max_prompt)
        output = _length(rng, _OUTPUT * lengths.scale, _OUTPUT_WIDTH, lengths.max_output)
        made.append(Asked(random_prompt(rng, prompt, vocab), output, arrival))
        arrival += rng.expovariate(1.0)
    return made


def random_prompt(rng: random.Random, length: int, vocab: range) -> tuple[int, ...]:
    """Returns a prompt of tokens that mean nothing."""
    return tuple(rng.choice(vocab) for _ in range(length))


def read_trace(file: Path) -> list[Asked]:
    """Returns the requests of a file: in each line an object with prompt_tokens, max_tokens and, if any, arrival."""
    made = list[Asked]()
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as e:
        raise ConfigError(f"--trace: {str(file)!r} cannot be read: {e.strerror}.") from e
    for number, line in enumerate(lines, 1):
        try:
            read = json.loads(line)
            made.append(Asked(tuple(read["prompt_tokens"]), int(read["max_tokens"]), float(read.get("arrival", 0.0))))
        except (ValueError, TypeError, KeyError) as e:
            expected = 'expected {"prompt_tokens": [ids], "max_tokens": number, "arrival": seconds}.'
            raise ConfigError(f"{file}:{number}: {e!r}; {expected}") from e
    return made


def anew(trace: Iterable[Asked], token: int) -> list[Asked]:
    """Returns requests that begin with another token, so that no server knows their prompts from a round before.

    What prompts have in common, they still have.
    """
    return [dataclasses.replace(each, prompt=(token, *each.prompt[1:])) for each in trace]


def _length(rng: random.Random, mean: float, width: float, most: int) -> int:
    return int(min(most, max(_LEAST, rng.lognormvariate(math.log(mean) - width**2 / 2, width))))
