# SPDX-License-Identifier: Apache-2.0
"""Attention on a mesh is attention on one device; it sends what it must, and devices have equal work.

Shape letters: B batch, T queries, H query heads, G key heads, K key dim, V value dim.
"""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from dovetail.config import ConfigError
from dovetail.ops import (
    BlockwiseAttention,
    Causal,
    Full,
    LinearBias,
    Prefix,
    QueryBlockAttention,
    ReferenceAttention,
    SameSegment,
    SlidingWindow,
    Tokens,
    Written,
)
from dovetail.parallel import GatheredAttention, Mesh, RingAttention
from support.numeric import BFLOAT16, FLOAT32, assert_close, normal
from support.programs import dot_flops, equations, shapes

BATCH, LENGTH, KEY_DIM, VALUE_DIM = 2, 16, 4, 3
SEGMENTS = np.sort(np.random.default_rng(0).integers(0, 3, (BATCH, LENGTH)), axis=1)
PREFIX = np.random.default_rng(1).random((BATCH, LENGTH)) < 0.2
TOKENS = Tokens(jnp.arange(LENGTH)[None], jnp.asarray(SEGMENTS), jnp.asarray(PREFIX))
REFERENCE = ReferenceAttention.Config()
GATHERED = GatheredAttention.Config(inner=BlockwiseAttention.Config(block=2))
RING = RingAttention.Config(block=2)
both_kernels = pytest.mark.parametrize("cfg", [GATHERED, RING], ids=["gathered", "ring"])


def inputs(heads=4, kv_heads=2, dtype=jnp.float32):
    """Returns queries, keys, values, slopes, sinks, and a gradient of the result."""
    sizes = [(heads, KEY_DIM), (kv_heads, KEY_DIM), (kv_heads, VALUE_DIM), (heads, VALUE_DIM)]
    q, k, v, gradient = (normal(i, (BATCH, LENGTH, *size), dtype) for i, size in enumerate(sizes))
    return q, k, v, normal(5, (heads,), size=0.1), normal(6, (heads,)), gradient


def run(cfg, mask, plain=False):
    """Returns the result and its gradients as a function of `inputs`."""
    kernel = cfg.build()

    def attend(q, k, v, slopes, sinks):
        changes = {} if plain else {"soft_cap": 2.0, "bias": LinearBias(slopes), "sinks": sinks}
        return kernel(q, k, v, mask=mask, q_tokens=TOKENS, k_tokens=TOKENS, scale=0.7, aligned=True, **changes)

    def value_and_gradients(*args):
        out, pull = jax.vjp(attend, *args[:-1])
        return out, pull(args[-1])[: 3 if plain else 5]

    return value_and_gradients


def on(mesh, function, *args):
    with jax.set_mesh(mesh.on()):
        return jax.jit(function)(*args)


def check(mesh, cfg, mask, *args):
    """Asserts that the kernel gives the same on a mesh as the definition on one device."""
    got = on(mesh, run(cfg, mask), *args)
    assert_close(got, on_one_device(mask, *(x.shape[2] for x in args[:2])), FLOAT32)
    return got


@functools.cache
def on_one_device(mask, heads, kv_heads):
    return jax.jit(run(REFERENCE, mask))(*inputs(heads, kv_heads))


EVERYTHING = SameSegment() & ((Causal() & SlidingWindow(3)) | Prefix())


@both_kernels
@pytest.mark.parametrize("mesh", [Mesh(seq=4, tensor=2), Mesh(seq=2, tensor=2, data=2)], ids=Mesh.text)
def test_all_that_changes_scores_works_on_a_mesh(cfg, mesh):
    """With groups of heads, values of another size than keys, and gradients of everything."""
    out, _ = check(mesh, cfg, EVERYTHING, *inputs())
    split = [("data",) if mesh.data > 1 else (), ("seq",), ("tensor",)]
    assert out.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh.on(), PartitionSpec(*split)), out.ndim)


@both_kernels
def test_a_causal_mask_works_for_pieces_of_one_token(cfg):
    check(Mesh(seq=8), cfg, Causal() & SameSegment(), *inputs())


@pytest.mark.parametrize("mask", [Full(), Causal(), Causal() & SlidingWindow(6)], ids=str)
def test_a_ring_works_for_each_mask_in_order_and_with_blocks_that_do_not_fit(mask):
    """Blocks of 3 in pieces of 4, and with a window of 6, keys that go to two further devices of four."""
    check(Mesh(seq=4), RingAttention.Config(block=3, balanced=False), mask, *inputs())


@pytest.mark.parametrize(
    "inner, balanced",
    [(QueryBlockAttention.Config(block=3), True), (BlockwiseAttention.Config(block=3), False)],
    ids=str,
)
def test_any_kernel_runs_inside(inner, balanced):
    check(Mesh(seq=2, data=2), GatheredAttention.Config(inner=inner, balanced=balanced), Causal(), *inputs())


@pytest.mark.parametrize(
    "cfg, mesh, heads, kv_heads",
    [
        (GATHERED, Mesh(tensor=2), 6, 3),  # Devices share the second key head; each has its own copy.
        (RING, Mesh(seq=2, tensor=4), 4, 2),  # Two devices have one key head.
        (RING, Mesh(seq=2, tensor=4), 6, 3),  # Not even the query heads can be split.
        (GATHERED, Mesh(data=4, tensor=2), 4, 2),  # Nor the batch of 2.
    ],
)
def test_heads_and_rows_need_not_fit_the_mesh(cfg, mesh, heads, kv_heads):
    check(mesh, cfg, Causal(), *inputs(heads, kv_heads))


@both_kernels
def test_sums_are_in_float32_and_the_result_is_not(cfg):
    """As on one device, where weights, their gradients, values and results are rounded."""
    args, exact = inputs(kv_heads=1, dtype=jnp.bfloat16), inputs(kv_heads=1)
    args = (*args[:3], *exact[3:5], args[-1])
    out, gradients = on(Mesh(seq=2, tensor=2), run(cfg, Causal(), plain=True), *args)
    want = jax.jit(run(REFERENCE, Causal(), plain=True))(*(x.astype(jnp.float32) for x in args))
    assert {x.dtype for x in (out, *gradients)} == {jnp.dtype(jnp.bfloat16)}
    assert_close((out, gradients), want, 8 * BFLOAT16)


@both_kernels
def test_it_is_one_more_function_to_jax(cfg):
    """In a loop over layers that are computed again, inside a pipeline, whose stages are a dimension of a vmap."""
    q, k, v, _, sinks, _ = (jnp.stack([x, 0.5 * x]) for x in inputs())

    def loss(cfg, axis):
        kernel = cfg.build()

        def stage(q, k, v, sinks, segments):
            tokens = Tokens(jnp.arange(LENGTH)[None], segments)

            @jax.checkpoint
            def layer(x, _):
                common = {"mask": Causal() & SameSegment(), "q_tokens": tokens, "k_tokens": tokens}
                out = kernel(q, k, x, **common, scale=0.7, aligned=True, sinks=sinks)
                return out[:, :, :2], None  # As many heads as values have.

            return jax.lax.scan(layer, v, None, length=2)[0]

        return lambda *args: jnp.sum(jnp.sin(jax.vmap(stage, spmd_axis_name=axis)(*args)))

    args = (q, k, v, sinks, jnp.stack([SEGMENTS, SEGMENTS[::-1]]))
    gradient = jax.grad(loss(cfg, "pipeline"), (0, 1, 2, 3))
    mesh = Mesh(pipeline=2, seq=2, tensor=2)
    assert_close(on(mesh, gradient, *args), jax.jit(jax.grad(loss(REFERENCE, None), (0, 1, 2, 3)))(*args), FLOAT32)
    with jax.set_mesh(mesh.on()):
        made = shapes(jax.make_jaxpr(gradient)(*args))
    # Two rows, half of the tokens, half of the heads: and one stage of two.
    assert (1, 2, LENGTH // 2, 2, VALUE_DIM) in made
    assert (2, 2, LENGTH // 2, 2, VALUE_DIM) not in made


@both_kernels
@pytest.mark.parametrize("length", [1, 2])
def test_queries_meet_a_cache_of_other_tokens(cfg, length):
    """One token cannot be split over `seq`; two can. The cache is whole, as is what lies behind it."""
    q, k, v, *_ = inputs()
    q, last = q[:, :length], 5 + jnp.arange(length)[None]
    cache = Tokens(jnp.where(jnp.arange(LENGTH) < 5 + length, jnp.arange(LENGTH), jnp.iinfo(jnp.int32).max)[None])

    def attend(cfg):
        common = {"mask": Causal() & Written(), "q_tokens": Tokens(last), "k_tokens": cache}
        return lambda q, k, v: cfg.build()(q, k, v, **common, scale=0.7, aligned=False)

    got = on(Mesh(seq=2, tensor=2, data=2), attend(cfg), q, k, v)
    assert_close(got, attend(REFERENCE)(q, k, v), FLOAT32)


# Without a mesh.


@pytest.mark.parametrize("kernel", [GatheredAttention, RingAttention])
def test_on_one_device_not_one_equation_is_added(kernel):
    inner = BlockwiseAttention.Config(block=2)

    def programs():
        return [str(jax.make_jaxpr(run(cfg, Causal()))(*inputs())) for cfg in (inner, kernel.Config(inner=inner))]

    want, got = programs()
    assert got == want
    with jax.set_mesh(Mesh().on()):
        want, got = programs()
    assert got == want


# What a device computes.


def program(cfg, mesh, mask, length, gradient=False):
    """Returns the program of one head, and what it takes to compile it."""
    args = [jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)] * 3
    tokens = Tokens(jnp.arange(length, dtype=jnp.int32)[None])
    kernel = cfg.build()

    def forward(q, k, v):
        out = kernel(q, k, v, mask=mask, q_tokens=tokens, k_tokens=tokens, scale=1.0, aligned=True)
        return jnp.sum(jnp.square(out))

    function = jax.jit(jax.grad(forward, (0, 1, 2)) if gradient else forward)
    with jax.set_mesh(mesh.on()):
        return jax.make_jaxpr(function)(*args), function, args


def work(cfg, mask, size=4, length=256):
    """Returns how many pairs of blocks of 8 each device computes."""
    found, _, _ = program(cfg, Mesh(seq=size), mask, length)
    return dot_flops(found) / (2 * 2 * 8 * 8 * 8)


@pytest.mark.parametrize("kernel", ["gathered", "ring"])
def test_a_causal_mask_is_the_same_work_for_all_devices_and_half_of_all_work(kernel):
    def cfg(balanced):
        if kernel == "ring":
            return RingAttention.Config(block=8, balanced=balanced)
        return GatheredAttention.Config(inner=BlockwiseAttention.Config(block=8), balanced=balanced)

    # 8 pieces of 4 blocks. A block of queries sees all blocks of the pieces before its own, and those up to itself.
    each = [sum(4 * piece + block + 1 for block in range(4)) for piece in range(8)]
    assert work(cfg(True), Causal()) == each[0] + each[7] == each[3] + each[4] == sum(each) / 4
    # In order, the last device does almost what it would do without a mask, and all others wait for it.
    assert work(cfg(False), Causal()) == {"gathered": each[6] + each[7], "ring": 36 + 3 * 64}[kernel]
    assert work(cfg(True), Full()) == work(cfg(False), Full()) == 8 * 32


def test_a_window_is_work_for_a_window():
    mask = Causal() & SlidingWindow(9)  # The block of the query, and the one before.
    for cfg in (GatheredAttention.Config(inner=BlockwiseAttention.Config(block=8)), RingAttention.Config(block=8)):
        assert work(cfg, mask) == 8 * 2


def kept(cfg, length):
    """Returns the bytes that the compiler reserves on each device for values and gradients."""
    _, function, args = program(cfg, mesh := Mesh(seq=4), Causal(), length, gradient=True)
    with jax.set_mesh(mesh.on()):
        memory = function.lower(*args).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


def test_the_memory_of_a_ring_grows_with_the_local_length():
    cfg = RingAttention.Config(block=64)
    short, long = kept(cfg, 1024), kept(cfg, 4096)
    rows = 4096 // 4 * 8 * 4  # An array like the queries of a device.
    assert long <= 4 * short
    assert long <= 30 * rows + 8 * 64 * 64 * 4 < 4096 * 1024 * 4 / 10, "a tenth of the scores of a device"


# What devices send each other.


def sent(jaxpr):
    """Returns, for each kind of collective, how many equations it has, and the bytes that go in when they run."""
    found = {}
    for eqn, times in equations(jaxpr):
        if eqn.primitive.name in ("ppermute", "all_gather", "reduce_scatter", "psum", "all_to_all", "psum_invariant"):
            count, total = found.get(eqn.primitive.name, (0, 0))
            size = sum(math.prod(x.aval.shape) * x.aval.dtype.itemsize for x in eqn.invars)
            found[eqn.primitive.name] = count + 1, total + times * size
    return found


def collectives(function, args, mesh):
    """Returns how many collectives of each kind the compiled program has."""
    with jax.set_mesh(mesh.on()):
        text = function.lower(*args).compile().as_text()
    names = re.findall(r" (all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all)(?:-start)?\(", text)
    return {name: names.count(name) for name in set(names)}


def laid_out(args, mesh):
    """Returns arguments that lie where the kernel wants them, so that nothing else has to be sent."""
    place = jax.sharding.NamedSharding(mesh.on(), PartitionSpec(None, "seq"))
    return [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place) for x in args]


def test_a_ring_sends_to_neighbours_only_and_as_much_as_it_has_to():
    mesh, length = Mesh(seq=4), 256
    found, function, args = program(RING.set(block=32), mesh, Causal(), length, gradient=True)
    own, index = length // 4 * 8 * 4, length // 4 * 4  # Bytes of queries (or keys, or values), and of their places.
    # q, k, v and two sets of tokens go to who works on them, the result comes back, and so do the gradients.
    dealt = (3 * own + 2 * index) + own + own + 3 * own
    # Keys, values and their places travel 3 times, forward and backward; their gradients come home with a fourth.
    round_trip = 2 * 3 * (2 * own + index) + 4 * (2 * own)
    assert sent(found.jaxpr) == {"ppermute": (sent(found.jaxpr)["ppermute"][0], dealt + round_trip)}
    assert collectives(function, laid_out(args, mesh), mesh).keys() == {"collective-permute"}


def test_keys_travel_only_as_far_as_the_window_reaches():
    def travels(window):
        mask = Causal() & SlidingWindow(window)
        found, _, _ = program(RING.set(block=8), Mesh(seq=8), mask, 256)
        return sent(found.jaxpr).get("ppermute", (0, 0))[1] / (2 * 32 * 8 * 4 + 32 * 4)

    assert [travels(window) for window in (1, 2, 33, 34)] == [0, 1, 1, 2]


def test_gathered_attention_gathers_keys_and_scatters_their_gradients():
    mesh, length = Mesh(seq=4), 256
    cfg = GatheredAttention.Config(inner=BlockwiseAttention.Config(block=32))
    found, function, args = program(cfg, mesh, Causal(), length, gradient=True)
    own, index = length // 4 * 8 * 4, length // 4 * 4
    assert sent(found.jaxpr) == {
        "ppermute": (10, (own + index) + own + own + own),  # q and its places, the result, and their gradients.
        "all_gather": (3, 2 * own + index),
        "reduce_scatter": (2, 2 * 4 * own),
    }
    assert collectives(function, laid_out(args, mesh), mesh).keys() <= {
        *("collective-permute", "all-gather", "reduce-scatter", "all-reduce")
    }


# What is refused.


def refusal(cfg, size, length):
    kernel = cfg.build(path="mixer.kernel")
    tokens, x = Tokens(jnp.arange(length)[None]), jnp.ones((1, length, 1, 2))
    with jax.set_mesh(Mesh(seq=size).on()), pytest.raises(ConfigError) as e:
        kernel(x, x, x, mask=Causal(), q_tokens=tokens, k_tokens=tokens, scale=1.0, aligned=True)
    return str(e.value)


def test_lengths_that_cannot_be_split_are_refused_with_those_that_can():
    assert refusal(RING, 4, 21) == (
        "mixer.kernel: a sequence of 21 tokens cannot be cut into 4 equal pieces, one for each of the devices along "
        "the mesh axis 'seq'.\n  Use a length of 20 or 24."
    )
    assert refusal(GATHERED, 4, 3).endswith("Use a length of 4.")


def test_a_block_of_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"^RingAttention: block is 0, expected at least 1\.$"):
        RingAttention.Config(block=0).build()
