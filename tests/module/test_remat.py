# SPDX-License-Identifier: Apache-2.0
"""Remat: the same values and gradients, less memory, and activations chosen by the names layers give them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.ad_checkpoint import saved_residuals  # jax.ad_checkpoint only prints them.

from dovetail.config import ConfigError, modify
from dovetail.module import Module, Remat, call, init, kernel_result
from support.compare import assert_same
from support.loops import Repeat, Sequence
from support.transformer import Attention, Block, DenseFeedForward, decoder

X = jax.random.normal(jax.random.key(1), (2, 6, 8))


def block(remat=None):
    return Block.Config(dim=8, ffn=DenseFeedForward.Config(hidden_dim=16), remat=remat)


def residuals(cfg):
    """Shapes of what the backward pass is given, sorted, without the arguments themselves."""
    model = cfg.build()
    params = init(model, jax.random.key(0))
    found = saved_residuals(lambda p, x: jnp.sum(call(model, p, x)[0]), params, X)
    avals: list[Any] = [aval for aval, source in found if "argument" not in source and "constant" not in source]
    return sorted(aval.shape for aval in avals)


def test_remat_keeps_nothing_but_what_is_named():
    heads, hidden = (2, 6, 2, 4), (2, 6, 16)
    assert residuals(block(Remat())) == []
    assert residuals(block(Remat(save=("qkv",)))) == [heads] * 3
    assert residuals(block(Remat(save=("attention.*", "*.hidden")))) == sorted([heads] * 3 + [hidden])
    assert residuals(block(Remat(save=("ffn.hidden",)))) == [hidden]
    assert len(residuals(block())) > 10


def test_dots_are_kept_without_being_named():
    # Query, key, value, out and up; the scores have batch dimensions, and nothing needs the result of down.
    assert residuals(block(Remat(save_dots=True))) == [(2, 6, 8)] * 4 + [(2, 6, 16)]


class Kernel(Module):
    """Calls a kernel, in no path, that names what its backward pass needs."""

    def forward(self, x):
        return jnp.sin(self.tag("sine", kernel_result("sine", jnp.sin(x))))


def test_what_a_kernel_names_is_kept_with_dots_or_by_its_name():
    assert residuals(Kernel.Config(remat=Remat())) == []
    for remat in (Remat(save_dots=True), Remat(save=("sine",))):
        assert set(residuals(Kernel.Config(remat=remat))) == {X.shape}


def test_values_and_gradients_do_not_change():
    params = init(block().build(), jax.random.key(0))

    def outcome(cfg):
        model = cfg.build()
        return jax.jit(jax.value_and_grad(lambda p: jnp.mean(jnp.square(call(model, p, X)[0]))))(params)

    want = outcome(block())
    for remat in (Remat(), Remat(save=("qkv", "hidden"))):
        assert_same(outcome(block(remat)), want)


def test_offloaded_activations_move_to_host_memory_and_back():
    model = block(Remat(offload=("hidden",))).build()
    params = init(model, jax.random.key(0))
    grad = jax.grad(lambda p, model: jnp.sum(call(model, p, X)[0]))
    program = str(jax.make_jaxpr(lambda p: grad(p, model))(params))
    assert "f32<host>[2,6,16] = device_put" in program
    assert program.count("device_put") == 2, "there and back"
    plain = block().build()
    assert_same(jax.jit(lambda p: grad(p, model))(params), jax.jit(lambda p: grad(p, plain))(params))


def test_names_cost_nothing_without_remat():
    model = block().build()
    params = init(model, jax.random.key(0))
    program = jax.make_jaxpr(lambda p: call(model, p, X)[0])(params)
    assert "name" not in {eqn.primitive.name for eqn in program.eqns}


def test_a_pattern_that_names_nothing_is_an_error():
    model = block(Remat(save=("qvk",), offload=("hidden",))).build()
    params = init(model, jax.random.key(0))
    with pytest.raises(ConfigError) as e:
        call(model, params, X)
    assert str(e.value) == (
        "Remat(save=('qvk',), offload=('hidden',), save_dots=False): no activation is called 'qvk'. "
        "Did you mean 'qkv'? There are: hidden, qkv."
    )


@pytest.mark.parametrize(
    "wrap, barriers",
    [
        (lambda b: Sequence.Config(layers=[b, b]), 2),
        (lambda b: Repeat.Config(layer=b, num_repeats=2, loop="unroll"), 2),
        (lambda b: Repeat.Config(layer=Sequence.Config(layers=[b]), num_repeats=2, loop="scan"), 0),
        (lambda b: Repeat.Config(layer=b, num_repeats=1, loop="scan"), 1),
    ],
    ids=["sequence", "unrolled", "scanned", "a scan of one step"],
)
def test_what_is_computed_again_is_kept_from_merging_with_the_first_time_unless_a_scan_does_so(wrap, barriers):
    model = wrap(block(Remat())).build()
    params = jax.eval_shape(lambda: init(model, jax.random.key(0)))
    grad = jax.jit(jax.grad(lambda p: jnp.sum(jnp.square(call(model, p, X)[0]))))
    assert grad.lower(params).as_text().count("optimization_barrier") == barriers


def test_one_policy_may_serve_layers_of_different_kinds():
    remat = Remat(save=("qkv", "hidden"))
    layers = [Attention.Config(dim=8, remat=remat), DenseFeedForward.Config(dim=8, hidden_dim=16, remat=remat)]
    model = Sequence.Config(layers=layers).build()
    call(model, init(model, jax.random.key(0)), X)
    model = Sequence.Config(layers=layers[:1]).build()
    with pytest.raises(ConfigError, match=r"no activation is called 'hidden'\. There are: qkv\."):
        call(model, init(model, jax.random.key(0)), X)


def test_arguments_that_are_not_arrays_pass_through_a_remat_region():
    class Chooses(Module):
        def forward(self, x, mode, *, scale):
            return x * scale if mode == "scale" else x

    model = Chooses.Config(remat=Remat()).build()
    np.testing.assert_array_equal(call(model, {}, X, "scale", scale=2.0)[0], 2 * X)
    np.testing.assert_array_equal(call(model, {}, X, "keep", scale=2.0)[0], X)


def test_remat_saves_memory():
    """The compiled program's own figure for temporary memory; see benchmarks/remat.py for larger sizes."""

    def temporary_bytes(remat):
        cfg = modify(Block.Config, lambda b: b.set(remat=remat))(decoder(num_layers=16, dim=64, hidden_dim=256))
        model = cfg.build()
        params = jax.eval_shape(lambda: init(model, jax.random.key(0)))
        ids = jax.ShapeDtypeStruct((8, 64), jnp.int32)
        grad = jax.jit(jax.grad(lambda p, ids: jnp.mean(call(model, p, ids)[0])))
        memory = grad.lower(params, ids).compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    none, some, full = temporary_bytes(None), temporary_bytes(Remat(save=("qkv",))), temporary_bytes(Remat())
    assert full < some < none
    assert full < none / 3
