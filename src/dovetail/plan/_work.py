# SPDX-License-Identifier: Apache-2.0
"""What a model does for one row of its input, as arrays: all that the time and the memory of a step follow from.

It is found by tracing, once for a model and an input. A mesh, a batch or a chip are not in it, so that thousands of
ways to run the same model are a few products of arrays. No model is known by name, and no kind of layer.
"""

import functools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from dovetail.aot import Kernel, Operations, Product, config_path, operations
from dovetail.config import ConfigError
from dovetail.data import Input
from dovetail.module import Module, abstract, specs
from dovetail.parallel import MESH_AXES, Mesh, MeshLayout, flat_specs
from dovetail.train import DTYPES, Trainer, abstract_batch, largest, loss_function

Numbers = Any  # A number, or an array with one for each run or model.

NEVER, WITH_FFN, WITH_ALL = 0, 1, 2  # When a product is computed again: with what is not `mixer`, or with full remat.
WHOLE, COLUMNS, INNER = 0, 1, 2  # Which dimension of a product `tensor` splits.
# The axis, of parameters and of the mesh, along which the matrices of a grouped product lie: of these, each row is
# multiplied by a few.
MATRIX_AXIS = "expert"
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
    bits: np.ndarray  # Of its factors.


class Kernels(NamedTuple):
    """Attention and recurrences."""

    flops: np.ndarray  # Of all runs.
    head_dim: np.ndarray
    context: np.ndarray  # Bytes of keys and values, of all runs.
    recurrent: np.ndarray
    times: np.ndarray


class Parameters(NamedTuple):
    """Parameters, in groups of those that the same mesh axes split."""

    number: np.ndarray
    axes: np.ndarray  # `[groups, axes]`: whether a mesh axis splits it.
    grouped: np.ndarray  # Whether they are matrices of which each row is multiplied by a few.
    layers: np.ndarray  # Whether they are in a stack of layers.
    trained: np.ndarray


class Work(NamedTuple):
    """What the forward pass of one row does. Of several models at once, each field has one entry for each."""

    products: Products
    kernels: Kernels
    parameters: Parameters
    traffic: Numbers  # Bytes of memory passes between products and kernels.
    moved: Numbers  # Bytes of rows that are sorted, gathered and scattered on their way to experts.
    joined: Numbers  # Values that `tensor` sums up: results of products whose inner dimension it splits.
    sent: Numbers  # Values that go to experts, which are as many as come back.
    choices: Numbers  # Experts of a token.
    carried: Numbers  # Bytes between layers, of all layers.
    mixed: Numbers  # Bytes of results of mixers' products.
    dotted: Numbers  # Bytes of results of all products in layers.
    logits: Numbers  # Bytes of results of products outside of the layers, in float32.
    depth: Numbers  # Layers.
    sparse: Numbers  # How many of these have experts.
    width: Numbers  # Values of the stream between layers, of the row.


def work_of(cfg: Trainer.Config) -> Work:
    """Returns what one row of the input takes; nothing is compiled."""
    return _work(*_key(cfg))


def works_by_path(cfg: Trainer.Config) -> Iterator[tuple[str, Work]]:
    """Yields, for each config path, the work with only the products, kernels and memory passes of that path."""
    found, tree, layout = _traced(*_key(cfg))
    whole, owners = work_of(cfg), _owners(tree, layout)
    scopes = {each.scope for each in (*found.products, *found.kernels)} | set(found.traffic) | set(found.moved)
    paths: dict[str, set[str]] = defaultdict(set)
    for scope in scopes:
        paths[config_path([scope], tree) or "other"].add(scope)
    for path, inside in paths.items():
        products = [_Placed.of(each, tree, owners).row() for each in found.products if each.scope in inside]
        yield (
            path,
            whole._replace(
                products=_products(products) if products else whole.products._replace(times=0 * whole.products.times),
                kernels=_kernels([each for each in found.kernels if each.scope in inside]),
                traffic=float(sum(size for scope, size in found.traffic.items() if scope in inside)),
                moved=float(sum(size for scope, size in found.moved.items() if scope in inside)),
            ),
        )


_Key = tuple[Module.Config, Input.Config, str, Mesh]


def _key(cfg: Trainer.Config) -> _Key:
    """Returns what a trace depends on."""
    return cfg.model, cfg.input.set(batch_size=1), cfg.compute_dtype, Mesh(rules=cfg.mesh.rules)


@functools.lru_cache(maxsize=128)
def _work(cfg: Module.Config, data: Input.Config, dtype: str, mesh: Mesh) -> Work:
    return _summed(*_traced(cfg, data, dtype, mesh))


@functools.lru_cache(maxsize=128)
def _traced(cfg: Module.Config, data: Input.Config, dtype: str, mesh: Mesh) -> tuple[Operations, Any, MeshLayout]:
    """Returns what a model does, the specs of its parameters, and how any mesh would lay them out."""
    model = cfg.build(path="model")
    loss = loss_function(model, dtype=DTYPES[dtype])
    key = jax.eval_shape(lambda: jax.random.key(0))
    found = operations(loss, abstract(model), abstract_batch(largest(data.batch_specs())), key)
    if not found.products:
        raise ConfigError("model: there is no product of matrices in it, so nothing can be predicted of its time.")
    return found, specs(model), MeshLayout(mesh.set(**dict.fromkeys(MESH_AXES, _SOME)))


def _products(rows: list[tuple[float, ...]]) -> Products:
    return Products(*_merged(rows, Products._fields.index("times")))


def _summed(found: Operations, tree: Any, layout: MeshLayout) -> Work:
    owners = _owners(tree, layout)
    products = [_Placed.of(each, tree, owners) for each in found.products]
    layers = [each for each in products if each.stacked]
    mixers = [each for each in layers if "mixer" in each.it.scope.split("/")]
    ends = [each for each in layers if each.split == INNER and each.it.matrices == 1]
    grouped = [each for each in layers if each.it.matrices > 1]
    into = [each for each in grouped if each.split == INNER] or grouped[:1]
    sent = float(sum(_values(each.it) for each in into))
    tokens = max(each.it.rows for each in layers if each.it.matrices == 1) if layers else 1
    widths = [each.it.columns for each in ends] or [max(each.it.inner for each in products)]
    last = [each for each in ends if each in mixers]  # Of each layer, where its mixer ends.
    depth = float(sum(each.it.times for each in last) or max(each.it.times for each in products))
    sparse = float(sum(each.it.times for each in into))
    return Work(
        products=_products([each.row() for each in products]),
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
            *(again, self.split, self.stacked, self.weighted, 1, min(it.bits, 16)),
        )


def _owners(tree: Any, layout: MeshLayout) -> dict[str, tuple[bool, int]]:
    """Returns, by path of a module with a matrix, whether it is in a stack of layers, and how `tensor` splits it."""
    found: dict[str, tuple[bool, int]] = {}
    for path, spec in sorted(flat_specs(tree, "model"), key=lambda item: item[1].nbytes):
        named = zip(layout.stored_axes(spec), spec.axes, strict=True)
        split = ["tensor" in axes for axes, name in list(named)[spec.stack :] if name != MATRIX_AXIS]
        if len(split) >= 2:  # The largest of a module is its matrix; what it sums over comes first.
            found[path.rpartition(".")[0]] = bool(spec.stack), INNER if split[0] else COLUMNS if any(split) else WHOLE
    return found


def _kernels(found: list[Kernel]) -> Kernels:
    rows: list[tuple[float, ...]] = [
        (each.flops, each.head_dim, each.context_bytes, each.recurrent, each.times) for each in found
    ] or [(0, 128, 0, 0, 0)]
    flops, head_dim, context, recurrent, times = _merged(rows, Kernels._fields.index("times"))
    return Kernels(flops * times, head_dim, context * times, recurrent, times)


def _merged(rows: list[tuple[float, ...]], times: int) -> list[np.ndarray]:
    """Returns the columns of rows, those that are equal but for how often they run taken together."""
    totals: dict[tuple[float, ...], float] = defaultdict(float)
    for row in rows:
        totals[row[:times] + row[times + 1 :]] += row[times]
    columns = [np.array(column, float) for column in zip(*totals, strict=True)]
    return [*columns[:times], np.array(list(totals.values()), float), *columns[times:]]


def _parameters(tree: Any, layout: MeshLayout) -> Parameters:
    groups: dict[tuple[bool, ...], float] = defaultdict(float)
    for _, spec in flat_specs(tree, ""):
        used = {axis for axes in layout.stored_axes(spec) for axis in axes}
        key = (*(axis in used for axis in MESH_AXES), MATRIX_AXIS in spec.axes, bool(spec.stack))
        groups[key] += float(np.prod(spec.shape))
    keys = np.array(list(groups), bool)
    counts = np.array(list(groups.values()))
    return Parameters(counts, keys[:, :-2], keys[:, -2], keys[:, -1], np.ones(len(counts)))
