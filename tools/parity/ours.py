# SPDX-License-Identifier: Apache-2.0
"""Our side of parity: what dovetail makes of a published model, beside what transformers makes of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.checkpoint.hf import OutTensor, WeightMap, weight_map, write_tensors
from dovetail.module import call
from dovetail.optim import by_path
from dovetail.serve import Sampling, generate
from dovetail.train import Trained, load_initial
from dovetail.zoo.hf import open_directory
from dovetail.zoo.recipes import finetune
from parity.weights import make

GRADIENT = "grad/"


class Found(NamedTuple):
    """How far we are from what is expected: the largest difference, as a share of the largest value there."""

    logits: float
    loss: float
    gradients: Mapping[str, float]
    greedy: bool | None  # Whether the tokens are the same; None: nothing to compare with.


def write_directory(directory: Path, config: str, shapes: Mapping[str, Any], seed: int) -> None:
    """Writes a published model with the weights that `parity.weights` makes."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(config, encoding="utf-8")
    tensors = [
        OutTensor(name, tuple(shape), np.dtype(np.float32), lambda name=name, shape=shape: make(name, shape, seed))
        for name, shape in shapes.items()
    ]
    write_tensors(directory, tensors)


def cases(file: Path) -> dict[str, dict[str, np.ndarray]]:
    """Returns the cases of a golden file, each by its number."""
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(file, allow_pickle=False) as values:
        for key in values.files:
            number, _, name = key.partition("/")
            found.setdefault(number, {})[name] = values[key]
    return found


def write_case(directory: Path, case: Mapping[str, np.ndarray]) -> None:
    """Writes the published model of a case of a golden file."""
    write_directory(directory, str(case["config"]), json.loads(str(case["tensors"])), int(case["seed"]))


def tensors_of(trained: Trained, directory: Path) -> WeightMap:
    """Returns which parameters of a model are in which tensor of its directory."""
    shapes = {path: tuple(leaf.shape) for path, leaf in by_path(trained.params).items()}
    return weight_map(
        open_directory(f"hf:{directory}").family.weights, trained.program.cfg.get_in("model.stack"), shapes
    )


def load(directory: Path) -> Trained:
    """Returns a published model, as commands use it."""
    return load_initial(finetune(f"hf:{directory}"))


def compare(trained: Trained, directory: Path, expected: Mapping[str, np.ndarray]) -> Found:
    """Returns how far our logits, loss, gradients and tokens are from those expected of a published model."""
    ids = jnp.asarray(expected["tokens"], jnp.int32)

    def loss(params: Any) -> tuple[Any, Any]:
        logits, _ = call(trained.model, params, ids)
        scores = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
        return -jnp.mean(jnp.take_along_axis(scores, ids[:, 1:, None], axis=-1)), logits

    (value, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(trained.params)
    leaves, tensors = by_path(gradients), tensors_of(trained, directory)
    errors: dict[str, float] = {}
    given = {key.removeprefix(GRADIENT): value for key, value in expected.items() if key.startswith(GRADIENT)}
    least = 1e-5 * max(float(np.max(np.abs(value))) for value in given.values())  # Some are 0, but for rounding.
    for name, slope in given.items():
        whole = tensors.write(name, np.float32, lambda path, index: np.asarray(leaves[path])[index])
        errors[name] = error(whole[: len(slope)], slope, least)
    return Found(
        error(np.asarray(logits), expected["logits"]),
        abs(float(value) - float(expected["loss"])),
        errors,
        _greedy(trained, expected) if "greedy" in expected else None,
    )


def _greedy(trained: Trained, expected: Mapping[str, np.ndarray]) -> bool:
    prompt = jnp.asarray(expected["prompt"], jnp.int32)
    count = expected["greedy"].shape[1]

    def run(params: Any) -> Any:
        options = {"key": jax.random.key(0), "max_new": count, "sampling": Sampling(temperature=0.0)}
        return generate(trained.model, params, prompt, jnp.asarray([prompt.shape[1]]), **options)

    return bool(np.array_equal(jax.jit(run)(trained.params), expected["greedy"]))


def error(found: np.ndarray, expected: np.ndarray, least: float = 1e-12) -> float:
    """Returns the largest difference, as a share of the largest value, or of `least` if that is larger."""
    largest = max(float(np.max(np.abs(expected))), least)
    return float(np.max(np.abs(found - expected))) / largest
