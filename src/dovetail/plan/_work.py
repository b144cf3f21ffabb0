# SPDX-License-Identifier: Apache-2.0
"""What a model does for one row of its input, as arrays: all that the time and the memory of a step follow from.

It is found by tracing, once for a model and an input. A mesh, a batch or a chip are not in it, so that thousands of ways
to run the same model are a few products of arrays. No model is known by name, and no kind of layer.
"""

import functools
from collections import defaultdict
from typing import Any, NamedTuple

import jax
import numpy as np

from dovetail.aot import Kernel, Operations, Product, config_path, operations
from dovetail.config import ConfigError
from dovetail.data import Input
from dovetail.module import Module, abstract, specs
from dovetail.parallel import MESH_AXES, Mesh, MeshLayout, flat_specs
from dovetail.train import DTYPES, Trainer, abstract_batch, largest, loss_function

NEVER, WITH_FFN, WITH_ALL = 0, 1, 2  # When a product is computed again: with what is not `mixer`, or with full remat.
WHOLE, COLUMNS, INNER = 0, 1, 2  # Which dimension of a product `tensor` splits.
_SOME = 2  # Devices along each axis, to ask which axes split a parameter.


class Products(NamedTuple):
    """Products of matrices in the forward pass; each field has one number for each of them."""

    rows: np.ndarray  # Of all matrices together.
    inner: np.ndarray
    columns: np.ndarray
    matrices: np.ndarray  # 1: all rows go to the same one.
    times: np.ndarray  # Runs, in a stack of layers as many as there are.
    again: np.ndarray
    split: np.ndarray
    stacked: np.ndarray  # Whether it is in a stack of layers.
    weighted: np.ndarray  # Whether its second factor is a parameter,
    trained: np.ndarray  # and whether that is trained.


class Kernels(NamedTuple):
    """Attention and recurrences."""

    flops: np.ndarray  # Of all runs.
    head_dim: np.ndarray
    context: np.ndarray  # Bytes of keys and values, of all runs.
    recurrent: np.ndarray
    times: np.ndarray


class Parameters(NamedTuple):
    """Parameters, in groups of those that the same mesh axes split."""

    count: np.ndarray
    axes: np.ndarray  # `[groups, axes]`: whether a mesh axis splits it.
    experts: np.ndarray  # Whether they belong to experts.
    layers: np.ndarray  # Whether they are in a stack of layers.
    trained: np.ndarray


class Work(NamedTuple):
    """What the forward pass of one row does."""

    products: Products
    kernels: Kernels
    parameters: Parameters
    traffic: float  # Bytes of memory passes between products and kernels.
    moved: float  # Bytes of rows that are sorted, gathered and scattered on their way to experts.
    joined: float  # Values that `tensor` sums up: results of products whose inner dimension it splits.
    sent: float  # Values that go to experts, which are as many as come back.
    choices: float  # Experts of a token.
    carried: float  # Bytes between layers, of all layers.
    mixed: float  # Bytes of results of mixers' products.
    dotted: float  # Bytes of results of all products in layers.
    logits: float  # Bytes of results of products outside of the layers, in float32.
    depth: float  # Layers.
    sparse: float  # How many of these have experts.
    width: float  # Values of the stream between layers, of the row.


def work_of(cfg: Trainer.Config) -> Work:
    """Returns what one row of the input takes; nothing is compiled."""
    rules = cfg.mesh.rules
    return _traced(cfg.model, cfg.input.set(batch_size=1), cfg.compute_dtype, Mesh(rules=rules))


@functools.lru_cache(maxsize=128)
def _traced(cfg: Module.Config, data: Input.Config, dtype: str, mesh: Mesh) -> Work:
    model = cfg.build(path="model")
    tree = specs(model)
    loss = loss_function(model, dtype=DTYPES[dtype])
    key = jax.eval_shape(lambda: jax.random.key(0))
    found = operations(loss, abstract(model), abstract_batch(largest(data.batch_specs())), key)
    if not found.products:
        raise ConfigError("model: there is no product of matrices in it, so nothing can be predicted of its time.")
    return _summed(found, tree, MeshLayout(mesh.set(**dict.fromkeys(MESH_AXES, _SOME))))


def _summed(found: Operations, tree: Any, layout: MeshLayout) -> Work:
    owners = _owners(tree, layout)
    products = [_Placed.of(each, tree, owners) for each in found.products]
    layers = [each for each in products if each.stacked]
    mixers = [each for each in layers if "mixer" in each.it.scope.split("/")]
    ends = [each for each in layers if each.split == INNER and each.it.matrices == 1]
    experts = [each for each in layers if each.it.matrices > 1]
    into = [each for each in experts if each.split == INNER] or experts[:1]
    sent = float(sum(_values(each.it) for each in into))
    tokens = max(each.it.rows for each in layers if each.it.matrices == 1) if layers else 1
    widths = [each.it.columns for each in ends] or [max(each.it.inner for each in products)]
    last = [each for each in ends if each in mixers]  # Of each layer, where its mixer ends.
    depth = float(sum(each.it.times for each in last) or max(each.it.times for each in products))
    sparse = float(sum(each.it.times for each in into))
    return Work(
        products=Products(
            *(np.array(column, float) for column in zip(*(each.row() for each in products), strict=True))
        ),
        kernels=_kernels(found.kernels),
        parameters=_parameters(tree, layout),
        traffic=float(sum(found.traffic.values())),
        moved=float(sum(found.moved.values())),
        joined=float(sum(_values(each.it) for each in ends)),
        sent=sent,
        choices=max((each.it.rows / tokens for each in into), default=1.0),
        carried=float(2 * tokens * max(widths) * depth),
        mixed=float(2 * sum(_values(each.it) for each in mixers)),
        dotted=float(2 * sum(_values(each.it) for each in layers)),
        logits=float(4 * sum(_values(each.it) for each in products if not each.stacked)),
        depth=depth,
        sparse=sparse,
        width=float(tokens * max(widths)),
    )


def _values(each: Product) -> int:
    return each.rows * each.columns * each.times


class _Placed(NamedTuple):
    """A product, and what its place in the model says of it."""

    it: Product
    stacked: bool
    split: int
    weighted: bool

    @classmethod
    def of(cls, each: Product, tree: Any, owners: dict[str, tuple[bool, int]]) -> "_Placed":
        stacked, split = owners.get(config_path([each.scope], tree), (each.times > 1, COLUMNS))
        return cls(each, stacked or each.times > 1, split, config_path([each.scope], tree) in owners)

    def row(self) -> tuple[float, ...]:
        """Returns the fields of `Products`."""
        again = NEVER if not self.stacked else WITH_ALL if "mixer" in self.it.scope.split("/") else WITH_FFN
        it = self.it
        return (
            *(it.rows, it.inner, it.columns, it.matrices, it.times),
            *(again, self.split, self.stacked, self.weighted, 1),
        )


def _owners(tree: Any, layout: MeshLayout) -> dict[str, tuple[bool, int]]:
    """Returns, by path of a module with a matrix, whether it is in a stack of layers, and how `tensor` splits it."""
    found: dict[str, tuple[bool, int]] = {}
    for path, spec in sorted(flat_specs(tree, "model"), key=lambda item: item[1].nbytes):
        named = zip(layout.stored_axes(spec), spec.axes, strict=True)
        split = ["tensor" in axes for axes, name in list(named)[spec.stack :] if name != "expert"]
        if len(split) >= 2:  # The largest of a module is its matrix; what it sums over comes first.
            found[path.rpartition(".")[0]] = bool(spec.stack), INNER if split[0] else COLUMNS if any(split) else WHOLE
    return found


def _kernels(found: list[Kernel]) -> Kernels:
    rows = [(k.flops * k.times, k.head_dim, k.context_bytes * k.times, k.recurrent, k.times) for k in found]
    return Kernels(*(np.array(column, float) for column in zip(*(rows or [(0.0, 128, 0.0, 0.0, 0)]), strict=True)))


def _parameters(tree: Any, layout: MeshLayout) -> Parameters:
    groups: dict[tuple[bool, ...], float] = defaultdict(float)
    for _, spec in flat_specs(tree, ""):
        used = {axis for axes in layout.stored_axes(spec) for axis in axes}
        key = (*(axis in used for axis in MESH_AXES), "expert" in spec.axes, bool(spec.stack))
        groups[key] += float(np.prod(spec.shape))
    keys = np.array(list(groups), bool)
    counts = np.array(list(groups.values()))
    return Parameters(counts, keys[:, :-2], keys[:, -2], keys[:, -1], np.ones(len(counts)))
