# SPDX-License-Identifier: Apache-2.0
"""Mesh rules that work for any model: what a family of hardware needs, and arithmetic for the rest."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Literal, TypeVar

from dovetail.config import REQUIRED, ConfigBase, ConfigError, replace_all
from dovetail.hardware import Hardware, MeshRule
from dovetail.nn import RematPolicy
from dovetail.ops import AttentionKernel, GroupedMatmul, PreferredAttention, PreferredGroupedMatmul
from dovetail.parallel import MESH_AXES, BatchShape, Mesh, divisors, fits
from dovetail.train import Trainer, batch_shape, largest

from ._advice import advice
from ._estimate import Model, activation_bytes, describe, gathered_bytes, memory_of, state_bytes, usable_bytes
from ._search import search, simplest

_C = TypeVar("_C", bound=ConfigBase)
_MICROBATCHES = 64  # The most that a rule splits a batch into.
_REACHED = 0.5  # Of its peak, what a chip reaches.
_BUBBLE = 0.1  # Of a step, what stages of a pipeline may wait ...
_ROUNDS = 16  # ... if there are so many rounds at most.
_SAVED = 0.1  # Of a step, by prediction, what other remat and microbatches have to save.


class Fitted(MeshRule):
    """Chooses mesh, remat and microbatches by the size of the model, and kernels and precision by the hardware.

    The mesh is the first that divides everything and whose state leaves room, in this order: layers are split over as
    few devices as can be (`tensor`, `seq`), experts over `expert`, and all else is split over `fsdp`. Where links
    between groups of chips are slow, `fsdp` stays as small as memory allows, and the rest is `data`.

    Where a step has too little for each device to hide behind computation what the network brings, layers are split
    over `pipeline` as well.

    Then the batch is split into as few microbatches as can be, and of the remat policies the first is taken with which
    the estimate is below `memory`.

    In a torus, other remat and microbatches take their place if a search by predicted time finds them clearly faster:
    most often more microbatches, which leave room to compute less again in the backward pass.
    """

    class Config(MeshRule.Config):
        attention: tuple[AttentionKernel.Config, ...] = REQUIRED  # The first that supports what a layer asks for.
        grouped_matmul: tuple[GroupedMatmul.Config, ...] = REQUIRED
        remat: tuple[RematPolicy, ...] = ("save_dots", "save_qkvo", "full")  # From the fastest to the smallest.
        compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
        compiler_options: Mapping[str, Mapping[str, bool | int | str]] = {}  # By platform.
        expert: int = 1  # Into how many parts experts are split if there are so many; more where a layer is too large.
        tensor: int = 8  # Into how many parts a layer may be split at most.
        pipeline: int = 1  # Into how many stages the layers may be split, where the network is too slow to gather all.
        memory: float = 0.85  # Of what the chip has: the highest estimate.

    def apply(self, cfg: _C, hardware: Hardware) -> _C:
        assert isinstance(cfg, Trainer.Config)
        attention = PreferredAttention.Config(kernels=self.cfg.attention)
        products = PreferredGroupedMatmul.Config(kernels=self.cfg.grouped_matmul)
        kernels = {AttentionKernel.Config: lambda _: attention, GroupedMatmul.Config: lambda _: products}
        model = replace_all(kernels, missing="ok")(cfg.model)
        options = {**cfg.compiler_options, **self.cfg.compiler_options}
        cfg = cfg.set(model=model, compute_dtype=self.cfg.compute_dtype, compiler_options=options)
        about = describe(cfg)
        mesh = self._mesh(cfg, about, hardware)
        parts, remat = self._memory(cfg, about, mesh, hardware)
        return self._faster(cfg.set(mesh=mesh, num_microbatches=parts, remat=remat), hardware)

    def _faster(self, cfg: Trainer.Config, hardware: Hardware) -> Trainer.Config:
        """Returns the config with remat and microbatches that are predicted to be clearly faster, if there are such.

        Only of chips in a torus: on others, more microbatches bring all parameters over the network again, and by the
        compiled program of llama2-70b on gpu-h100-512 that takes what less remat saves. The mesh stays: by compiled
        programs, what predictions find to be a faster one often is not.
        """
        chip = hardware.chip
        if chip.torus is None or not (chip.peak.get("bfloat16") and chip.hbm_bandwidth and chip.hbm_bytes):
            return cfg
        room = self.cfg.memory * chip.hbm_bytes / (usable_bytes(hardware) or chip.hbm_bytes)
        fixed = {f"mesh.{axis}": cfg.mesh.sizes[axis] for axis in MESH_AXES}
        found = search(cfg, hardware, fixed, policies=self.cfg.remat, room=room)
        at = simplest(found)
        if at is None or found.seconds[at] > (1 - _SAVED) * found.seconds_of(cfg):
            return cfg
        return found.config(at)

    def _mesh(self, cfg: Trainer.Config, model: Model, hardware: Hardware) -> Mesh:
        declared = cfg.input.batch_specs()
        batch, units = batch_shape(declared), largest(declared).num_units
        possible = [mesh for mesh in self._meshes(cfg.mesh, model, hardware) if fits(mesh, model.specs, batch)]
        if not possible:
            raise ConfigError(
                f"no mesh spreads this over the {hardware.num_devices} devices of {hardware.name}: a batch has "
                f"{batch.rows} rows{_lengths(batch)}, and heads and layers can be split only so far.\n"
                f"  {advice(lambda other: self._meshes(cfg.mesh, model, other), model.specs, batch, hardware)}"
            )
        room = memory_of(hardware)

        def leaves_room(mesh: Mesh) -> bool:
            return state_bytes(model, mesh) < room / 2 and gathered_bytes(model, mesh) < room / 16

        found = next(filter(leaves_room, possible), min(possible, key=lambda mesh: state_bytes(model, mesh)))
        staged = (mesh for mesh in self._pipelines(found, batch, units, hardware) if fits(mesh, model.specs, batch))
        return next(filter(leaves_room, staged), found)

    def _pipelines(self, mesh: Mesh, batch: BatchShape, units: int, hardware: Hardware) -> Iterator[Mesh]:
        """Yields the mesh with its layers in stages, the best first, where the network is too slow without.

        For each unit a device computes 6 operations a parameter. In each step it gets every parameter twice and sends
        its gradient once, 6 bytes, which the chips of a domain bring in together. So the units of a device decide
        whether it waits; of several stages, each has only a part of the parameters.
        """
        chip, groups = hardware.chip, math.prod(mesh.sizes[axis] for axis in mesh.rules.activations["batch"])
        if not (chip.network and chip.domain) or mesh.sizes["fsdp"] * mesh.sizes["tensor"] <= chip.domain:
            return
        enough = _REACHED * chip.peak["bfloat16"] / (chip.network * chip.domain)
        mine = units / hardware.num_devices
        counts = [n for n in divisors(mesh.data) if n <= self.cfg.pipeline] if mine < enough else []
        for stages in sorted(counts[1:], key=lambda n: n if n * mine >= enough else self.cfg.pipeline / n + enough):
            for parts in (n for n in reversed(divisors(batch.rows * stages // groups)) if stages <= n <= 4 * stages):
                short = math.ceil((stages - 1) / (_BUBBLE * parts))  # So many rounds make the bubble short enough.
                for rounds in sorted(range(1, _ROUNDS + 1), key=lambda n: n if n >= short else _ROUNDS + short - n):
                    yield mesh.set(data=mesh.data // stages, pipeline=stages, microbatches=parts, rounds=rounds)

    def _meshes(self, base: Mesh, model: Model, hardware: Hardware) -> Iterator[Mesh]:
        """Yields meshes, the best first."""
        torus = hardware.chip.torus is not None
        slices = hardware.slices if torus else 1
        inner = hardware.num_devices // slices  # Devices between which `fsdp` is fast enough.
        close = hardware.slice_chips * hardware.chip.devices
        experts = sorted(divisors(model.experts), key=lambda n: (n < self.cfg.expert, n))
        sizes = [n for n in divisors(inner) if n.bit_count() == 1]
        tensors = [n for n in sizes if n <= self.cfg.tensor]
        for seq, tensor, expert in itertools.product(sizes, tensors, experts):
            rest, odd = divmod(inner, tensor * seq * expert)
            if odd:
                continue
            near = max(1, close // (tensor * seq * expert))
            for fsdp in sorted(divisors(rest), key=lambda n: -n if torus else (n < near, n)):
                outer = {"data": slices} if slices > 1 else {}
                split = {"seq": seq, "tensor": tensor, "expert": expert, "fsdp": fsdp, "data": rest // fsdp}
                yield base.set(**split, pipeline=1, across_slices=outer)

    def _memory(self, cfg: Trainer.Config, model: Model, mesh: Mesh, hardware: Hardware) -> tuple[int, RematPolicy]:
        room = self.cfg.memory * memory_of(hardware) - state_bytes(model, mesh) - 2 * gathered_bytes(model, mesh)
        groups = math.prod(mesh.sizes[axis] for axis in mesh.rules.activations["batch"])
        rows = cfg.input.batch_size // (groups * mesh.num_microbatches)
        counts = [n for n in divisors(rows) if n <= _MICROBATCHES]
        for parts in counts:
            for policy in self.cfg.remat:
                if activation_bytes(cfg, mesh, parts, policy) < room:
                    return parts, policy
        return counts[-1], self.cfg.remat[-1]


def _lengths(batch: BatchShape) -> str:
    """Returns what rows are made of, for errors."""
    return f" ({', '.join(f'{name} {size}' for name, size in batch.lengths.items())})" if batch.lengths else ""
