# SPDX-License-Identifier: Apache-2.0
"""The language model is its definition; packing, padding and chunks change nothing; the future is not seen."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, modify
from dovetail.models import CausalLM
from dovetail.module import ModuleError, abstract, call, init, specs
from dovetail.nn import (
    Attention,
    Block,
    CrossAttention,
    DenseFeedForward,
    Dropout,
    GatedFeedForward,
    LearnedPosition,
    Repeat,
    RMSNorm,
)
from dovetail.parallel import Mesh, layout_of
from support import reference
from support.compare import assert_same
from support.models import Previous, context, gpt2, hybrid, lm, random_params
from support.numeric import BFLOAT16, assert_close, check
from support.programs import equations, shapes

IDS = jnp.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
TARGETS = jnp.array([[2, 3, 4, 5, 6], [0, 0, 9, 10, 1]])
WEIGHTS = jnp.array([[1.0, 1.0, 1.0, 0.5, 0.0], [1.0, 1.0, 2.0, 1.0, 1.0]])
SEGMENTS = jnp.array([[1, 1, 1, 2, 2], [1, 2, 2, 2, 0]])
BATCH = {"tokens": IDS, "targets": TARGETS, "weights": WEIGHTS}


@functools.cache
def program(cfg):
    """Returns random parameters and the compiled forward function."""
    model = cfg.build()
    params = random_params(model)
    return params, jax.jit(lambda ids, **inputs: call(model, params, ids, **inputs)[0])


@pytest.mark.parametrize(
    "cfg, definition",
    [
        (lm(), reference.causal_lm),  # Untied, grouped queries, gated.
        (gpt2(), functools.partial(reference.causal_lm, kind="layer", theta=None)),  # Tied, learned positions, biases.
    ],
    ids=["llama", "gpt2"],
)
def test_logits_are_their_definition(cfg, definition):
    model = cfg.build()
    check(lambda p: call(model, p, IDS)[0], lambda p: definition(p, np.asarray(IDS)), random_params(model))


def test_the_loss_is_its_definition_with_documents_weights_z_loss_and_chunks():
    model = lm(num_layers=1, head=None, z_loss=0.1, loss_chunk=3).build()

    def loss(params):
        found, collected = call(model, params, {**BATCH, "segments": SEGMENTS}, method="loss")
        return (found.sum, found.weight, found.metrics["accuracy"]), collected.losses

    def definition(params):
        logits = reference.causal_lm(params, np.asarray(IDS), segments=np.asarray(SEGMENTS)).reshape(10, -1)
        sums = reference.token_loss(logits, np.asarray(TARGETS).ravel(), np.float64(WEIGHTS).ravel(), 0.1)
        return (*sums[:2], (sums[2], sums[1])), {"z_loss": sums[3] / sums[1]}

    check(loss, definition, random_params(model))


def test_log_probs_of_targets_are_their_definition_with_documents_weights_and_chunks():
    model = lm(num_layers=1, loss_chunk=3).build()

    def definition(params):
        logits = reference.causal_lm(params, np.asarray(IDS), segments=np.asarray(SEGMENTS))
        exact = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        chosen = np.take_along_axis(exact, np.asarray(TARGETS)[..., None], -1)[..., 0]
        return np.where(np.asarray(WEIGHTS) == 0, 0, chosen)

    batch = {**BATCH, "segments": SEGMENTS}
    check(lambda p: call(model, p, batch, method="log_probs")[0], definition, random_params(model))
    del batch["weights"]
    every = call(model, random_params(model), batch, method="log_probs")[0]
    assert (every < 0).all()


@pytest.mark.parametrize("cfg", [lm(loss_chunk=4), gpt2().set(loss_chunk=4)], ids=["untied", "tied"])
def test_no_program_of_the_loss_has_the_logits_of_all_tokens(cfg):
    def logits(cfg):
        model = cfg.build()
        params = random_params(model)

        def loss(params):
            chosen = call(model, params, BATCH, method="log_probs")[0]
            return call(model, params, BATCH, method="loss")[0].sum + jnp.sum(chosen)

        made = shapes(jax.make_jaxpr(jax.value_and_grad(loss))(params))
        return {math.prod(shape[:-1]) for shape in made if shape[-1:] == (11,) and shape != (8, 11)}

    assert max(logits(cfg)) == 4
    assert max(logits(cfg.set(loss_chunk=10))) == 10


def test_embedding_and_logits_are_scaled_and_logits_are_capped():
    model = lm(num_layers=1, embedding_scale=3.0, logit_scale=0.5, logit_cap=2.0).build()

    def definition(p):
        plain = {**p, "embedding": {"table": 3 * p["embedding"]["table"]}}
        return 2 * np.tanh(0.5 * reference.causal_lm(plain, np.asarray(IDS)) / 2)

    check(lambda p: call(model, p, IDS)[0], definition, random_params(model))


def test_a_scaled_embedding_does_not_scale_tied_logits():
    cfg = lm(num_layers=1, head=None)
    params = random_params(cfg.build())
    quiet = jax.tree.map(jnp.zeros_like, params["stack"])  # Logits of normed embeddings: their scale is lost.
    plain, scaled = (call(c.build(), {**params, "stack": quiet}, IDS)[0] for c in (cfg, cfg.set(embedding_scale=9.0)))
    assert_close(scaled, plain, 1e-3)


def test_a_scaled_embedding_is_rounded_to_the_compute_dtype():
    model = lm(num_layers=1, embedding_scale=3.0).build()
    made = jax.make_jaxpr(lambda p: call(model, p, IDS, dtype=jnp.bfloat16)[0])(random_params(model))
    factors = [eqn for eqn, _ in equations(made) if eqn.primitive.name == "mul" and 3.0 in map(_literal, eqn.invars)]
    assert [eqn.outvars[0].aval.dtype for eqn in factors] == [jnp.bfloat16]


def _literal(variable):
    return float(variable.val) if hasattr(variable, "val") and np.ndim(variable.val) == 0 else None


def test_what_is_not_asked_for_costs_no_equation():
    cfg = lm(num_layers=1)
    model = cfg.build()
    params, x = random_params(model), jnp.zeros((2, 5, 8))

    def count(function, *args):
        return sum(1 for _ in equations(jax.make_jaxpr(function)(*args)))

    def part(name, *args, **inputs):
        fields = {"vocab_size": 11, "dim": 8} if name == "embedding" else {"dim": 8}
        child = getattr(cfg, name).set(**fields).build()
        return count(lambda p, *args: call(child, p, *args, **inputs)[0], params[name], *args)

    parts = part("embedding", IDS) + part("stack", x, context=context(5)) + part("norm", x)
    whole = count(lambda p: call(model, p, IDS)[0], params)
    places, head = 2, 1  # Numbers each place and gives it a row; one product.
    assert whole == parts + places + head
    losses = [
        count(lambda p, m=m: call(m, p, BATCH, method="loss")[0], params)
        for m in (model, cfg.set(logit_scale=2.0).build())
    ]
    assert losses[1] == losses[0] + 1


# What does not matter.


@pytest.mark.parametrize("cfg", [lm(), lm(attention={"window": 2}), gpt2()], ids=["llama", "window", "gpt2"])
def test_a_future_token_changes_nothing_before_it(cfg):
    rows = np.tile([1, 2, 3, 4, 5], (6, 1))
    rows[range(5), range(5)] = 9  # Row i differs from the last one at place i alone.
    logits = np.asarray(program(cfg)[1](jnp.asarray(rows)))
    for i in range(5):
        np.testing.assert_array_equal(logits[i, :i], logits[5, :i])
        assert (logits[i, i] != logits[5, i]).all(), "but it changes its own"


@pytest.mark.parametrize("cfg", [lm(attention={"window": 2}), gpt2(), hybrid()], ids=["window", "gpt2", "hybrid"])
def test_packed_documents_are_as_if_alone_and_padding_is_as_if_absent(cfg):
    _, run = program(cfg)
    documents = jnp.array([[1, 2, 3], [4, 5, 6]])
    row = jnp.array([[1, 2, 3, 4, 5, 6, 0, 0], [1, 2, 3, 4, 5, 6, 7, 8]])
    inputs = {
        "positions": jnp.array([[0, 1, 2, 0, 1, 2, 0, 0]] * 2),
        "segments": jnp.array([[1, 1, 1, 2, 2, 2, 0, 0]] * 2),
    }
    packed = run(row, **inputs)
    assert_same(packed[0, :6].reshape(2, 3, -1), run(documents))
    np.testing.assert_array_equal(packed[0, :6], packed[1, :6], "whatever the padding is")
    assert not np.allclose(run(row)[0, 3:6], packed[0, 3:6], atol=1e-3), "without segments, documents see each other"


def test_jit_changes_nothing():
    params, run = program(lm())
    assert_same(run(IDS), call(lm().build(), params, IDS)[0])


def test_the_sums_of_the_loss_add_up_over_any_split_of_the_batch():
    model = lm().build()
    params, _ = program(lm())
    run = jax.jit(lambda batch: call(model, params, batch, method="loss")[0])
    halves = [run({name: x[i : i + 1] for name, x in BATCH.items()}) for i in range(2)]
    assert_same(run(BATCH), jax.tree.map(jnp.add, *halves))


# Dtypes, dropout, parameters.


def test_in_bfloat16_logits_are_bfloat16_and_the_loss_is_float32():
    model = lm().build()
    params, run = program(lm())
    low = jax.jit(lambda ids: call(model, params, ids, dtype=jnp.bfloat16)[0])(IDS)
    assert low.dtype == jnp.bfloat16
    # Parameters too are rounded; about forty roundings in a row through two layers, which partly cancel.
    assert_close(low, run(IDS), 20 * BFLOAT16)

    def loss(params):
        return call(model, params, BATCH, method="loss", dtype=jnp.bfloat16)[0]

    sums, gradients = jax.eval_shape(lambda p: (loss(p), jax.grad(lambda p: loss(p).sum)(p)), params)
    assert {x.dtype for x in jax.tree.leaves(sums)} == {jnp.dtype(jnp.float32)}
    assert {x.dtype for x in jax.tree.leaves(gradients)} == {jnp.dtype(jnp.float32)}, "as the parameters are kept"


def test_dropout_of_the_embedding_acts_in_training_only():
    model = lm(num_layers=1, dropout=Dropout.Config(rate=0.5)).build()
    params, run = program(lm(num_layers=1))
    train = jax.jit(lambda key: call(model, params, IDS, train=True, rng=key)[0])
    first, again, other = train(jax.random.key(0)), train(jax.random.key(0)), train(jax.random.key(1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other, atol=1e-3)
    assert_same(jax.jit(lambda ids: call(model, params, ids)[0])(IDS), run(IDS))


def test_initial_values_do_not_depend_on_what_else_is_in_the_model():
    layer = Block.Config(mixer=Previous.Config(), ffn=DenseFeedForward.Config(hidden_dim=4))
    small = lm(stack=Repeat.Config(layer=layer, num_layers=1))
    more = small.set(head=None, position=LearnedPosition.Config(max_length=4)).set_in("stack.num_layers", 2)
    few, many = (init(cfg.build(), jax.random.key(0)) for cfg in (small, more))
    np.testing.assert_array_equal(few["embedding"]["table"], many["embedding"]["table"])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b[0]), few["stack"], many["stack"])
    assert not np.array_equal(few["head"]["weight"], init(small.build(), jax.random.key(1))["head"]["weight"])


def count(cfg):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract(cfg.build())))


def test_gpt2_small_has_124_439_808_parameters():
    dim, hidden, layers = 768, 3072, 12
    attention = 4 * (dim * dim + dim)  # Query, key, value, out, with biases.
    ffn = dim * hidden + hidden + hidden * dim + dim
    norms = 2 * 2 * dim  # Two of them, scale and bias.
    embeddings = 50257 * dim + 1024 * dim
    by_hand = embeddings + layers * (attention + ffn + norms) + 2 * dim
    assert by_hand == 124_439_808
    assert count(gpt2(50257, dim, layers, num_heads=12, max_length=1024, hidden_dim=hidden)) == by_hand


def test_llama_3_8b_has_8_030_261_248_parameters():
    dim, hidden, layers, heads, kv_heads, width = 4096, 14336, 32, 32, 8, 128
    attention = 2 * dim * heads * width + 2 * dim * kv_heads * width
    by_hand = 2 * 128256 * dim + layers * (attention + 3 * dim * hidden + 2 * dim) + dim
    assert by_hand == 8_030_261_248
    layer = Block.Config(
        mixer=Attention.Config(num_heads=heads, num_kv_heads=kv_heads), ffn=GatedFeedForward.Config(hidden_dim=hidden)
    )
    stack = Repeat.Config(layer=layer, num_layers=layers)
    cfg = CausalLM.Config(vocab_size=128256, dim=dim, stack=stack)
    assert count(cfg) == by_hand
    spec = specs(cfg.build())
    assert spec["head"]["weight"].axes == ("embed", "vocab")
    assert spec["stack"]["layer"]["mixer"]["key"]["weight"].shape == (layers, dim, kv_heads, width)


# What is refused.


def test_everything_that_is_missing_is_named_at_once():
    with pytest.raises(ConfigError) as e:
        CausalLM.Config().build()
    assert str(e.value) == (
        "CausalLM.Config: 5 required fields are not set:\n"
        "  vocab_size: int\n"
        "  dim: int\n"
        "  stack.layer.mixer.num_heads: int\n"
        "  stack.layer.ffn.hidden_dim: int\n"
        "  stack.num_layers: int\n"
        "  Set them, as in cfg.set_in('vocab_size', ...)."
    )


@pytest.mark.parametrize(
    "path, value, text",
    [
        (
            "stack.layer.mixer.num_heads",
            3,
            "stack.layer.mixer (Attention): num_kv_heads (2) must divide num_heads (3).",
        ),
        ("stack.layer.mixer.head_dim", 3, "stack.layer.mixer.rotary (RoPE): head_dim is 3, expected an even number."),
        ("stack.layer.mixer.kernel.block", 0, "stack.layer.mixer.kernel: block is 0, expected at least 1."),
        (
            "stack.num_layers",
            0,
            "stack (Repeat): num_layers is 0, for 1 layers in turn.\n"
            "  Expected at least one layer, and a number of at least as many.",
        ),
        ("dropout.rate", 1.0, "dropout (Dropout): rate is 1.0, expected 0 <= rate < 1."),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(path, value, text):
    with pytest.raises(ConfigError) as e:
        lm().set_in(path, value).build()
    assert str(e.value) == text


@pytest.mark.parametrize("chunk", [0, -2])
def test_a_chunk_of_nothing_is_refused(chunk):
    with pytest.raises(ConfigError) as e:
        lm(loss_chunk=chunk).build()
    assert str(e.value) == f"(root) (CausalLM): loss_chunk is {chunk}, expected at least 1."


@pytest.mark.parametrize("cap", [0.0, -1.0])
def test_a_cap_that_caps_everything_is_refused(cap):
    with pytest.raises(ConfigError) as e:
        lm(logit_cap=cap).build()
    assert str(e.value) == f"(root) (CausalLM): logit_cap is {cap}, expected more than 0, or none."


def test_lengths_without_state_are_refused():
    params, _ = program(lm())
    with pytest.raises(ModuleError, match="lengths"):
        jax.eval_shape(lambda: call(lm().build(), params, IDS, lengths=jnp.array([1, 2])))


def test_chunks_of_a_device_change_nothing_on_a_mesh():
    """Where each device has several chunks of tokens, as it has in all large runs."""
    ids = jax.random.randint(jax.random.key(0), (8, 16), 0, 30)
    batch = {"tokens": ids, "targets": ids, "weights": jnp.ones(ids.shape)}

    def gradient(cfg, mesh):
        model = cfg.build()
        params, layout = init(model, jax.random.key(1)), layout_of(mesh)

        def loss(params):
            found = call(model, params, batch, method="loss", layout=layout)[0].sum
            chosen = call(model, params, batch, method="log_probs", layout=layout)[0]
            return found, found + jnp.sum(chosen * jnp.cos(jnp.arange(16.0)))

        with jax.set_mesh(mesh.on()):
            run = jax.jit(lambda p: (loss(p), [jax.grad(lambda p, i=i: loss(p)[i])(p) for i in range(2)]))
            return run(params)

    cfg = lm().set(vocab_size=30)
    whole = gradient(cfg, Mesh())
    split = gradient(cfg.set(loss_chunk=4), Mesh(data=2, fsdp=2))
    # As tools/sharding.py allows: 2e-5 of the largest element of each.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * np.max(np.abs(a))), whole, split)


def test_a_field_of_a_batch_reaches_the_layers_that_ask_for_it():
    cross = {"cross": CrossAttention.Config(num_heads=2), "cross_norm": RMSNorm.Config()}
    cfg = modify(Block.Config, lambda block: block.set(**cross))(lm(given=("memory",)))
    model, key = cfg.build(), jax.random.key(0)
    params, memory = random_params(model), jax.random.normal(key, (2, 3, 8))
    loss = jax.jit(lambda batch: call(model, params, batch, method="loss")[0].sum)
    other = memory.at[1].set(0.0)
    assert loss({**BATCH, "memory": memory}) != loss({**BATCH, "memory": other})
    logits, _ = call(model, params, IDS, given={"memory": memory})
    scores = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), np.asarray(TARGETS)[..., None], -1)[..., 0]
    assert_close(loss({**BATCH, "memory": memory}), -np.sum(scores * np.asarray(WEIGHTS)), 1e-5)
    with pytest.raises(ModuleError, match="the context has no 'memory'"):
        call(model, params, IDS)


def test_a_batch_of_groups_is_an_error_that_says_who_takes_them():
    batch = {name: jnp.zeros((2, 3, 4), jnp.int32) for name in ("tokens", "targets", "weights")}
    model = lm().build(path="model")
    with pytest.raises(ConfigError) as e:
        call(model, init(model, jax.random.key(0)), batch, method="loss")
    assert str(e.value) == (
        "model (CausalLM): the tokens of a batch are [2, 3, 4], expected [B, T].\n"
        "  Rows that are groups are for an objective that compares their sequences, as examples/dpo.py does."
    )
