# SPDX-License-Identifier: Apache-2.0
"""Leaves: their paths, those that cannot be saved, and those that do not fit, each with the full message."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from checkpoint.helpers import mesh
from dovetail.checkpoint._leaves import LeafInfo, check_abstract, check_fits, check_savable, describe, flatten
from dovetail.config import ConfigError


class Pair(NamedTuple):
    mu: Any
    nu: Any


def message(function, *args, **kwargs) -> str:
    with pytest.raises(ConfigError) as e:
        function(*args, **kwargs)
    return str(e.value)


def test_paths_are_those_of_configs_and_modules():
    state = {"params": {"stack": {"layer": [{"weight": 0}, {"a/b": 1}]}}, "opt": (Pair({3: 2}, {"x y": 3}), None)}
    assert flatten(state) == {
        "opt[0].mu[3]": 2,
        "opt[0].nu['x y']": 3,
        "params.stack.layer[0].weight": 0,
        "params.stack.layer[1]['a/b']": 1,
    }
    assert flatten(7) == {"(root)": 7}


def test_two_leaves_of_one_path_are_refused():
    @jax.tree_util.register_pytree_with_keys_class
    class Twins:
        def tree_flatten_with_keys(self):
            return [(jax.tree_util.GetAttrKey("x"), 1), (jax.tree_util.DictKey("x"), 2)], None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls()

    assert message(flatten, {"a": Twins()}) == ("a.x: two leaves of this state have the same path. Rename one of them.")


def test_leaves_that_cannot_be_saved_are_listed():
    donated = jnp.ones(3)
    donated.delete()
    leaves = {"ok": jnp.ones(3), "a": np.int64(3), "b[0]": 3, "c": np.ones(3), "d": donated, "e": "text"}
    assert message(check_savable, leaves) == (
        "this state cannot be saved:\n"
        "  'a' is of type numpy.int64, not a jax.Array: use jnp.asarray, or leave it out.\n"
        "  'b[0]' is of type int, not a jax.Array: use jnp.asarray, or leave it out.\n"
        "  'c' is of type numpy.ndarray, not a jax.Array: use jnp.asarray, or leave it out.\n"
        "  'd' was donated or deleted: save the state that the step returned.\n"
        "  'e' is of type str, not a jax.Array: use jnp.asarray, or leave it out.\n"
        "  Nothing was written."
    )


def test_traced_leaves_and_empty_states_are_refused():
    text = message(jax.jit(lambda x: check_savable({"x": x})), jnp.ones(3))
    assert text == "this state cannot be saved:\n  'x' is traced: save outside of jit.\n  Nothing was written."
    for state in ({}, {"x": jnp.zeros((0, 3))}):
        assert message(check_savable, state) == (
            "this state cannot be saved: it holds no numbers.\n  Nothing was written."
        )


def on_disk(**shapes: tuple[int, ...]) -> dict[str, LeafInfo]:
    return {name: LeafInfo(shape, "float32") for name, shape in shapes.items()}


def in_model(**shapes: tuple[int, ...]) -> dict[str, Any]:
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


def test_one_leaf_that_does_not_fit():
    stored = {"block.ffn.up.weight": LeafInfo((1024, 4096), "float32")}
    wanted = {"block.ffn.up.weight": jax.ShapeDtypeStruct((1024, 2816), jnp.float32)}
    assert message(check_fits, "/runs/a/step_4000", stored, wanted, partial=False) == (
        "checkpoint /runs/a/step_4000: 'block.ffn.up.weight' is (1024, 4096) on disk, (1024, 2816) in this model.\n"
        "  Nothing was restored."
    )


def test_all_that_does_not_fit_is_listed():
    stored = {**on_disk(a=(2, 3), b=(4,), c=(5,), gone=(6,)), "key": describe(jax.random.key(0))}
    wanted = in_model(a=(3, 2), b=(4,), new=(), c=(7,))
    wanted["b"] = jax.ShapeDtypeStruct((4,), jnp.bfloat16)
    wanted["c"] = jax.ShapeDtypeStruct((7,), jnp.int8)
    wanted["key"] = jax.ShapeDtypeStruct((), jax.random.key(0, impl="rbg").dtype)
    assert message(check_fits, "d/step_1", stored, wanted, partial=False) == (
        "checkpoint d/step_1: 6 leaves do not fit this model:\n"
        "  'a' is (2, 3) on disk, (3, 2) in this model.\n"
        "  'b' is float32 on disk, bfloat16 in this model.\n"
        "  'new' is in this model, not on disk.\n"
        "  'c' is (5,) float32 on disk, (7,) int8 in this model.\n"
        "  'key' is key<fry> on disk, key<rbg> in this model.\n"
        "  'gone' is on disk, not in this model.\n"
        "  Nothing was restored."
    )


def test_at_most_ten_leaves_are_listed():
    stored = {f"w{i}": LeafInfo((i,), "float32") for i in range(14)}
    text = message(check_fits, "d/step_1", stored, {}, partial=False)
    assert text.count("is on disk, not in this model.") == 10
    assert text.endswith("  ... and 4 more.\n  Nothing was restored.")


def test_a_part_fits_if_it_may_be_one():
    check_fits("d", on_disk(a=(2,), b=(3,)), in_model(a=(2,)), partial=True)
    assert "'c' is in this model, not on disk." in message(
        check_fits, "d", on_disk(a=(2,)), in_model(a=(2,), c=(3,)), partial=True
    )


def test_a_sharding_that_does_not_divide_is_refused_before_anything_is_read():
    wanted = {"w": jax.ShapeDtypeStruct((10, 4), jnp.float32, sharding=NamedSharding(mesh(8), P("a")))}
    text = message(check_fits, "d/step_1", {"w": LeafInfo((10, 4), "float32")}, wanted, partial=False)
    assert text.startswith("checkpoint d/step_1: 'w' of shape (10, 4) cannot be sharded as asked: ")
    assert "partitioned 8 times, but the dimension size is 10" in text


def test_abstract_leaves_say_what_to_restore():
    check_abstract({"a": jnp.ones(3), "b": jax.ShapeDtypeStruct((3,), jnp.float32)})
    assert message(check_abstract, {"a": 3, "b": "x"}) == (
        "this state cannot be restored:\n"
        "  'a' is 3: use a jax.ShapeDtypeStruct with a sharding, or an array.\n"
        "  'b' is 'x': use a jax.ShapeDtypeStruct with a sharding, or an array."
    )


def test_what_is_known_of_a_leaf_survives_json():
    for info in (LeafInfo((), "int8", "0" * 16), LeafInfo((2, 3), "key<fry>", "f" * 16, "threefry2x32")):
        assert LeafInfo.from_json(info.to_json()) == info
