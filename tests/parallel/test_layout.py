# SPDX-License-Identifier: Apache-2.0
"""From logical axes to mesh axes: what splits a parameter or an activation, and what does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dovetail.config import ConfigError
from dovetail.module import ParamSpec, constant
from dovetail.parallel import Mesh, MeshLayout, decoding_layout, layout_of, parse_mesh
from dovetail.parallel._pipeline import Pipelining

CUBE = parse_mesh("fsdp=2,seq=2,tensor=2")


def spec(shape, axes, stack=0):
    return ParamSpec(shape, axes, constant(0.0), stack=stack)


@pytest.mark.parametrize(
    "text, shape, axes, wanted",
    [
        ("fsdp=2,tensor=4", (32, 8, 4), ("embed", "heads", "head_dim"), P(("fsdp",), ("tensor",), None)),
        ("data=8", (32, 8), ("embed", "mlp"), P(None, None)),
        ("expert=2,fsdp=2", (8, 32, 16), ("expert", "embed", "mlp"), P(("expert",), ("fsdp",), None)),
        # Each mesh axis splits a parameter once: the first dimension gets it.
        ("fsdp=2", (32, 16), ("embed", "latent"), P(("fsdp",), None)),
        # Key heads may be fewer than devices; words need not divide.
        ("tensor=4", (32, 2, 8), ("embed", "kv_heads", "head_dim"), P(None, None, None)),
        ("tensor=2,pipeline=2", (260, 32), ("vocab", "embed"), P(("tensor", "pipeline"), None)),
        ("tensor=2,pipeline=4", (258, 32), ("vocab", "embed"), P(("tensor",), None)),
        ("tensor=2", (32,), (None,), P(None)),
    ],
)
def test_a_parameter_is_stored_as_the_rules_say(text, shape, axes, wanted):
    assert MeshLayout(parse_mesh(text)).partition(spec(shape, axes)) == wanted


def test_a_vector_is_not_worth_gathering():
    layout = MeshLayout(parse_mesh("pipeline=2,fsdp=2"))
    assert layout.partition(spec((4, 32), ("layers", "embed"), stack=1)) == P(("pipeline",), None)
    assert layout.partition(spec((4, 32, 8), ("layers", "embed", "mlp"), stack=1)) == P(("pipeline",), ("fsdp",), None)


def test_in_a_stage_of_a_pipeline_nothing_is_split_over_the_stages():
    layout, table = MeshLayout(parse_mesh("pipeline=2,tensor=2")), spec((260, 8), ("vocab", "embed"))
    stacked = spec((4, 260, 8), ("layers", "vocab", "embed"), stack=1)
    assert layout.partition(stacked) == P(("pipeline",), ("tensor",), None)
    assert layout.in_stage().partition(table) == P(("tensor",), None), "as it is stored, stacked"
    assert layout.in_stage().activation_axes("vocab") == ("tensor",)


def test_an_unknown_logical_axis_is_an_error_with_the_nearest_name():
    with pytest.raises(ConfigError) as e:
        MeshLayout(CUBE).partition(spec((4, 4), ("embd", None)))
    assert str(e.value).startswith(
        "mesh.rules.parameters says nothing about the logical axis 'embd'. Did you mean 'embed'?\n"
        "  Add it, with no mesh axes to keep it whole. There are: "
    )


@pytest.mark.parametrize(
    "shape, axes, wanted",
    [
        ((4, 8, 6), ("batch", "stream", None), P("fsdp", ("seq", "tensor"))),
        ((4, 2, 6), ("batch", "stream", None), P("fsdp", "seq")),  # As far as it divides.
        ((4, 1, 6), ("batch", "stream", None), P("fsdp")),
        ((4, 8, 2, 6), ("batch", "seq", "heads", None), P("fsdp", "seq", "tensor")),
        ((4, 8, 4, 6), ("batch", None, "state_heads", None), P("fsdp", None, ("tensor", "seq"))),
    ],
)
def test_an_activation_is_split_as_far_as_it_divides(shape, axes, wanted):
    layout = MeshLayout(CUBE)
    with jax.set_mesh(CUBE.on()):
        found = jax.jit(lambda x: layout.constrain(x, axes))(jnp.zeros(shape)).sharding.spec
    assert tuple(found) == tuple(wanted)


def test_gathering_a_parameter_leaves_its_gradient_where_it_is_stored():
    layout, weight = MeshLayout(CUBE), spec((8, 4), ("embed", "mlp"))
    seen = []

    def loss(w):
        used = layout.gather(w, weight)
        jax.debug.inspect_array_sharding(used, callback=lambda s: seen.append(s.shard_shape((8, 4))))
        return jnp.sum(used**2)

    with jax.set_mesh(CUBE.on()):
        gradient = jax.jit(jax.grad(loss))(jnp.ones((8, 4)))
    assert seen[0] == (8, 2)
    assert gradient.sharding.shard_shape((8, 4)) == (4, 2)
    np.testing.assert_array_equal(gradient, np.full((8, 4), 2.0))


def test_one_device_has_no_layout():
    assert layout_of(Mesh()) is None
    assert layout_of(CUBE) == MeshLayout(CUBE)


def test_the_pipeline_of_a_layout():
    assert MeshLayout(CUBE).pipelining is None
    found = MeshLayout(Mesh(pipeline=4, rounds=2, microbatches=8)).pipelining
    assert found == Pipelining(4, 8, 2, "forward_first", "pipeline")
    assert Mesh(pipeline=4).num_microbatches == 4


def test_calls_of_one_token_split_no_sequence():
    layout = decoding_layout(CUBE)
    assert layout is not None
    assert [layout.activation_axes(name) for name in ("batch", "seq", "stream")] == [("fsdp",), (), ("tensor",)]
    assert decoding_layout(Mesh()) is None
