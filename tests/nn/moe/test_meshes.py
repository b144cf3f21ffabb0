# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts is the same on every mesh; tokens travel to the experts, and neither is gathered."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.module import ParamSpec, Remat, call, merged, run_specs, specs
from dovetail.nn import Capacity, GatedFeedForward, LoRAGroupedLinear, MoEFeedForward, TopKRouter
from dovetail.parallel import layout_of, parse_mesh
from support.experts import route
from support.loops import Repeat
from support.models import random_values
from support.numeric import FLOAT32, assert_close, float64, normal

BATCH, TIME, DIM, EXPERTS = 8, 6, 4, 8
CHOICE = {"top_k": 2, "score": "sigmoid", "scale": 2.5, "num_groups": 2}
ROUTER = TopKRouter.Config(**CHOICE, selection_rate=1e-3, balance_loss=0.3, z_loss=0.1)
MOE = MoEFeedForward.Config(
    dim=DIM, hidden_dim=6, num_experts=EXPERTS, router=ROUTER, shared=GatedFeedForward.Config(hidden_dim=4)
)
KINDS = {
    "dropless": MOE,
    "capacity": MOE.set(dispatch=Capacity.Config(factor=0.8)),
    "looped, adapted": Repeat.Config(
        layer=MOE.set(remat=Remat(save=("hidden",)), up=LoRAGroupedLinear.Config(rank=2)), num_repeats=2
    ),
}
MESHES = ("data=2,expert=4", "fsdp=2,expert=2,tensor=2", "seq=2,expert=2")
X, COTANGENT = normal(1, (BATCH, TIME, DIM)), normal(2, (BATCH, TIME, DIM))


def outcome(kind, layout):
    """Returns a function of parameters and tokens: loss, output, what is collected, and gradients."""
    model = KINDS[kind].build()

    def loss(params, x):
        y, collected = call(model, params, x, layout=layout)
        losses = sum(map(jnp.sum, collected.losses.values()))
        return jnp.sum(y * COTANGENT) + losses, (y, collected.losses, collected.summaries, collected.updates)

    return jax.value_and_grad(loss, (0, 1), has_aux=True)


@functools.cache
def setup(kind):
    """Returns specs and values of parameters and state of the run, and what one device makes of them."""
    model = KINDS[kind].build()
    params = random_values(model)
    return merged(specs(model), run_specs(model)), params, jax.jit(outcome(kind, None))(params, X)


@functools.cache
def compiled(kind, text):
    """Returns the program for a mesh, which takes and returns parameters and tokens split as they are stored."""
    mesh, (spec, params, _) = parse_mesh(text), setup(kind)
    layout, devices = layout_of(mesh), mesh.on()
    assert layout is not None
    batch = tuple(axis for axis in ("data", "fsdp", "expert") if mesh.sizes[axis] > 1)
    tokens = NamedSharding(devices, PartitionSpec(batch or None, "seq" if mesh.sizes["seq"] > 1 else None))
    stored = jax.tree.map(
        lambda spec: NamedSharding(devices, layout.partition(spec)), spec, is_leaf=lambda x: isinstance(x, ParamSpec)
    )
    with jax.set_mesh(devices):
        run = jax.jit(outcome(kind, layout), in_shardings=(stored, tokens), out_shardings=(None, (stored, tokens)))
        return run.lower(params, X).compile(), (stored, tokens)


@functools.cache
def result(kind, text):
    program, shardings = compiled(kind, text)
    return program(*jax.device_put((setup(kind)[1], X), shardings))


CASES = [*(("dropless", mesh) for mesh in MESHES), ("capacity", "data=2,expert=4"), ("looped, adapted", "expert=2")]


@pytest.mark.parametrize("kind, mesh", CASES)
def test_output_losses_loads_and_gradients_are_those_of_one_device(kind, mesh):
    (loss, (y, losses, summaries, updates)), gradients = result(kind, mesh)
    (want_loss, (want_y, want_losses, want_summaries, want_updates)), want_gradients = setup(kind)[2]
    assert_close((loss, y, losses, gradients), (want_loss, want_y, want_losses, want_gradients), FLOAT32)
    assert_close(updates, want_updates, FLOAT32)
    assert updates, "what moves the bias of the router"
    assert_close({name: summaries[name] for name in want_summaries}, want_summaries, FLOAT32)


@pytest.mark.parametrize("text", MESHES)
def test_rounds_and_bytes_are_what_the_routing_says(text):
    mesh = parse_mesh(text)
    count, parts = mesh.sizes["expert"], np.prod([mesh.sizes[axis] for axis in ("data", "fsdp", "expert")])
    params = float64(setup("dropless")[1]["router"])
    experts = route(params, float64(X.reshape(-1, DIM)), **CHOICE)[1].reshape(BATCH, TIME, 2)
    leaving = []  # From each device, to each of those it exchanges with.
    for i, rows in enumerate(np.split(experts, parts)):
        for tokens in np.split(rows, mesh.sizes["seq"], axis=1):
            leaving.append((i % count, np.bincount(tokens.reshape(-1) // (EXPERTS // count), minlength=count)))
    room = np.ceil(1.25 * BATCH * TIME * 2 / len(leaving) / count)
    rounds = max(np.ceil(counts / room).max() for _, counts in leaving)
    sent = np.mean([sum(counts) - counts[own] for own, counts in leaving])
    there_and_back = 2 * DIM * 4
    want = {"rounds": rounds, "sent_bytes": sent * there_and_back}
    want["padded_bytes"] = rounds * (count - 1) * room * there_and_back
    (_, (_, _, summaries, _)), _ = result("dropless", text)
    assert_close({name: summaries[f"dispatch.{name}"] for name in want}, want, FLOAT32)
    assert rounds > 1, "one round would not test much"


def gathers(text):
    """Returns the shapes that all-gathers make."""
    program = compiled("dropless", text)[0].as_text()
    assert program is not None
    assert re.search(r"= .* all-to-all\(", program)
    return [[int(n) for n in shape.split(",")] for shape in re.findall(r"= \w+\[([\d,]*)\]\S* all-gather\(", program)]


def test_nothing_is_gathered_where_only_experts_and_tokens_are_split():
    assert gathers("data=2,expert=4") == []
    assert gathers("seq=2,expert=2") == []


def test_with_fsdp_and_tensor_parallelism_a_device_gathers_its_own_experts_and_tokens_alone():
    shapes = gathers("fsdp=2,expert=2,tensor=2")
    assert [4, 4, 3] in shapes, "4 of 8 experts, over fsdp; half of their hidden units"
    assert [2, 6, 4] in shapes, "2 of 8 sequences, over tensor"
    assert not [shape for shape in shapes if len(shape) > 2 and shape[0] > 4]
