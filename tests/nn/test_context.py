# SPDX-License-Identifier: Apache-2.0
"""The context: what the model gives and layers publish is found by name, in stacks, blocks and when decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.module import ModuleError, Published, Remat, call, constant
from dovetail.nn import Attention, Block, Context, FeedForward, GatedFeedForward, Layer, Mixer, Repeat, Sequence
from support.compare import assert_same
from support.decoding import started
from support.models import context, lm, random_params
from support.numeric import normal

X = normal(1, (2, 4, 8))


# By itself.


def published(value, present=1.0):
    return Published(value, jnp.full(value.shape[:1], present))


def test_what_the_model_gives_comes_before_what_layers_publish():
    both = context(4, given={"a": 1}, shared={"a": published(X), "b": published(X)})
    assert both.need("a") == both.get("a", 0) == 1
    np.testing.assert_array_equal(both.need("b"), X)
    assert both.get("c", 7) == 7


def test_a_value_that_will_be_published_is_not_there_yet():
    early = context(4, shared={"a": published(X, present=0.0)})
    np.testing.assert_array_equal(early.get("a", 2 * X), 2 * X)
    np.testing.assert_array_equal(context(4, shared={"a": published(X)}).get("a", 2 * X), X)


def test_a_later_context_has_more_and_the_earlier_one_stays():
    before = context(4, shared={"a": published(X)})
    after = before.later({"b": published(2 * X)})
    assert (set(before.shared), set(after.shared)) == ({"a"}, {"a", "b"})
    assert before.later({}) is before
    assert after.set(ids=jnp.arange(4)[None]).ids is not None


def test_what_nobody_provides_is_an_error_that_names_who_could():
    with pytest.raises(ModuleError) as e:
        context(4, given={"memory": X}, shared={"value": published(X)}).need("condition")
    assert str(e.value) == (
        "the context has no 'condition'. The model gives ['memory'], and layers before have\n"
        "  published ['value'].\n"
        "  The model can give it, model(..., given={'condition': ...}), or a layer before this can publish it,\n"
        "  self.publish('condition', ...). A layer that may be the first asks by context.get('condition', otherwise)."
    )


def test_it_is_a_tree_whose_mask_is_static():
    told = context(4, given={"memory": X})
    doubled = jax.jit(lambda told: jax.tree.map(lambda leaf: 2 * leaf, told))(told)
    assert isinstance(doubled, Context)
    assert doubled.mask == told.mask
    np.testing.assert_array_equal(doubled.need("memory"), 2 * X)


# In layers.


class Echo(Mixer):
    """Gives what the first such layer was given, and publishes what it is given itself."""

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("scale", (cfg.dim,), axes=("embed",), init=constant(0.5))

    def forward(self, x, context):
        self.publish("first", x, keep="first")
        self.publish("last", x)
        return self.scale * context.get("first", x)


class Uses(FeedForward):
    """Gives what the last layer that published has published."""

    def forward(self, x, context=None):
        assert context is not None
        return context.need("last") - x


def echo(mixer=None, **fields):
    return Block.Config(mixer=mixer or Echo.Config(), **{"ffn": None, "ffn_norm": None, **fields})


PLAIN = {"mixer_norm": None}


def by_hand(scales, x):
    first = x
    for scale in scales:
        x = x + scale * first
    return x


def stack_of(kind, count=5):
    """The same five layers, in stacks of several kinds, and where the scale of each is."""
    layer, pair = echo(**PLAIN), (echo(**PLAIN), echo(**PLAIN))
    return {
        "scan": (Repeat.Config(layer=layer, num_layers=count), lambda s: {"layer": s}),
        "unroll": (Repeat.Config(layer=layer, num_layers=count, loop="unroll"), lambda s: {"layer": s}),
        "remat": (Repeat.Config(layer=layer.set(remat=Remat()), num_layers=count), lambda s: {"layer": s}),
        "sequence": (
            Sequence.Config(layers=(layer,) * count),
            lambda s: {f"layers[{i}]": s[i] for i in range(count)},
        ),
        "pattern with one left over": (
            Repeat.Config(layer=pair, num_layers=count),
            lambda s: {"layer[0]": s[:4:2], "layer[1]": s[1:4:2], "layer[2]": s[4]},
        ),
        "sequence of loops": (
            Sequence.Config(layers=tuple(Repeat.Config(layer=layer, num_layers=n) for n in (2, 3))),
            lambda s: {"layers[0]": {"layer": s[:2]}, "layers[1]": {"layer": s[2:]}},
        ),
    }[kind]


KINDS = ["scan", "unroll", "remat", "sequence", "pattern with one left over", "sequence of loops"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_stack_shows_a_layer_what_all_before_it_have_published(kind):
    cfg, place = stack_of(kind)
    model, scales = cfg.set(dim=8).build(), normal(2, (5, 8))

    def filled(tree):
        if not isinstance(tree, dict):
            return {"mixer": {"scale": tree}, "mixer_connection": {}, "dropout": {}}
        return {name: filled(below) for name, below in tree.items()}

    @jax.jit
    def outcome(scales, x):
        return call(model, filled(place(scales)), x, context(4))[0]

    assert_same(outcome(scales, X), by_hand(scales, X))
    grads = jax.grad(lambda *args: jnp.sum(jnp.sin(outcome(*args))), argnums=(0, 1))(scales, X)
    assert_same(grads, jax.grad(lambda *args: jnp.sum(jnp.sin(by_hand(*args))), argnums=(0, 1))(scales, X))


def test_in_a_block_branches_in_sequence_see_what_those_before_have_published():
    block = Block.Config(dim=8, mixer=Echo.Config(), ffn=Uses.Config(), mixer_norm=None, ffn_norm=None).build()
    params = random_params(block)
    out = call(block, params, X, context(4))[0]
    assert_same(out, X)  # x + y, and then x - (x + y): what the mixer was given.
    parallel = Block.Config(
        dim=8, mixer=Echo.Config(), ffn=Uses.Config(), mixer_norm=None, ffn_norm=None, order="parallel"
    )
    with pytest.raises(ModuleError, match="the context has no 'last'"):
        call(parallel.build(), params, X, context(4))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_whose_layers_publish_decodes_as_it_trains(kind):
    attention = Attention.Config(num_heads=2)
    deep = Block.Config(mixer=attention, ffn=GatedFeedForward.Config(hidden_dim=12))
    cfg, _ = stack_of(kind, count=3 if "loops" not in kind else 5)
    model = lm(stack=Sequence.Config(layers=(Repeat.Config(layer=(deep, echo()), num_layers=3), cfg))).build()
    params, ids = random_params(model), jnp.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    step = jax.jit(lambda ids, state: call(model, params, ids, state=state))
    state, outs = started(model, params, ids[:, :2], sizes={"batch": 2, "capacity": 4}), []
    for part in (ids[:, :2], ids[:, 2:3], ids[:, 3:]):
        logits, collected = step(part, state)
        outs, state = [*outs, logits], collected.state
    assert_same(jnp.concatenate(outs, axis=1), call(model, params, ids)[0])


class Conditioned(Layer):
    """Adds what the model is given, by row."""

    def forward(self, x, context):
        return x + context.need("condition")[:, None]


def test_what_a_model_is_given_reaches_its_layers_in_every_method_and_loop():
    stack = Repeat.Config(layer=Conditioned.Config(remat=Remat()), num_layers=3)
    model = lm(stack=stack).build()
    params, ids = random_params(model), jnp.array([[1, 2], [3, 4]])
    condition = normal(3, (2, 8))
    logits, _ = call(model, params, ids, given={"condition": condition})
    last, _ = call(model, params, ids, given={"condition": condition}, method="last_logits")
    assert_same(last, logits[:, -1])
    table = params["embedding"]["table"]
    moved = {**params, "embedding": {"table": table.at[jnp.array([1, 2])].add(3 * condition[0])}}
    none = {"condition": jnp.zeros((2, 8))}
    assert_same(logits[0], call(model, moved, ids, given=none)[0][0])
    with pytest.raises(ModuleError, match=r"the context has no 'condition'. The model gives nothing"):
        call(model, params, ids)
