# SPDX-License-Identifier: Apache-2.0
"""Cases of the sharding contract: a model, a mesh and how it trains; and how far a mesh is from one device.

The error of a gradient is the largest difference in one parameter, divided by the largest gradient in it. The order of
sums is all that may differ: float32 has 24 bits, and a few dozen sums of a few hundred terms cost some of them. How
much a model makes of that is measured: on one device, all parameters are changed by half a unit in the last place, up
or down. A mesh may differ by four times as much as that changes the gradients, since there are a dozen other
operations, each of which rounds, for one that reads a parameter; and in any case by 2e-5. With bfloat16, which has 8
bits, two orders of sums differ as much as each differs from float32: there, a mesh may be as far from the float32
gradients as one device is, and half as much again.
"""

import contextlib
import dataclasses
import functools
import random
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.config import ConfigError, replace_all
from dovetail.module import Remat, abstract, init, specs
from dovetail.nn import Block, Sequence, with_remat
from dovetail.parallel import MESH_AXES, BatchShape, Mesh, check_fit, factorisations, layout_of, on_mesh
from dovetail.train import gradients_of
from dovetail.zoo import RECIPES, recipe

DEVICES = 8
TOLERANCE = 2e-5
_NOTHING = 1e-6  # A gradient that small counts as 0.
_DRAWS, _PER_PARAMETER = 4, 4  # Of rounding; how much all of it is, by that of parameters.
_LAYERS = 8


@dataclasses.dataclass(frozen=True)
class Variant:
    """How a model trains, besides the mesh."""

    parts: int = 1  # Gradient accumulation.
    packed: bool = False
    remat: Literal["", "attended", "save_dots", "save_qkvo", "full"] = ""  # One saves just what attention gives.
    tied: bool = False
    ring: bool = False  # How attention meets other devices; else all keys are gathered.
    pipeline: str = ""  # Of a pipeline: "" for forward first, "circular" with two rounds, or "1F1B".
    dtype: str = "float32"
    rows: int = DEVICES  # Of each part.
    tokens: int = 32
    layers: int = 0  # Of the last loop over layers, or groups of them; 0: as the model has it.

    def __str__(self) -> str:
        named = [name for name in ("packed", "tied", "ring") if getattr(self, name)]
        parts = [f"{self.parts} parts"] if self.parts > 1 else []
        size = [f"{self.rows} x {self.tokens}"] if (self.rows, self.tokens) != (DEVICES, 32) else []
        layers = [f"{self.layers} layers"] if self.layers else []
        return ", ".join([*parts, *named, *filter(None, [self.remat, self.pipeline]), self.dtype, *size, *layers])

    def on(self, mesh: Mesh) -> Mesh:
        """Returns the mesh with the choices of this variant."""
        mesh = mesh.set(attention="ring" if self.ring else "gather")
        if self.pipeline == "1F1B":
            mesh = mesh.set(schedule="one_forward_one_backward")
        return mesh.set(rounds=2) if self.pipeline == "circular" and 1 < mesh.pipeline < _LAYERS else mesh


PLAIN = Variant()
ALL = Variant(parts=2, packed=True, remat="attended", tied=True, ring=True, pipeline="circular")
EARLY = Variant(parts=2, packed=True, pipeline="1F1B")  # Only for meshes with a pipeline.
VARIANTS = (ALL, PLAIN, EARLY)


def _dense() -> Any:
    cfg = recipe("llama3-tiny").model.set_in("stack.num_layers", _LAYERS)
    return cfg.set_in("stack.layer.mixer.num_heads", 8)


def _moe() -> Any:
    cfg = recipe("qwen3-moe-tiny").model.set_in("stack.num_layers", _LAYERS)
    return cfg.set_in("stack.layer.mixer.num_heads", 8)


def _mla() -> Any:
    cfg = recipe("deepseek-v3-tiny").model.set_in("stack.layers[1].num_layers", _LAYERS)
    for stack in (0, 1):
        cfg = cfg.set_in(f"stack.layers[{stack}].layer.mixer.num_heads", 8)
    return cfg


def _hybrid() -> Any:
    cfg = recipe("hybrid-tiny").model
    pattern = tuple(cfg.stack.layer[:2])  # A state-space layer, then attention.
    return (
        cfg.set_in("stack.layer", pattern)
        .set_in("stack.num_layers", 2 * _LAYERS)
        .set_in("stack.layer[1].mixer.num_heads", 8)
    )


_TINY = [name for name in RECIPES if name.endswith("-tiny")]
KINDS = {"dense": _dense, "moe": _moe, "mla": _mla, "hybrid": _hybrid}
_HAS_EXPERTS = ("moe", "mla")


def meshes(kind: str, devices: int = DEVICES) -> Iterator[Mesh]:
    """Yields every mesh of so many devices over the axes that a kind of model can use."""
    for sizes in factorisations(devices, len(MESH_AXES)):
        mesh = Mesh(**dict(zip(MESH_AXES, sizes, strict=True)))
        if mesh.expert == 1 or kind in _HAS_EXPERTS:
            yield mesh


def model_of(kind: str, variant: Variant) -> Any:
    """Returns the config of a model, as one device has it."""
    cfg = KINDS[kind]() if kind in KINDS else recipe(kind).model
    if variant.layers:
        cfg = _with_layers(cfg, variant.layers)
    if variant.tied:
        cfg = cfg.set(head=None)
    if variant.remat == "attended":
        return replace_all(Block.Config, lambda block: block.set(remat=Remat(save=("attended",))), missing="ok")(cfg)
    return with_remat(cfg, variant.remat or None)


def _with_layers(cfg: Any, layers: int) -> Any:
    path = f"stack.layers[{len(cfg.stack.layers) - 1}]" if isinstance(cfg.stack, Sequence.Config) else "stack"
    layer = cfg.get_in(path).layer
    return cfg.set_in(f"{path}.num_layers", layers * (len(layer) if isinstance(layer, tuple) else 1))


def batch_of(vocab: int, variant: Variant) -> dict[str, np.ndarray]:
    """Returns a batch that any mesh divides: some tokens do not count, and packed rows have three documents."""
    rng, shape = np.random.default_rng(0), (variant.rows * variant.parts, variant.tokens)
    ids = rng.integers(0, vocab, (shape[0], shape[1] + 1), np.int32)
    segments, positions = np.ones(shape, np.int32), np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
    if variant.packed:
        for row in range(shape[0]):
            first, second = sorted(rng.choice(np.arange(1, shape[1]), 2, replace=False))
            segments[row, first:] += 1
            segments[row, second:] += 1
            for start in (first, second):
                positions[row, start:] -= positions[row, start]
    weights = (rng.random(shape) < 0.9).astype(np.float32)
    # Weights of all rows are equal in sum, so that a mean over microbatches is the mean over all.
    weights *= 20 / weights.sum(axis=1, keepdims=True)
    return {
        "tokens": ids[:, :-1],
        "targets": ids[:, 1:],
        "weights": weights,
        "segments": segments,
        "positions": positions,
    }


@functools.cache
def _alone(kind: str, variant: Variant, microbatches: int) -> Any:
    """Returns a function of parameters: loss, metrics and gradients of one device."""
    cfg = model_of(kind, variant)
    step = jax.jit(gradients_of(cfg.build(path="model"), num_microbatches=microbatches, dtype=_dtype(variant)))
    return lambda params: jax.device_get(step(params, batch_of(cfg.vocab_size, variant), _key()))


@functools.cache
def _reference(kind: str, variant: Variant, microbatches: int) -> Any:
    """Returns the loss, metrics and gradients of one device, with as many microbatches as the mesh has in all."""
    return _alone(kind, variant, microbatches)(_params(kind, variant))


def allowed_error(kind: str, mesh: Mesh, variant: Variant = PLAIN) -> float:
    """Returns how far a mesh may be from one device: see above."""
    microbatches, rng = variant.parts * mesh.num_microbatches, np.random.default_rng(0)
    run, wanted = _alone(kind, variant, microbatches), _reference(kind, variant, microbatches)

    def rounded(x: Any) -> Any:
        return (x * (1 + rng.choice([-1.0, 1.0], x.shape) * 2.0**-24)).astype(x.dtype)

    params = jax.device_get(_params(kind, variant))
    noise = [_errors(run(jax.tree.map(rounded, params))[1], wanted[1]) for _ in range(_DRAWS)]
    return max(TOLERANCE, _PER_PARAMETER * max(error for errors in noise for error, _ in errors))


@functools.cache
def _params(kind: str, variant: Variant) -> Any:
    return jax.jit(functools.partial(init, model_of(kind, variant).build(path="model")))(_key())


def _key() -> Any:
    return jax.random.key(1)


def _dtype(variant: Variant) -> Any:
    return None if variant.dtype == "float32" else jnp.dtype(variant.dtype)


def compiled(kind: str, mesh: Mesh, variant: Variant = PLAIN) -> tuple[Any, Any, Any]:
    """Returns the compiled program of loss and gradients on a mesh, with its inputs: parameters and batch."""
    step, stored, rows, devices = _on_mesh(kind, variant.on(mesh), variant)
    params = jax.device_put(_params(kind, variant), stored)
    batch = jax.device_put(batch_of(model_of(kind, variant).vocab_size, variant), rows)
    with jax.set_mesh(devices):
        return step.lower(params, batch, _key()).compile(), params, batch


def traced(kind: str, mesh: Mesh, variant: Variant = PLAIN) -> Any:
    """Returns the program of loss and gradients on a mesh, not compiled (`jax.stages.Traced`)."""
    step, stored, rows, devices = _on_mesh(kind, variant.on(mesh), variant)
    cfg = model_of(kind, variant)

    def placed(x: Any, place: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)

    params = jax.tree.map(placed, abstract(cfg.build(path="model")), stored)
    batch = {name: placed(x, rows) for name, x in batch_of(cfg.vocab_size, variant).items()}
    with jax.set_mesh(devices):
        return step.trace(params, batch, _key())


def _on_mesh(kind: str, mesh: Mesh, variant: Variant) -> tuple[Any, Any, NamedSharding, jax.sharding.Mesh]:
    """Returns the jitted function, how parameters and rows lie, and on what."""
    model, layout, devices = on_mesh(model_of(kind, variant), mesh).build(path="model"), layout_of(mesh), mesh.on()
    assert layout is not None
    stored = jax.tree.map(lambda spec: NamedSharding(devices, layout.partition(spec)), specs(model))
    rows = NamedSharding(devices, PartitionSpec(*(layout.activation_axes(name) or None for name in ("batch", "seq"))))
    step = gradients_of(model, num_microbatches=variant.parts, dtype=_dtype(variant), layout=layout)
    return jax.jit(step, out_shardings=(None, stored)), stored, rows, devices


def worst_error(kind: str, mesh: Mesh, variant: Variant = PLAIN) -> tuple[float, str]:
    """Returns the largest error of loss, metrics and gradients on a mesh, and where it is."""
    program, params, batch = compiled(kind, mesh, variant)
    (loss, weight, metrics), gradients = jax.device_get(program(params, batch, _key()))
    wanted = _reference(kind, variant, variant.parts * mesh.num_microbatches)
    known = {name: metrics[name] for name in wanted[0][2]}  # A mesh may have more to report.
    return max(
        _errors(((loss, weight, known), gradients), wanted), key=lambda item: (not np.isfinite(item[0]), item[0])
    )


def rounding_errors(kind: str, mesh: Mesh, variant: Variant) -> tuple[float, float]:
    """Returns the mean error of the gradients, against those in float32: on a mesh, and on one device."""
    program, params, batch = compiled(kind, mesh, variant)
    here = jax.device_get(program(params, batch, _key()))[1]
    microbatches = variant.parts * mesh.num_microbatches
    alone = _reference(kind, variant, microbatches)[1]
    exact = _reference(kind, dataclasses.replace(variant, dtype="float32"), microbatches)[1]
    # The gradient of some parameters is 0, as that of the bias of keys: there, an error is rounding by rounding.
    counts = [np.max(np.abs(leaf)) > _NOTHING for leaf in jax.tree.leaves(exact)]

    def mean(found: Any) -> float:
        return float(
            np.mean([error for (error, _), counted in zip(_errors(found, exact), counts, strict=True) if counted])
        )

    return mean(here), mean(alone)


def _errors(found: Any, wanted: Any) -> list[tuple[float, str]]:
    leaves = zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(wanted), strict=True)
    return [(_error(got, want), jax.tree_util.keystr(keys)) for (keys, got), want in leaves]


def _error(got: Any, want: Any) -> float:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.max(np.abs(got - want)) / max(np.max(np.abs(want)), _NOTHING)) if got.size else 0.0


class Case(NamedTuple):
    """One of the random cases."""

    recipe: str
    mesh: Mesh
    variant: Variant

    def __str__(self) -> str:
        return f"{self.recipe} | {self.mesh.text()} | {self.variant}"

    def check(self) -> None:
        """Raises if it does not fit."""
        mesh, variant = self.variant.on(self.mesh), self.variant
        model = model_of(self.recipe, variant).build(path="model")
        check_fit(mesh, specs(model), BatchShape(variant.rows * variant.parts, {"seq": variant.tokens}, variant.parts))

    def error(self) -> tuple[float, float, str]:
        """Returns its error, how large it may be, and where it is. In bfloat16, errors are means."""
        if self.variant.dtype != "float32":
            here, alone = rounding_errors(*self)
            return here, 1.5 * alone, "mean"
        error, where = worst_error(*self)
        return error, TOLERANCE if error <= TOLERANCE else allowed_error(*self), where


def draw(seed: int, number: int) -> Case:
    """Returns one of the random cases that a seed stands for: one that fits, by the check that a run makes."""
    rng = random.Random(f"{seed}/{number}")
    while True:
        case = any_case(rng)
        with contextlib.suppress(ConfigError):
            case.check()
            return case


def any_case(rng: random.Random) -> Case:
    """Returns a random case, which need not fit."""
    mesh = rng.choice(list(meshes("moe")))
    variant = Variant(
        parts=rng.choice([1, 1, 2]),
        packed=rng.random() < 0.5,
        remat=rng.choice(["", "save_dots", "save_qkvo", "full"]),
        ring=rng.random() < 0.5,
        pipeline=rng.choice(["", "circular", "1F1B"]) if mesh.pipeline > 1 else "",
        dtype=rng.choice(["float32", "float32", "bfloat16"]),
        rows=rng.choice([4, 6, 8, 16]),
        tokens=rng.choice([8, 12, 16, 20, 24, 40]),
        layers=rng.choice([1, 2, 4]),
    )
    return Case(rng.choice(_TINY), mesh, variant)
