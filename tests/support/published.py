# SPDX-License-Identifier: Apache-2.0
"""Small published models for tests: directories in the format of Hugging Face, and configs of all families."""

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy knows bfloat16 by it.)
import numpy as np

from dovetail.checkpoint.hf import OutTensor, weight_map, write_tensors
from dovetail.models import CausalLM
from dovetail.zoo.hf import published_as
from parity import ours

from .stacks import ROWS, shapes_of

_GOLDEN = Path(__file__).parents[1] / "zoo" / "parity"


@functools.cache
def golden_configs() -> dict[str, dict[str, Any]]:
    """Returns the config.json of each model whose results golden files have, by family and number: `llama/0`."""
    found = {}
    for file in sorted(_GOLDEN.glob("*.npz")):
        for number, case in ours.cases(file).items():
            found[f"{file.stem}/{number}"] = json.loads(str(case["config"]))
    return found


def random_weights(model: CausalLM.Config, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns parameters of a model by path, as float32; all are exact in float16 and bfloat16."""
    rng = np.random.default_rng(seed)
    return {path: rng.integers(-64, 64, shape).astype(np.float32) / 64 for path, shape in shapes_of(model).items()}


def write_weights(
    directory: Path,
    model: CausalLM.Config,
    params: Mapping[str, np.ndarray],
    rows: Iterable[str] = ROWS,
    dtype: str = "float32",
) -> None:
    """Writes the tensors of a model."""
    found = weight_map(rows, model.stack, {path: value.shape for path, value in params.items()})
    directory.mkdir(parents=True, exist_ok=True)
    tensors = [
        OutTensor(
            name,
            tensor.shape,
            np.dtype(dtype),
            lambda name=name: found.write(name, np.dtype(dtype), lambda path, at: params[path][at]),
        )
        for name, tensor in found.tensors.items()
    ]
    write_tensors(directory, tensors)


def write_published(
    directory: Path, model: CausalLM.Config, params: Mapping[str, np.ndarray], dtype: str = "float32"
) -> str:
    """Writes a published model, as others would; returns its name as a recipe."""
    family, fields = published_as(model)
    write_weights(directory, model, params, family.weights, dtype)
    (directory / "config.json").write_text(json.dumps({**fields, "dtype": dtype}), encoding="utf-8")
    return f"hf:{directory}"
