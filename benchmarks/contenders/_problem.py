# SPDX-License-Identifier: Apache-2.0
"""What all contenders of `dovetail bench` share: sizes, weights and data. Needs NumPy alone."""

import dataclasses
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np


@dataclasses.dataclass(frozen=True)
class Problem:
    """A Llama-shaped decoder with tied embeddings, and how it is trained."""

    vocab_size: int = 32_000
    dim: int = 768
    hidden_dim: int = 2048
    num_layers: int = 12
    num_heads: int = 12
    seq_len: int = 512
    batch_size: int = 4
    rms_eps: float = 1e-5
    theta: float = 10_000.0
    learning_rate: float = 3e-4
    b1: float = 0.9
    b2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.1  # Of matrices, the embedding included; not of norms.
    clip_norm: float = 1.0

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.num_heads

    @property
    def flops(self) -> int:
        """Matrix-product operations of one training step: three times the forward pass, attention to what is before."""
        per_layer = 2 * (4 * self.dim**2 + 3 * self.dim * self.hidden_dim) + 2 * (self.seq_len + 1) * self.dim
        return 3 * self.batch_size * self.seq_len * (self.num_layers * per_layer + 2 * self.vocab_size * self.dim)

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the initial weights, matrices as [in, out], those of all layers stacked."""
        rng = np.random.default_rng(0)
        layers, dim, hidden = self.num_layers, self.dim, self.hidden_dim
        shapes = {
            "embedding": (self.vocab_size, dim),
            **dict.fromkeys(("query", "key", "value", "out"), (layers, dim, dim)),
            **dict.fromkeys(("gate", "up"), (layers, dim, hidden)),
            "down": (layers, hidden, dim),
        }
        drawn = {name: rng.normal(0.0, 0.02, shape).astype(np.float32) for name, shape in shapes.items()}
        norms = {name: np.ones((layers, dim), np.float32) for name in ("attention_norm", "ffn_norm")}
        return {**drawn, **norms, "norm": np.ones(dim, np.float32)}

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields tokens and targets, both [batch, seq]."""
        rng = np.random.default_rng(1)
        while True:
            row = rng.integers(0, self.vocab_size, (self.batch_size, self.seq_len + 1), dtype=np.int32)
            yield row[:, :-1], row[:, 1:]


def prompts(data: Problem, batch: int, length: int = 32) -> np.ndarray:
    """Returns prompts to continue, [batch, length]."""
    return np.random.default_rng(2).integers(0, data.vocab_size, (batch, length), dtype=np.int32)


def problem() -> Problem:
    """Returns the problem that the first argument of the program describes, as JSON."""
    return Problem(**json.loads(sys.argv[1]))


def serve(step: Callable[[np.ndarray, np.ndarray], float], data: Problem, **about: object) -> None:
    """Makes one training step for each line that comes in, and answers with what it took.

    `step` takes tokens and targets, and returns the loss when the whole step is done.
    """
    batches = data.batches()
    answer_each(lambda: {"loss": step(*next(batches))}, **about)


def answer_each(run: Callable[[], dict[str, object]], **about: object) -> None:
    """Says what it is, then runs once for each line that comes in, and answers with the result and what it took."""
    _say(about)
    for _ in sys.stdin:
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        result = run()
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        _say({"seconds": seconds, "cpu_seconds": cpu, "peak_rss_bytes": after.ru_maxrss * 1024, **result})


def _say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)
