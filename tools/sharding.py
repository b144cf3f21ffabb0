# SPDX-License-Identifier: Apache-2.0
"""The contract of sharding: on every mesh of eight devices, the loss and the gradients are those of one device.

`python tools/sharding.py` tries every way to spread eight devices over the axes that apply, for each kind of model, and
writes each mesh with its worst error to benchmarks/results/sharding_<kind>.md, as it goes: it takes an hour or two.
`--kinds moe --meshes data=2,expert=4` tries some of them, and writes nothing. Tests try a few.

The error of a gradient is the largest difference in one parameter, divided by the largest gradient in it. The order of
sums is all that may differ: float32 has 24 bits, and a few dozen sums of a few hundred terms cost some of them. How
much a model makes of that is measured: on one device, all parameters are changed by half a unit in the last place, up
or down. A mesh may differ by four times as much as that changes the gradients, since there are a dozen other
operations, each of which rounds, for one that reads a parameter; and in any case by 2e-5. With bfloat16, which has 8
bits, two orders of sums differ as much as each differs from float32: there, a mesh may be as far from the float32
gradients as one device is, and half as much again.
"""

import argparse
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # Before JAX starts. Tests have settings of their own.
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
    os.environ.setdefault("PJRT_NPROC", "32")  # As launch/_devices.py says.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.config import replace_all
from dovetail.module import Remat, init, specs
from dovetail.nn import Block
from dovetail.parallel import MESH_AXES, Mesh, factorisations, layout_of, on_mesh, parse_mesh
from dovetail.train import gradients_of
from dovetail.zoo import recipe

RECORDS = Path(__file__).parents[1] / "benchmarks" / "results"
DEVICES = 8
TOLERANCE = 2e-5
_DRAWS, _PER_PARAMETER = 4, 4  # Of rounding; how much all of it is, by that of parameters.
_TIME, _LAYERS = 32, 8


@dataclasses.dataclass(frozen=True)
class Variant:
    """How a model trains, besides the mesh."""

    parts: int = 1  # Gradient accumulation.
    packed: bool = False
    remat: bool = False
    tied: bool = False
    ring: bool = False  # How attention meets other devices; else all keys are gathered.
    pipeline: str = ""  # Of a pipeline: "" for forward first, "circular" with two rounds, or "1F1B".
    dtype: str = "float32"

    def __str__(self) -> str:
        named = [name for name in ("packed", "remat", "tied", "ring") if getattr(self, name)]
        parts = [f"{self.parts} parts"] if self.parts > 1 else []
        return ", ".join([*parts, *named, *filter(None, [self.pipeline]), self.dtype])

    def on(self, mesh: Mesh) -> Mesh:
        """Returns the mesh with the choices of this variant."""
        mesh = mesh.set(attention="ring" if self.ring else "gather")
        if self.pipeline == "1F1B":
            mesh = mesh.set(schedule="one_forward_one_backward")
        return mesh.set(rounds=2) if self.pipeline == "circular" and 1 < mesh.pipeline < _LAYERS else mesh


PLAIN = Variant()
ALL = Variant(parts=2, packed=True, remat=True, tied=True, ring=True, pipeline="circular")
EARLY = Variant(parts=2, packed=True, pipeline="1F1B")  # Only for meshes with a pipeline.
VARIANTS = (ALL, PLAIN, EARLY)


def _dense() -> Any:
    cfg = recipe("llama3-tiny").model.set_in("stack.num_layers", _LAYERS)
    return cfg.set_in("stack.layer.mixer.num_heads", 8)


def _moe() -> Any:
    cfg = recipe("qwen3-moe-tiny").model.set_in("stack.num_layers", _LAYERS)
    return cfg.set_in("stack.layer.mixer.num_heads", 8)


def _mla() -> Any:
    cfg = recipe("deepseek-v3-tiny").model.set_in("stack.stacks[1].num_layers", _LAYERS)
    for stack in (0, 1):
        cfg = cfg.set_in(f"stack.stacks[{stack}].layer.mixer.num_heads", 8)
    return cfg


def _hybrid() -> Any:
    cfg = recipe("hybrid-tiny").model
    pattern = tuple(cfg.stack.pattern[:2])  # A state-space layer, then attention.
    return (
        cfg.set_in("stack.pattern", pattern)
        .set_in("stack.num_layers", 2 * _LAYERS)
        .set_in("stack.pattern[1].mixer.num_heads", 8)
    )


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
    cfg = KINDS[kind]()
    if variant.tied:
        cfg = cfg.set(head=None)
    if variant.remat:
        cfg = replace_all(Block.Config, lambda block: block.set(remat=Remat(save=("attended",))), missing="ok")(cfg)
    return cfg


def batch_of(vocab: int, variant: Variant) -> dict[str, np.ndarray]:
    """Returns a batch that any mesh divides: some tokens do not count, and packed rows have three documents."""
    rng, shape = np.random.default_rng(0), (DEVICES * variant.parts, _TIME)
    ids = rng.integers(0, vocab, (shape[0], _TIME + 1), np.int32)
    segments, positions = np.ones(shape, np.int32), np.broadcast_to(np.arange(_TIME, dtype=np.int32), shape).copy()
    if variant.packed:
        for row in range(shape[0]):
            first, second = sorted(rng.choice(np.arange(1, _TIME), 2, replace=False))
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
    cfg, mesh = model_of(kind, variant), variant.on(mesh)
    model, layout = on_mesh(cfg, mesh).build(path="model"), layout_of(mesh)
    assert layout is not None
    devices = mesh.on()
    stored = jax.tree.map(lambda spec: NamedSharding(devices, layout.partition(spec)), specs(model))
    rows = NamedSharding(devices, PartitionSpec(*(layout.activation_axes(name) or None for name in ("batch", "seq"))))
    params = jax.device_put(_params(kind, variant), stored)
    batch = jax.device_put(batch_of(cfg.vocab_size, variant), rows)
    step = gradients_of(model, num_microbatches=variant.parts, dtype=_dtype(variant), layout=layout)
    with jax.set_mesh(devices):
        program = jax.jit(step, out_shardings=(None, stored)).lower(params, batch, _key()).compile()
    return program, params, batch


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
    mean_here, mean_alone = (float(np.mean([e for e, _ in _errors(found, exact)])) for found in (here, alone))
    return mean_here, mean_alone


def _errors(found: Any, wanted: Any) -> list[tuple[float, str]]:
    leaves = zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(wanted), strict=True)
    return [(_error(got, want), jax.tree_util.keystr(keys)) for (keys, got), want in leaves]


def _error(got: Any, want: Any) -> float:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.max(np.abs(got - want)) / max(np.max(np.abs(want)), 1e-6)) if got.size else 0.0


def _line(kind: str, mesh: Mesh, variant: Variant) -> tuple[str, bool]:
    start = time.perf_counter()
    try:
        error, where = worst_error(kind, mesh, variant)
        good, text = error <= allowed_error(kind, mesh, variant), f"{error:.1e} | `{where}`"
    except Exception as e:
        good, text = False, f"failed | {type(e).__name__}: {str(e).splitlines()[0][:160]}"
    seconds = time.perf_counter() - start
    print(f"{'ok  ' if good else 'BAD '} {kind:6} {mesh.text():40} {variant!s:40} {text}  {seconds:.0f} s", flush=True)
    return f"| {mesh.text()} | {variant} | {text} |", good


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1 if a mesh breaks the contract."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--meshes", nargs="*", type=parse_mesh, help="only these; nothing is written")
    args = parser.parse_args(argv)
    good, lines = True, {kind: list[str]() for kind in args.kinds}
    cases = (
        (kind, mesh, variant)
        for variant in VARIANTS
        for kind in args.kinds
        for mesh in args.meshes or meshes(kind)
        if variant != EARLY or mesh.pipeline > 1
    )
    for kind, mesh, variant in cases:
        line, fine = _line(kind, mesh, variant)
        lines[kind].append(line)
        good = good and fine
        if args.meshes is None:
            _record(kind, lines[kind])
    return int(not good)


def _record(kind: str, lines: list[str]) -> None:
    about = (
        f"Loss, metrics and gradients of the {kind} model against one device, by `tools/sharding.py` (see there), on "
    )
    about += f"eight CPU devices with jax {jax.__version__}. Allowed is {TOLERANCE:.0e}, or what rounding does."
    head = ["| mesh | variant | worst error | where |", "| --- | --- | --- | --- |"]
    text = "\n".join([f"# Sharding: {kind}", "", about, "", *head, *lines]) + "\n"
    (RECORDS / f"sharding_{kind}.md").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
