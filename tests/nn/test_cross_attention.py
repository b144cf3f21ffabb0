# SPDX-License-Identifier: Apache-2.0
"""Cross-attention is its definition, sees neither padding nor other documents, and keeps the memory it was given."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import ModuleError, call, specs
from dovetail.nn import Context, CrossAttention, Repeat
from dovetail.ops import EMPTY, BlockwiseAttention, Causal, SameSegment, Tokens
from support import reference
from support.compare import assert_same
from support.decoding import part_of, started
from support.models import random_params
from support.numeric import BFLOAT16, FLOAT32, cast, check, normal
from support.programs import dot_flops

X, MEMORY = normal(1, (2, 3, 8)), normal(2, (2, 5, 6))
CFG = CrossAttention.Config(dim=8, memory_dim=6, num_heads=4, num_kv_heads=2, kernel=BlockwiseAttention.Config(block=2))
TOKENS = Tokens(jnp.arange(3)[None], jnp.array([[1, 1, 2], [1, 1, 1]]))
MEMORY_TOKENS = Tokens(
    jnp.array([[0, 1, 2, 3, 4], [0, 1, 2, EMPTY, EMPTY]]), jnp.array([[1, 1, 1, 2, 2], [1, 1, 1, 1, 1]])
)
ALLOWED = np.array([[[1, 1, 1, 0, 0]] * 2 + [[0, 0, 0, 1, 1]], [[1, 1, 1, 0, 0]] * 3], bool)


SIZES = {"batch": 2, "memory": 6}


def context(**given):
    return Context(TOKENS, TOKENS.index, Causal() & SameSegment(), given=given)


def run(memory_tokens: Tokens | None = MEMORY_TOKENS):
    model = CFG.build()
    more = {} if memory_tokens is None else {"memory_tokens": memory_tokens}
    return lambda params, x, memory: call(model, params, x, context(memory=memory, **more))[0]


def definition(p, x, memory, allowed=ALLOWED):
    q, k, v = (reference.linear(p[name], y) for name, y in (("query", x), ("key", memory), ("value", memory)))
    return reference.linear(p["out"], reference.attend(q, k, v, allowed, 1 / math.sqrt(2)), num_in=2)


# About eight roundings in a row.
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 8 * BFLOAT16)])
def test_cross_attention_is_its_definition(dtype, tolerance):
    args = cast((random_params(CFG.build()), X, MEMORY), dtype)
    assert check(run(), definition, *args, tolerance=tolerance).dtype == dtype


def test_a_memory_without_tokens_is_seen_by_all():
    params = random_params(CFG.build())
    got = run(memory_tokens=None)(params, X, MEMORY)
    assert_same(got, run(memory_tokens=Tokens(jnp.arange(5)[None]))(params, X, MEMORY))
    want = definition(jax.tree.map(np.float64, params), np.float64(X), np.float64(MEMORY), np.ones((2, 3, 5), bool))
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_memory_is_mapped_once_and_kept():
    model, params = CFG.build(), random_params(CFG.build())
    first = part_of(context(memory=MEMORY, memory_tokens=MEMORY_TOKENS), 0, 2)
    state = started(model, params, X[:, :2], first, sizes=SIZES)
    assert state["kept_keys"].shape == (2, 6, 2, 2), "with room for more than there is"
    one, collected = call(model, params, X[:, :2], first, state=state)
    later = part_of(context(), 2, 3)
    two, again = call(model, params, X[:, 2:], later, state=collected.state)
    assert_same(jnp.concatenate([one, two], axis=1), run()(params, X, MEMORY))
    jax.tree.map(np.testing.assert_array_equal, again.state, collected.state)
    last = jax.make_jaxpr(lambda x: call(model, params, x, later, state=collected.state)[0])(X[:, 2:])
    assert dot_flops(last) < 2 * MEMORY.size * 8, "less than the map of the memory to keys would take"


def test_a_memory_that_is_given_later_takes_the_place_of_the_one_that_was_kept():
    model, params = CFG.build(), random_params(CFG.build())
    given = context(memory=2 * MEMORY, memory_tokens=MEMORY_TOKENS)
    state = started(model, params, X, given, sizes=SIZES)
    state = call(model, params, X, context(memory=MEMORY), state=state)[1].state
    got, collected = call(model, params, X, given, state=state)
    assert_same(got, run()(params, X, 2 * MEMORY))
    assert_same(call(model, params, X, context(), state=collected.state)[0], got)


def test_the_memory_goes_through_a_scan_over_layers():
    layers = {loop: Repeat.Config(dim=8, layer=CFG, num_layers=2, loop=loop).build() for loop in ("scan", "unroll")}
    params = random_params(layers["scan"])
    given, outs = context(memory=MEMORY, memory_tokens=MEMORY_TOKENS), []
    for model in layers.values():
        out, collected = call(model, params, X, given, state=started(model, params, X, given, sizes=SIZES))
        outs += [out, call(model, params, X, context(), state=collected.state)[0]]
    for out in outs[1:]:
        assert_same(out, outs[0])


def test_specs_name_the_axes():
    found = {name: (below["weight"].shape, below["weight"].axes) for name, below in specs(CFG.build()).items()}
    assert found == {
        "query": ((8, 4, 2), ("embed", "heads", "head_dim")),
        "key": ((6, 2, 2), ("embed", "kv_heads", "head_dim")),
        "value": ((6, 2, 2), ("embed", "kv_heads", "head_dim")),
        "out": ((4, 2, 8), ("heads", "head_dim", "embed")),
    }


def test_a_call_without_memory_says_who_can_give_it():
    model = CFG.build(path="cross")
    with pytest.raises(ModuleError, match=r"the context has no 'memory'(?s:.*)The model can give it"):
        call(model, random_params(model), X, context())


def test_a_memory_longer_than_the_state_has_room_for_is_refused():
    model = CFG.build(path="cross")
    params, given = random_params(model), context(memory=MEMORY)
    with pytest.raises(ModuleError) as e:
        started(model, params, X, given, sizes={"batch": 2, "memory": 4})
    assert str(e.value) == (
        "cross (CrossAttention): a memory of 5 positions, and room for 4. Use a larger size 'memory' in state_specs."
    )


@pytest.mark.parametrize("field", ["num_heads", "num_kv_heads", "head_dim", "memory_dim"])
def test_nothing_is_refused(field):
    with pytest.raises(ConfigError) as e:
        CFG.set(**{field: 0}).build(path="cross")
    assert str(e.value) == f"cross (CrossAttention): {field} is 0, expected at least 1."
