# SPDX-License-Identifier: Apache-2.0
"""Generation: the compiled loop draws what a plain loop over the full forward would."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError
from dovetail.models import CausalLM
from dovetail.module import call, init
from dovetail.nn import Attention, Block, GatedFeedForward, Repeat
from dovetail.serve import Sampling, generate, sample
from support.models import gpt2, lm, random_params
from support.programs import shapes


@functools.cache
def small():
    block = Block.Config(
        mixer=Attention.Config(num_heads=2, num_kv_heads=1, window=5), ffn=GatedFeedForward.Config(hidden_dim=16)
    )
    model = CausalLM.Config(vocab_size=16, dim=8, stack=Repeat.Config(layer=block, num_layers=2)).build()
    # A wider spread of logits than at the start of training, so that draws differ.
    params = jax.jit(lambda key: jax.tree.map(lambda x: x * 3, init(model, key)))(jax.random.key(0))
    return model, params


PROMPTS = jnp.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8], [9, 0, 0, 0, 0]])
LENGTHS = jnp.array([3, 5, 1])
GREEDY = Sampling(temperature=0.0)


@functools.cache
def greedy(max_new=6, stop=()):
    model, params = small()
    run = functools.partial(generate, model, max_new=max_new, sampling=GREEDY.set(stop=stop))
    return np.asarray(jax.jit(lambda p: run(p, PROMPTS, LENGTHS, key=jax.random.key(0)))(params))


def test_greedy_generation_equals_running_the_whole_sequence_each_time():
    model, params = small()
    forward = jax.jit(lambda ids: call(model, params, ids)[0])
    ids = np.pad(PROMPTS, ((0, 0), (0, 6)))  # Zeros stand for what is not there yet: no token sees those behind it.
    rows, ends = np.arange(3), np.asarray(LENGTHS)
    for step in range(6):
        ids[rows, ends + step] = np.argmax(np.asarray(forward(ids))[rows, ends + step - 1], axis=1)
    np.testing.assert_array_equal(greedy(), [ids[row, end : end + 6] for row, end in enumerate(ends)])


def test_a_row_ends_with_any_of_the_stop_tokens_and_others_go_on():
    free = greedy()
    # One stop token ends some rows; with the first token of every row, all end at once.
    for stop in ((int(free[0, 2]),), (int(free[0, 2]), int(free[1, 3])), tuple(free[:, 0].tolist())):
        for row, want in zip(greedy(stop=stop), free, strict=True):
            ends = np.flatnonzero(np.isin(want, stop))
            length = ends[0] + 1 if len(ends) else 6
            np.testing.assert_array_equal(row[:length], want[:length])
            assert (row[length:] == row[length - 1]).all(), "filled with the token that ended it"


def test_fewer_new_tokens_are_the_first_of_more():
    np.testing.assert_array_equal(greedy(max_new=1), greedy()[:, :1])


def test_the_prompt_makes_logits_for_one_token_of_each_row_alone():
    model = lm().build()
    run = functools.partial(generate, model, key=jax.random.key(0), max_new=2)
    made = shapes(jax.make_jaxpr(lambda p: run(p, PROMPTS, LENGTHS))(random_params(model)))
    assert (3, 11) in made
    assert (3, 5, 11) not in made


@pytest.mark.parametrize("max_length, max_new", [(4, 1), (7, 4)])
def test_more_tokens_than_there_are_positions_are_refused_before_any_is_drawn(max_length, max_new):
    model = gpt2(max_length=max_length).build()
    params = jax.eval_shape(lambda: random_params(model))  # Without values: nothing can be computed.
    run = functools.partial(generate, model, params, PROMPTS, LENGTHS, key=jax.random.key(0))
    with pytest.raises(ConfigError) as e:
        run(max_new=max_new)
    assert str(e.value) == (
        f"(root) (CausalLM): a prompt of 5 tokens and {max_new} new ones, but max_length is {max_length}.\n"
        "  Use a shorter prompt, or fewer new tokens."
    )


def test_the_last_new_token_needs_no_position_as_it_is_not_read():
    model = gpt2(max_length=7).build()
    run = functools.partial(generate, model, max_new=3)
    made = jax.eval_shape(lambda p: run(p, PROMPTS, LENGTHS, key=jax.random.key(0)), random_params(model))
    assert made.shape == (3, 3)


def test_sampling_depends_on_the_key_alone():
    model, params = small()
    run = jax.jit(lambda key: generate(model, params, PROMPTS, LENGTHS, key=key, max_new=8))
    first, again, other = (np.asarray(run(jax.random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def left_by(logits, cfg):
    """Returns the probabilities that the limits leave, by their definitions: each limit cuts, then shares are anew."""
    weights = np.exp((logits - logits.max()) / cfg.temperature)
    order = np.argsort(-weights)[: cfg.top_k]
    share = weights[order] / weights[order].sum()
    kept = order[: np.searchsorted(np.cumsum(share), cfg.top_p or 1.0) + 1]
    kept = kept[weights[kept] >= (cfg.min_p or 0.0) * weights.max()]
    share = np.zeros(len(logits))
    share[kept] = weights[kept] / weights[kept].sum()
    return share


CUTS = [
    Sampling(temperature=0.5),
    Sampling(top_k=3),
    Sampling(top_p=0.6),
    Sampling(min_p=0.3),
    Sampling(temperature=2.0, top_k=4, top_p=0.7, min_p=0.5),
]


@pytest.mark.parametrize("cfg", CUTS, ids=lambda cfg: str(cfg))
def test_frequencies_follow_the_definition_of_each_limit(cfg):
    logits = np.array([0.3, 1.5, -1.0, 2.0, 1.1, -0.4])
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: sample(jnp.asarray(logits[None]), key, cfg)))(keys)).ravel()
    found = np.bincount(drawn, minlength=6) / len(drawn)
    want = left_by(logits, cfg)
    np.testing.assert_array_equal(found > 0, want > 0)
    # Standard error of a share at 20,000 draws is below 0.0036; four of them.
    np.testing.assert_allclose(found, want, atol=0.0145)


@given(st.integers(0, 10_000), st.floats(0.2, 3.0), st.integers(1, 8), st.floats(0.05, 1.0))
@settings(max_examples=15)
def test_drawn_tokens_are_among_those_that_top_k_and_top_p_leave(seed, temperature, top_k, top_p):
    logits = jax.random.normal(jax.random.key(seed), (1, 8)) * 2
    cfg = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    keys = jax.random.split(jax.random.key(seed + 1), 40)
    drawn = set(np.asarray(jax.vmap(lambda key: sample(logits, key, cfg))(keys)).ravel().tolist())
    scaled = np.asarray(logits, np.float64)[0] / temperature
    order = np.argsort(-scaled)[:top_k]
    weights = np.exp(scaled[order] - scaled[order].max())
    weights /= weights.sum()
    before = np.cumsum(weights) - weights
    # At a boundary within float32 rounding either answer is right.
    assert drawn <= set(order[before < top_p + 1e-5].tolist())


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"temperature": -1.0}, "temperature is -1.0, expected 0 or more."),
        ({"top_k": 0}, "top_k is 0, expected at least 1, or none."),
        ({"top_p": 0.0}, "top_p is 0.0, expected 0 < top_p <= 1, or none."),
        ({"min_p": 1.5}, "min_p is 1.5, expected 0 < min_p <= 1, or none."),
    ],
)
def test_values_that_make_no_sense_are_refused(fields, text):
    model, params = small()
    with pytest.raises(ConfigError) as e:
        generate(model, params, PROMPTS, LENGTHS, key=jax.random.key(0), max_new=1, sampling=Sampling(**fields))
    assert str(e.value) == text


def test_no_new_tokens_are_refused():
    with pytest.raises(ConfigError) as e:
        greedy(max_new=0)
    assert str(e.value) == "max_new is 0, expected at least 1."
