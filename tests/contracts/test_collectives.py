# SPDX-License-Identifier: Apache-2.0
"""What devices send each other is what each parallelism needs, by kind and by bytes, and nothing more.

Programs are those of loss and gradients, compiled for eight CPU devices. The compiler for CPUs makes an all-reduce, and
takes a part of the result, where others make a reduce-scatter: here, both are "reduce", by the bytes that go in.
"""

from collections import Counter

import jax
import pytest

from dovetail.aot import Collective, collectives
from dovetail.module import specs
from dovetail.parallel import MeshLayout, parse_mesh
from sharding_cases import KINDS, PLAIN, Variant, compiled, model_of

ROWS, TIME, DIM, LAYERS, FLOAT = 8, 32, 32, 8, 4
SMALL = 512  # Bytes, of sums and numbers of tokens, which are not what a mesh is chosen for.


def traffic(kind: str, text: str, variant: Variant = PLAIN) -> list[Collective]:
    mesh = parse_mesh(text)
    program, _, _ = compiled(kind, mesh, variant)
    return collectives(program.as_text() or "", mesh.sizes)


def totals(found: list[Collective]) -> Counter[tuple[str, tuple[str, ...]]]:
    """Returns the bytes of a step, by kind and mesh axes, without what is small."""
    names = {"all-reduce": "reduce", "reduce-scatter": "reduce"}
    sums: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for each in found:
        if each.bytes > SMALL or each.kind == "all-to-all":
            sums[names.get(each.kind, each.kind), each.axes] += each.count * each.bytes
    return sums


def sizes(kind: str, text: str) -> tuple[int, int, int]:
    """Returns bytes: of matrices in loops and outside of them, and of vectors, as a device uses them."""
    layout = MeshLayout(parse_mesh(text))
    looped = outside = vectors = 0
    for spec in jax.tree.leaves(specs(model_of(kind, PLAIN).build(path="model"))):
        kept = [axis for axes in layout.stored_axes(spec) for axis in axes if axis != "fsdp"]
        size = spec.nbytes // layout.shards(tuple(kept))
        if len(spec.shape) - spec.stack < 2:
            vectors += size
        elif spec.stack:
            looped += size
        else:
            outside += size
    return looped, outside, vectors


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in ("dense", "moe") else pytest.mark.slow) for kind in KINDS]
)
def test_fsdp_gathers_each_matrix_once_each_way_and_sums_each_gradient_once(kind):
    found = totals(traffic(kind, "fsdp=8"))
    looped, outside, vectors = sizes(kind, "fsdp=8")
    assert set(found) == {("all-gather", ("fsdp",)), ("reduce", ("fsdp",))}
    # In loops forwards and again backwards, the embedding and the head once.
    assert found["all-gather", ("fsdp",)] == pytest.approx(2 * looped + outside, rel=0.02)
    uses = 2 if model_of(kind, PLAIN).head is None else 1  # A tied table has a gradient as embedding and one as head.
    assert found["reduce", ("fsdp",)] == pytest.approx(looped + uses * outside + vectors, rel=0.02)


def test_data_parallel_sends_gradients_only():
    found = totals(traffic("dense", "data=8"))
    assert set(found) == {("reduce", ("data",))}
    assert found["reduce", ("data",)] == pytest.approx(sum(sizes("dense", "data=8")), rel=0.02)


def test_tensor_parallel_sends_activations_only_and_no_whole_matrix():
    found = traffic("dense", "data=2,tensor=4")
    stream = ROWS // 2 * TIME * DIM * FLOAT  # What goes from layer to layer, on the devices along `tensor`.
    along = [each for each in found if each.axes == ("tensor",)]
    assert max(each.bytes for each in along) <= 2 * stream  # Two of them may go together.
    gathered = sum(each.count * each.bytes for each in along if each.kind == "all-gather")
    # Two in each layer each way, one for the head, and one back from the embedding.
    assert gathered == (4 * LAYERS + 2) * stream
    assert {each.kind for each in along} == {"all-gather", "all-reduce"}


def test_expert_parallel_sends_rows_and_no_weights():
    found = traffic("moe", "data=2,expert=4")
    along = totals([each for each in found if each.axes == ("expert",)])
    assert set(along) == {("all-to-all", ("expert",))}
    # Weights of experts are summed over `data` alone: along `expert`, each device has its own.
    experts = sum(each.count * each.bytes for each in found if each.axes == ("data",))
    assert experts == pytest.approx(LAYERS * 3 * 8 * 32 * 16 * FLOAT / 4, rel=0.05)


def test_ring_attention_sends_to_neighbours_only():
    found = traffic("dense", "data=2,seq=4", Variant(ring=True))
    along = [each for each in found if each.axes == ("seq",)]
    assert {each.kind for each in along if "shard_map" in each.path and "while" in each.path} == {"collective-permute"}
    assert not [each for each in along if each.kind in ("all-gather", "all-to-all") and each.bytes > SMALL]
