# SPDX-License-Identifier: Apache-2.0
"""What every layer promises, whatever it computes. A new layer joins by one line in `CASES`.

An interface joins by a line in `INTERFACES`: what a parent sets, and what a call takes.
"""

import abc
import dataclasses
import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dovetail.nn
import support.models
from dovetail.config import REQUIRED, ConfigError, fields_of, find, from_json, replace_all, to_json
from dovetail.models import CausalLM
from dovetail.module import Module, Remat, call, init
from dovetail.nn import (
    Add,
    ALiBi,
    Attention,
    AttentionVariant,
    Block,
    Cache,
    Capacity,
    Connection,
    Context,
    CrossAttention,
    DenseCache,
    DenseFeedForward,
    DenseGroupedLinear,
    DenseLinear,
    Dispatch,
    Dropless,
    DynamicRoPE,
    Embedding,
    FeedForward,
    Float8Linear,
    GatedDeltaNet,
    GatedFeedForward,
    GroupedLinear,
    Int8Cache,
    Int8Linear,
    LatentAttention,
    Layer,
    LayerNorm,
    LearnedPosition,
    Linear,
    LinearRoPE,
    Llama3RoPE,
    LongRoPE,
    LoRAGroupedLinear,
    LoRALinear,
    Mamba2,
    Mixer,
    MoEFeedForward,
    Norm,
    NoRotary,
    PackedEmbedding,
    PackedLinear,
    PagedCache,
    PartialRotary,
    PositionBias,
    PositionEmbedding,
    QuantisedGroupedLinear,
    QuantisedLinear,
    Repeat,
    RMSNorm,
    RoPE,
    Rotary,
    Router,
    Sequence,
    SinusoidalPosition,
    TopKRouter,
    View,
    WeightedFeedForward,
    YaRN,
)
from dovetail.ops import Causal, SameSegment, Tokens
from support import loops
from support.compare import assert_same
from support.decoding import started
from support.loops import Plain
from support.models import Differential, Interpolated, LowRank, Pair, Previous, mixer_only, random_params
from support.numeric import normal


class Wrapper(Module, abc.ABC):
    """A layer of a stack, made of something that does not itself map an array and a context to an array."""

    class Config(Module.Config):
        inner: Module.Config = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.inner = self.child("inner", cfg.inner)

    @abc.abstractmethod
    def forward(self, x: Any, context: Context) -> Any:
        """Maps an array to one of the same shape."""


class Added(Wrapper):
    """Adds positions to `x`, as a model does."""

    def forward(self, x, context):
        return x + self.inner(context.positions)


class Rotated(Wrapper):
    """Turns `x` by its positions."""

    def forward(self, x, context):
        return self.inner(x, context.positions)


class Biased(Wrapper):
    """Adds the bias of scores to `x` `[B, T, H, S]`."""

    def forward(self, x, context):
        index = context.tokens.index
        return x + self.inner()(index[:, :, None] - index[:, None, :]).swapaxes(1, 2).astype(x.dtype)


class Stored(Wrapper):
    """Gives back what a cache holds, in a call that keeps state."""

    def forward(self, x, context):
        return self.inner({"x": x}, context.tokens).values["x"] if self.stateful else x


class Connected(Wrapper):
    """Writes what it reads back to the stream, changed."""

    def forward(self, x, context):
        return self.inner.write(x, jnp.sin(self.inner.read(x, context)), context)


class Varied(Wrapper):
    """Takes `x` for queries, keys, values and what comes of them."""

    def forward(self, x, context):
        q, k, v = self.inner.heads(x, x, x, x.reshape(*x.shape[:2], -1), context)
        seen = self.inner.view(View({"k": k, "v": v}, context.tokens, aligned=True), context).values["v"]
        return self.inner.result(q[..., :1] + seen, x.reshape(*x.shape[:2], -1), context)


class Routed(Wrapper):
    """Multiplies each token by its first weight."""

    def forward(self, x, context):
        return x * self.inner(x).weights[:, :1].astype(x.dtype)


class Returned(Wrapper):
    """Sends each token to two experts that do nothing, and adds what comes back."""

    def forward(self, x, context):
        sent = self.inner.send(x, jnp.array([[0, 3], [1, 0]] * 4))
        return self.inner.combine(sent.rows, jnp.full((8, 2), 0.25), sent)


class Grouped(Wrapper):
    """Maps rows, each by the expert that it belongs to."""

    def forward(self, x, context):
        return self.inner(x, context.need("sizes"))


@dataclasses.dataclass(frozen=True)
class Interface:
    """How a parent uses a layer."""

    fields: dict[str, Any]  # All that a parent sets.
    shape: tuple[int, ...]  # Of what goes in, and comes out.
    optional: tuple[str, ...] = ()  # Fields that have a default.
    wrapper: Any = None  # For what is not itself a layer.


TOKENS = Tokens(jnp.arange(4)[None], jnp.array([[1, 1, 1, 1], [1, 1, 2, 2]]))
GIVEN = {"memory": normal(3, (2, 5, 8)), "sizes": jnp.array([2, 0, 5, 1])}
CONTEXT = Context(TOKENS, jnp.array([[0, 1, 2, 3], [0, 1, 0, 1]]), Causal() & SameSegment(), given=GIVEN)
LINEAR = {"in_shape": (2, 4), "in_axes": ("heads", None), "out_shape": (2, 4), "out_axes": ("heads", None)}
GROUPED = {"num_experts": 4, "in_dim": 8, "in_axis": "embed", "out_dim": 8, "out_axis": "mlp"}
HEADS = {"dim": 16, "num_heads": 4, "num_kv_heads": 4, "head_dim": 4}
INTERFACES: dict[type[Module], Interface] = {
    Norm: Interface({"dim": 8, "axis": "embed", "groups": 2}, (2, 4, 8), optional=("axis", "groups")),
    FeedForward: Interface({"dim": 8}, (2, 4, 8)),
    Linear: Interface(LINEAR, (2, 4, 2, 4), wrapper=Plain),
    Rotary: Interface({"head_dim": 4}, (2, 4, 3, 4), wrapper=Rotated),
    PositionEmbedding: Interface({"dim": 8}, (2, 4, 8), wrapper=Added),
    PositionBias: Interface({"num_heads": 3}, (2, 4, 3, 4), wrapper=Biased),
    Cache: Interface(
        {"entries": {"x": (8,)}, "axes": {"x": (None,)}, "window": None, "dtypes": {}},
        (2, 4, 8),
        optional=("dtypes",),
        wrapper=Stored,
    ),
    AttentionVariant: Interface(HEADS, (2, 4, 4, 4), wrapper=Varied),
    Connection: Interface({"dim": 8}, (2, 4, 8), wrapper=Connected),
    Mixer: Interface({"dim": 8}, (2, 4, 8)),
    Layer: Interface({"dim": 8}, (2, 4, 8)),
    Router: Interface({"dim": 8, "num_experts": 4}, (8, 8), wrapper=Routed),
    Dispatch: Interface({"num_experts": 4}, (8, 8), wrapper=Returned),
    GroupedLinear: Interface(GROUPED, (8, 8), wrapper=Grouped),
}

# Parts that are not under test are small, because most of the time here goes into compiling.
SMALL = {"mixer": Previous.Config(), "ffn": DenseFeedForward.Config(hidden_dim=4)}
PAIR = (mixer_only(Previous.Config()), Block.Config(**SMALL))
OUT_NORMS = {"mixer_out_norm": RMSNorm.Config(), "ffn_out_norm": RMSNorm.Config()}
PARALLEL = Block.Config(order="parallel", norm=RMSNorm.Config(), mixer_norm=None, ffn_norm=None, **SMALL)
CASES: list[tuple[type[Module], Module.Config]] = [
    (Norm, RMSNorm.Config()),
    (Norm, LayerNorm.Config()),
    (FeedForward, DenseFeedForward.Config(hidden_dim=12)),
    (FeedForward, GatedFeedForward.Config(hidden_dim=12)),
    (FeedForward, WeightedFeedForward.Config(inner=DenseFeedForward.Config(hidden_dim=4))),
    (FeedForward, MoEFeedForward.Config(hidden_dim=6, num_experts=4)),
    (Linear, DenseLinear.Config(bias=True)),
    (Linear, LowRank.Config(rank=3)),
    (Linear, LoRALinear.Config(rank=3)),
    (Linear, Int8Linear.Config(bias=True)),
    (Linear, Float8Linear.Config()),
    (Rotary, RoPE.Config()),
    (Rotary, LinearRoPE.Config(factor=2.0)),
    (Rotary, DynamicRoPE.Config(factor=2.0, original_length=3)),
    (Rotary, Llama3RoPE.Config()),
    (Rotary, YaRN.Config(factor=2.0, original_length=16, interleaved=True)),
    (Rotary, LongRoPE.Config(factor=2.0, original_length=3, short=(1.0, 1.5), long=(2.0, 8.0))),
    (Rotary, PartialRotary.Config()),
    (Rotary, NoRotary.Config()),
    (PositionEmbedding, LearnedPosition.Config(max_length=4)),
    (PositionEmbedding, SinusoidalPosition.Config(theta=100.0)),
    (PositionBias, ALiBi.Config()),
    (Cache, DenseCache.Config()),
    (Cache, PagedCache.Config(page=2)),
    (AttentionVariant, Differential.Config()),
    (Connection, Add.Config()),
    (Connection, Interpolated.Config()),
    (Mixer, Attention.Config(num_heads=4, num_kv_heads=2)),
    (Mixer, Attention.Config(num_heads=2, soft_cap=2.0, sinks=True, gate=DenseLinear.Config())),
    (Mixer, LatentAttention.Config(num_heads=2, query_rank=3, kv_rank=3, nope_dim=2, rope_dim=2, value_dim=3)),
    (Mixer, Mamba2.Config(num_heads=2, head_dim=2, state_dim=3, chunk=3)),
    (Mixer, GatedDeltaNet.Config(num_heads=2, key_head_dim=3, value_head_dim=2, chunk=3)),
    (Mixer, Previous.Config()),
    (Mixer, CrossAttention.Config(num_heads=2)),
    (Layer, Block.Config(**SMALL)),
    (Layer, Block.Config(mixer_norm=None, ffn_norm=None, **OUT_NORMS, **SMALL)),
    (Layer, Block.Config(**OUT_NORMS, **SMALL)),
    (Layer, PARALLEL),
    (Layer, mixer_only(Previous.Config())),
    (Layer, Repeat.Config(layer=Block.Config(**SMALL), num_layers=1)),
    (Layer, Repeat.Config(layer=PAIR, num_layers=3)),
    (Layer, Sequence.Config(layers=(Repeat.Config(layer=PAIR[0], num_layers=1),))),
    (Layer, Pair.Config(first=Block.Config(**SMALL), second=PARALLEL)),
    (Router, TopKRouter.Config(bias=True)),
    (Dispatch, Dropless.Config()),
    (Dispatch, Capacity.Config(factor=4.0)),  # Ample: what is dropped depends on the rows before it.
    (GroupedLinear, DenseGroupedLinear.Config(bias=True)),
    (GroupedLinear, LoRAGroupedLinear.Config(rank=3)),
]


def over(cases: list[tuple[type[Module], Module.Config]]) -> Any:
    return pytest.mark.parametrize("interface, cfg", cases, ids=[type(cfg).__qualname__[:-7] for _, cfg in cases])


each_case = over(CASES)
IN_MODEL = [case for case in CASES if not isinstance(case[1], CrossAttention.Config)]  # No memory is given there.


def filled(interface, cfg):
    return cfg.set(**INTERFACES[interface].fields)


def in_shape(interface, cfg) -> Any:
    """Returns a layer that maps an array to one of the same shape."""
    wrapper = INTERFACES[interface].wrapper
    return wrapper.Config(inner=filled(interface, cfg)) if wrapper else filled(interface, cfg)


def test_every_layer_has_joined():
    everything = [*vars(dovetail.nn).values(), *vars(support.models).values()]
    modules = {c for c in everything if inspect.isclass(c) and issubclass(c, Module)}
    abstract = {c for c in modules if inspect.isabstract(c)}
    abstract |= {AttentionVariant}  # Each of its methods has a default.
    assert set(INTERFACES) == abstract - {dovetail.nn.FrequencyRotary}  # A kind of `Rotary`, whose cases it has.
    joined = {type(filled(*case).build()) for case in CASES}
    # CausalConv, Dropout and Embedding have no interface; models are tested as models.
    alone = {dovetail.nn.CausalConv, dovetail.nn.Dropout, Embedding, Module, CausalLM}
    alone |= {Int8Cache, QuantisedLinear, QuantisedGroupedLinear}  # They round: nothing learns, and answers are others.
    alone |= {PackedEmbedding, PackedLinear}  # They compute with native kernels, in serving alone: nothing learns.
    assert joined == modules - abstract - alone - {dovetail.nn.LinearMap}  # What two interfaces have in common.


@each_case
def test_a_parent_sets_the_fields_of_the_interface_and_no_others(interface, cfg):
    fields = INTERFACES[interface].fields
    assert set(fields_of(interface.Config)) - set(fields_of(Module.Config)) == set(fields)
    required = set(fields) - set(INTERFACES[interface].optional)
    if required:
        with pytest.raises(ConfigError) as e:
            cfg.build()
        assert {line.strip().partition(":")[0] for line in str(e.value).splitlines()[1:-1]} == required
    assert issubclass(type(cfg.set(**fields).build()), interface)


@each_case
def test_the_config_survives_json_with_and_without_the_fields_of_the_parent(interface, cfg):
    for each in (cfg, filled(interface, cfg)):
        assert from_json(to_json(each), allow=("support",)) == each


@each_case
def test_initial_values_depend_on_the_key_and_the_path_alone(interface, cfg):
    model = filled(interface, cfg).build()
    initial = jax.jit(functools.partial(init, model))
    first, again, other = (initial(jax.random.key(seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
        assert np.isfinite(a).all()
        assert np.ptp(a) == 0 or not np.array_equal(a, b), "constant, or another value for another key"


def outcome(model, params, x):
    """What comes out, and gradients."""

    def loss(params, x):
        out = call(model, params, x, CONTEXT)[0]
        return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)


@each_case
def test_a_scan_is_a_loop_with_remat_and_gradients_are_finite(interface, cfg):
    layer = in_shape(interface, cfg)
    scan = loops.Repeat.Config(layer=layer, num_repeats=2)
    loop = loops.Repeat.Config(layer=layer.set(remat=Remat()), num_repeats=2, loop="unroll")
    params, x = random_params(scan.build()), normal(1, INTERFACES[interface].shape)

    @jax.jit  # One program: most of the time here goes into compiling.
    def both(params, x):
        # Of the loop, values alone: gradients under remat are compared in the tests of blocks.
        return outcome(scan.build(), params, x), call(loop.build(), params, x, CONTEXT)[0]

    scanned, looped = both(params, x)
    assert_same(scanned[0][1], looped)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(scanned))
    assert scanned[0][1].shape == x.shape
    unused = [g for g in jax.tree.leaves(scanned[1]) if not np.any(g)]
    assert not unused, "every parameter has an effect"


@each_case
def test_the_compute_dtype_is_that_of_the_result(interface, cfg):
    model = in_shape(interface, cfg).build()
    params = random_params(model)
    for dtype in (jnp.float32, jnp.bfloat16):
        x = normal(1, INTERFACES[interface].shape, dtype)
        context = CONTEXT.set(given={**GIVEN, "memory": GIVEN["memory"].astype(dtype)})
        run = functools.partial(call, model, dtype=dtype)
        out = jax.eval_shape(lambda params, x, run=run, context=context: run(params, x, context)[0], params, x)
        assert (out.shape, out.dtype) == (x.shape, dtype)


# In a model that knows nothing of the layer.

IDS = jnp.array([[1, 2, 3, 4], [5, 6, 7, 8]])
MODEL = CausalLM.Config(
    vocab_size=11,
    dim=8,
    position=LearnedPosition.Config(max_length=4),
    stack=Repeat.Config(layer=Block.Config(**SMALL), num_layers=1),
)


@functools.cache
def in_model(interface, cfg):
    """Returns a model in which the layer replaces all others of its kind, parameters, and the compiled logits."""
    before = MODEL
    if interface in (Rotary, PositionBias, Cache, AttentionVariant):
        mixer = Attention.Config(num_heads=2, position_bias=ALiBi.Config(), variant=AttentionVariant.Config())
        before = MODEL.set_in("stack.layer.mixer", mixer)
    if interface in (Router, Dispatch, GroupedLinear):
        before = MODEL.set_in("stack.layer.ffn", MoEFeedForward.Config(hidden_dim=6, num_experts=4))
    if interface is Layer:  # Which stand in each other.
        after = MODEL.set(stack=cfg)
    else:
        after = replace_all(interface.Config, cfg, drop="unplaced")(before)
        places = {path for path, _ in find(before, interface.Config)}
        assert places <= {path for path, _ in find(after, type(cfg))}, "nothing of the old kind is left"
    model = after.build()
    params = random_params(model)
    return model, params, jax.jit(lambda ids: call(model, params, ids)[0])


@over(IN_MODEL)
def test_a_layer_takes_the_place_of_any_other_in_a_model(interface, cfg):
    model, params, run = in_model(interface, cfg)
    logits = run(IDS)
    assert logits.shape == (2, 4, 11)
    assert np.isfinite(logits).all()
    changed = run(IDS.at[:, 2].set(9)) != logits
    assert changed[:, 2].any(), "a token matters to itself"
    np.testing.assert_array_equal(changed[:, :2], False, "and to none before it")

    def loss(params):
        return call(model, params, {"tokens": IDS, "targets": IDS, "weights": jnp.ones_like(IDS)}, method="loss")[0].sum

    assert jax.tree.structure(jax.eval_shape(jax.grad(loss), params)) == jax.tree.structure(params)


STATEFUL = (Mixer, Layer, PositionEmbedding, PositionBias, Cache, AttentionVariant, Connection)


@over([case for case in IN_MODEL if case[0] in STATEFUL])
def test_a_layer_decodes_in_a_model_as_it_trains(interface, cfg):
    model, params, run = in_model(interface, cfg)
    step = jax.jit(lambda ids, state: call(model, params, ids, state=state))
    sizes = {"batch": 2, "capacity": 4, "pages": 4, "row_pages": 2, "pages[2]": 4, "row_pages[2]": 2}
    first, collected = step(IDS[:, :2], started(model, params, IDS[:, :2], sizes=sizes))
    second, _ = step(IDS[:, 2:], collected.state)
    assert_same(jnp.concatenate([first, second], axis=1), run(IDS))
