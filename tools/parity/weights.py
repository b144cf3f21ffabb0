# SPDX-License-Identifier: Apache-2.0
"""Weights that anyone can make again: values that follow from a tensor's name, its shape and a seed, with NumPy alone.

`tools/parity/peer.py` fills Hugging Face models with them, and our tests make the same ones without transformers. The
values have the sizes of a trained model's rather than of a fresh one's: attention is not uniform, biases and scales
of norms are seen in the output, routers choose. `name` is the name in the safetensors file.
"""

import hashlib
import re
from collections.abc import Callable, Sequence

import numpy as np

_Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def make(name: str, shape: Sequence[int], seed: int) -> np.ndarray:
    """Returns the float32 values of the tensor `name`, the same on every machine and in every process."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    for pattern, draw in _RULES:
        if re.search(pattern, name):
            return draw(rng, tuple(shape)).astype(np.float32)
    return _matrix(rng, tuple(shape), fan_in=_fan_in(name, shape)).astype(np.float32)


def _fan_in(name: str, shape: Sequence[int]) -> int:
    """Returns how many inputs an output of this matrix sums over; the layout depends on the family."""
    if re.search(r"(^|\.)h\.\d+\.", name):  # gpt2 keeps matrices as [in, out].
        return shape[0]
    if re.search(r"experts\.(gate_up|down)_proj$", name):  # gpt_oss keeps experts as [expert, in, out].
        return shape[1]
    return shape[-1]


def _matrix(rng: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    return rng.standard_normal(shape) * 1.5 * fan_in**-0.5


def _decay(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.log(rng.uniform(1.0, 8.0, shape))


def _time_step(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Returns biases whose softplus is 0.01 to 0.5, evenly in the logarithm."""
    return np.log(np.expm1(np.exp(rng.uniform(np.log(0.01), np.log(0.5), shape))))


_RULES: tuple[tuple[str, _Draw], ...] = (  # The first pattern that is found in the name decides.
    (r"A_log$", _decay),
    (r"dt_bias$", _time_step),
    (r"\.D$", lambda rng, shape: rng.uniform(0.5, 1.5, shape)),
    (r"e_score_correction_bias$", lambda rng, shape: rng.uniform(-0.4, 0.4, shape)),
    (r"sinks$", lambda rng, shape: rng.standard_normal(shape)),
    (r"bias$", lambda rng, shape: rng.standard_normal(shape) * 0.2),
    # Norms: these values are fine where the scale is the weight, and where it is one more than the weight.
    (r"norm|(^|\.)ln_", lambda rng, shape: rng.uniform(0.5, 1.5, shape)),
    # Embeddings: small beside what layers add, also where a family multiplies them, or a tied model says it all again.
    (r"embed_tokens|embed_in\b|embeddings|(^|\.)w[tp]e\.", lambda rng, shape: rng.standard_normal(shape) * 0.25),
    (r"conv1d\.weight$", lambda rng, shape: _matrix(rng, shape, fan_in=shape[-1])),
)
