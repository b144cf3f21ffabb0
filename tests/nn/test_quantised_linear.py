# SPDX-License-Identifier: Apache-2.0
"""Linear maps in few bits are the dense ones but for half a step of each weight, wherever they are in a model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, config_for, find, replace_all
from dovetail.module import ModuleError, abstract, call, constant, init, specs
from dovetail.nn import Cache, DenseLinear, Int8Cache, LoRALinear, QuantisedLinear, quantised_params
from dovetail.zoo import model
from support.models import random_params
from support.numeric import FLOAT32, assert_close, float64, normal

SHAPES = {"in_shape": (3, 16), "out_shape": (2, 5), "in_axes": ("heads", "head_dim"), "out_axes": ("a", "b")}
DENSE = DenseLinear.Config(bias=True, init=config_for(constant, value=2.0), **SHAPES)
KINDS = {"int8": QuantisedLinear.Config(bits=8), "int4": QuantisedLinear.Config(bits=4, group=8)}
each_kind = pytest.mark.parametrize("kind", KINDS)


def to(kind):
    return replace_all(DenseLinear.Config, KINDS[kind], drop=("init",))


@each_kind
def test_it_takes_over_the_bias_and_says_what_it_drops(kind):
    (change,) = to(kind).report(DENSE).changes
    assert change.taken["bias"]
    assert change.dropped.keys() == {"init"}
    assert change.taken["in_shape"] == (3, 16)


def test_parameters_have_the_axes_of_the_weight_and_dtypes_that_no_cast_changes():
    wanted = {
        "int8": {"weight": ((3, 16, 2, 5), "int8"), "scale": ((2, 5), "float32")},
        "int4": {"weight": ((3, 8, 2, 5), "uint8"), "scale": ((3, 2, 2, 5), "bfloat16")},
    }
    wanted["int4"]["offset"] = wanted["int4"]["scale"]
    for kind, want in wanted.items():
        found = specs(to(kind)(DENSE.set(bias=False)).build())
        assert {name: (spec.shape, jnp.dtype(spec.dtype).name) for name, spec in found.items()} == want
        assert found["weight"].axes == ("heads", "head_dim", "a", "b")
        assert found["scale"].axes[-2:] == ("a", "b")
        assert not any(spec.cast for spec in found.values())


@each_kind
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 2e-2)])
def test_it_is_the_map_by_its_matrix_which_is_off_by_half_a_step(kind, dtype, tolerance):
    dense, few = DENSE.set(bias=False).build(), to(kind)(DENSE.set(bias=False)).build()
    params = random_params(dense)
    stored = quantised_params(few, params)
    matrix = float64(call(few, stored, method="matrix")[0])
    step = np.asarray(stored["scale"], np.float64)
    step = np.broadcast_to(step, (3, 16, 2, 5)) if kind == "int8" else np.repeat(step, 8, axis=1)
    assert (np.abs(matrix - float64(params["weight"])) <= 0.5001 * step).all()
    x = normal(1, (4, 7, 3, 16), dtype)
    y = jax.jit(lambda p, x: call(few, p, x, dtype=dtype)[0])(stored, x)
    assert y.dtype == dtype
    assert_close(y, np.einsum("bthk,hkcd->btcd", float64(x), matrix), tolerance)


@each_kind
def test_a_bias_is_added_and_a_matrix_with_one_refused(kind):
    with_bias, without = (to(kind)(DENSE.set(bias=bias)).build() for bias in (True, False))
    params = quantised_params(with_bias, random_params(DENSE.build()))
    x = normal(1, (2, 3, 16))
    plain = call(without, {name: value for name, value in params.items() if name != "bias"}, x)[0]
    np.testing.assert_allclose(call(with_bias, params, x)[0], plain + params["bias"], rtol=1e-6)
    with pytest.raises(ModuleError, match="asked for its matrix, but it also adds a bias"):
        call(with_bias, params, method="matrix")


@each_kind
def test_initial_values_give_outputs_of_the_size_of_inputs(kind):
    cfg = KINDS[kind].set(in_shape=(512,), out_shape=(512,), in_axes=(None,), out_axes=(None,))
    layer = cfg.build()
    y = call(layer, init(layer, jax.random.key(0)), normal(0, (8, 512)))[0]
    assert 0.9 < np.std(y) < 1.1


@each_kind
def test_params_of_a_model_become_those_of_the_same_model_in_few_bits(kind):
    """Stacked layers, adapters around maps, and a tied embedding; all else stays, and twice is as good as once."""
    with_adapters = replace_all(DenseLinear.Config, lambda old: LoRALinear.Config(rank=2, inner=old), at="*.query")
    cfg = with_adapters(model("llama3-tiny"))
    in_caches = replace_all(Cache.Config, lambda old: Int8Cache.Config(inner=old))  # A part without parameters.
    dense, few = cfg.build(), in_caches(to(kind)(cfg)).build()
    params = random_params(dense)
    stored = quantised_params(few, params)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), stored)
    assert shapes == abstract(few)
    jax.tree.map(np.testing.assert_array_equal, quantised_params(few, stored), stored)
    assert stored["embedding"]["table"] is params["embedding"]["table"]
    one, all_layers = to(kind)(DENSE.set(in_shape=(3, 16))).build(), random_params(DENSE.build())
    twice = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), all_layers)
    wanted = quantised_params(one, all_layers)
    both = jax.vmap(lambda p: quantised_params(one, p))(twice)
    np.testing.assert_array_equal(both["weight"][0], wanted["weight"])
    np.testing.assert_array_equal(np.asarray(both["scale"][1]), 2 * np.asarray(wanted["scale"]))


def test_groups_that_have_no_place_are_refused_with_what_to_do():
    with pytest.raises(
        ConfigError, match=r"ffn.up \(QuantisedLinear\): inputs \(2, 7\) have no groups of an even size"
    ):
        KINDS["int4"].set(**SHAPES).set(in_shape=(2, 7)).build(path="ffn.up")
    with pytest.raises(ConfigError, match=r"bits.*3"):
        KINDS["int8"].set(bits=3, **SHAPES).build()


def test_any_linear_map_of_a_model_can_be_replaced_and_the_head_left():
    report = replace_all(DenseLinear.Config, KINDS["int4"], at="*stack.*").report(model("llama3-8b"))
    assert {change.path.rpartition(".")[2] for change in report.changes} == {
        "query", "key", "value", "out", "gate", "up", "down",
    }  # fmt: skip
    kept = [path for path, found in find(report.config, DenseLinear.Config)]
    assert kept == ["head"]
