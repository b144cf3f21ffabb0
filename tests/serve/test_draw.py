# SPDX-License-Identifier: Apache-2.0
"""Tokens drawn on the device: compared with float64 references, with `sample`, and with sums over all outcomes."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.serve import Sampling, sample
from dovetail.serve._draw import (
    Counts,
    DrawParams,
    acceptance,
    add_tokens,
    count_tokens,
    draw,
    greedy,
    make_counts,
    probabilities,
    residual,
    score,
    verify,
)

ROWS, SIZE = 4, 37  # A vocabulary that is no multiple of 32.


def params_of(rows=ROWS, **values):
    """Parameters of rows: a value for all, or one for each."""
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition": 1.0, "presence": 0.0}
    neutral |= {"frequency": 0.0, "seed": 0, "choice": 0, "number": 0}
    types = {"top_k": np.int32, "seed": np.uint32, "choice": np.int32, "number": np.int32}
    found = {
        name: jnp.asarray(np.broadcast_to(np.asarray(values.pop(name, value), types.get(name, np.float32)), rows))
        for name, value in neutral.items()
    }
    return DrawParams(**found, **values)


def logits_of(seed, rows=ROWS, size=SIZE, scale=2.0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(rows, size)) * scale, jnp.float32)


def bits_of(allowed):
    """Packs booleans `[R, V]` as words of 32 bits."""
    rows, size = allowed.shape
    padded = np.zeros((rows, -(-size // 32) * 32), np.uint8)
    padded[:, :size] = allowed
    return jnp.asarray(np.packbits(padded, axis=1, bitorder="little").view("<i4").astype(np.int32))


def reference(logits, how, prompt=(), output=(), bias=None, allowed=None):
    """The probabilities of one row, in float64, token by token: written from the definitions of the parameters."""
    x = [float(each) for each in np.asarray(logits, np.float64)]
    for token, value in (bias or {}).items():
        x[token] += value
    for token in {*prompt, *output}:
        x[token] = x[token] / how["repetition"] if x[token] > 0 else x[token] * how["repetition"]
    for token in output:  # Once for each time it is there.
        x[token] -= how["frequency"]
    for token in set(output):
        x[token] -= how["presence"]
    left = [token for token in range(len(x)) if allowed is None or allowed[token]]
    if how["temperature"] == 0:
        best = max(left, key=lambda token: (x[token], -token))
        return np.eye(len(x))[best]
    x = [each / how["temperature"] for each in x]
    left.sort(key=lambda token: -x[token])
    if how["top_k"]:
        left = [token for token in left if x[token] >= x[left[min(how["top_k"], len(left)) - 1]]]
    if how["top_p"] < 1:
        weights = np.exp([x[token] - x[left[0]] for token in left])
        above = np.concatenate([[0], np.cumsum(weights / weights.sum())[:-1]])
        needed = [x[token] for token, share in zip(left, above, strict=True) if share < how["top_p"]]
        left = [token for token in left if x[token] >= min(needed)]
    left = [token for token in left if np.exp(x[token] - x[left[0]]) >= how["min_p"]]
    probs = np.zeros(len(x))
    probs[left] = np.exp([x[token] - x[left[0]] for token in left])
    return probs / probs.sum()


@functools.cache
def compiled(name, **static):
    functions = {"draw": draw, "probabilities": probabilities, "verify": verify}
    functions |= {"acceptance": acceptance, "residual": residual, "count": count_tokens}
    return jax.jit(functools.partial(functions[name], **static))


HOW = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 0.9, 1.0, 1.7]),
        "top_k": st.sampled_from([0, 1, 3, 20, SIZE, 99]),
        "top_p": st.sampled_from([0.05, 0.5, 0.93, 1.0]),
        "min_p": st.sampled_from([0.0, 0.02, 0.3, 1.0]),
        "repetition": st.sampled_from([0.7, 1.0, 1.4]),
        "presence": st.sampled_from([-1.0, 0.0, 0.8]),
        "frequency": st.sampled_from([-0.5, 0.0, 0.6]),
    }
)


@settings(max_examples=60)
@given(how=st.lists(HOW, min_size=ROWS, max_size=ROWS), seed=st.integers(0, 2**20))
def test_probabilities_equal_a_float64_reference_for_rows_of_any_parameters(how, seed):
    rng = np.random.default_rng(seed)
    logits = logits_of(seed)
    slots = rng.permutation(ROWS + 2)[:ROWS]
    texts = [(rng.integers(0, SIZE, 5), rng.integers(0, SIZE, 6)) for _ in range(ROWS)]
    counts = make_counts(ROWS + 2, SIZE)
    for slot, (prompt, output) in zip(slots, texts, strict=True):
        counts = count_tokens(counts, jnp.int32(slot), jnp.asarray(prompt), jnp.asarray(output))
    bias_ids = np.stack([rng.permutation(SIZE)[:3] for _ in range(ROWS)])
    bias = rng.normal(size=(ROWS, 3)) * 3
    allowed = rng.random((ROWS, SIZE)) < 0.6
    allowed[np.arange(ROWS), rng.integers(0, SIZE, ROWS)] = True
    params = params_of(
        ROWS,
        **{name: [each[name] for each in how] for name in how[0]},
        mask=bits_of(allowed),
        bias_ids=jnp.asarray(np.pad(bias_ids, ((0, 0), (0, 1)), constant_values=-1)),
        bias=jnp.asarray(np.pad(bias, ((0, 0), (0, 1)), constant_values=9.0), jnp.float32),
    )
    got = np.asarray(compiled("probabilities")(logits, params, counts, jnp.asarray(slots)))
    for row in range(ROWS):
        added = dict(zip(bias_ids[row].tolist(), bias[row], strict=True))
        want = reference(logits[row], how[row], *texts[row], bias=added, allowed=allowed[row])
        np.testing.assert_allclose(got[row], want, atol=3e-6)
        assert ((got[row] > 0) == (want > 0)).all()


@settings(max_examples=40)
@given(how=HOW, seed=st.integers(0, 2**31), tied=st.booleans())
def test_a_row_is_drawn_as_sample_draws_with_its_key(how, seed, tied):
    logits = logits_of(seed)
    if tied:
        logits = jnp.round(logits)  # Many are equal.
    sampling = Sampling(
        temperature=how["temperature"],
        top_k=how["top_k"] or None,
        top_p=how["top_p"],
        min_p=how["min_p"] or None,
    )
    params = params_of(**how, seed=seed, choice=np.arange(ROWS), number=7)
    tokens = compiled("draw")(logits, params).tokens
    key = jax.random.key(seed, impl="threefry2x32")
    for row in range(ROWS):
        own = jax.random.fold_in(jax.random.fold_in(key, row), 7)
        assert int(tokens[row]) == int(sample(logits[row : row + 1], own, sampling)[0])


def test_top_p_keeps_all_tokens_that_are_equal_to_the_last_one_needed():
    logits = jnp.log(jnp.array([[0.125, 0.5, 0.125, 0.25]]))
    for top_p, kept in ((0.4, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 4)):
        found = probabilities(logits, params_of(1, top_p=top_p))
        assert int((found > 0).sum()) == kept, top_p


def test_zeros_of_either_sign_are_equal():
    logits = jnp.array([[0.0, -0.0, 0.0, -0.0, -1.0]])
    for limit in ({"top_k": 1}, {"top_k": 2}, {"top_p": 0.1}):
        assert np.flatnonzero(compiled("probabilities")(logits, params_of(1, **limit))[0]).tolist() == [0, 1, 2, 3]


def test_a_huge_bias_leaves_no_nan():
    bias = {"bias_ids": jnp.array([[3, 1, 2]]), "bias": jnp.array([[3e38, 3e38, -3e38]])}
    for temperature in (0.0, 1e-4, 1.0):
        params = params_of(1, temperature=temperature, top_p=0.9, **bias)
        assert int(compiled("draw")(jnp.zeros((1, 5)), params).tokens[0]) in (1, 3)
        assert float(compiled("probabilities")(jnp.zeros((1, 5)), params).sum()) == 1


def test_top_p_comes_after_top_k():
    logits = jnp.log(jnp.array([[0.4, 0.3, 0.2, 0.1]]))
    # Of the two that top_k leaves, the first has 4/7 of the probability.
    assert np.flatnonzero(probabilities(logits, params_of(1, top_k=2, top_p=0.5))[0]).tolist() == [0]
    assert np.flatnonzero(probabilities(logits, params_of(1, top_k=2, top_p=0.6))[0]).tolist() == [0, 1]


def test_a_row_gets_the_same_token_in_any_batch_and_any_slot():
    logits, counts = logits_of(1, rows=8), make_counts(9, SIZE)
    text = jnp.arange(5)
    for slot in (2, 7):
        counts = count_tokens(counts, jnp.int32(slot), text, text)
    rng = np.random.default_rng(2)
    values = {"temperature": rng.uniform(0, 2, 8), "top_k": rng.integers(0, 9, 8), "top_p": rng.uniform(0.3, 1, 8)}
    values |= {"repetition": rng.uniform(0.5, 2, 8), "presence": rng.uniform(-1, 1, 8), "seed": np.arange(8) % 3}
    values |= {"choice": np.arange(8) % 2, "number": np.arange(8)}
    run = compiled("draw", alternatives=3)
    whole = run(logits, params_of(8, **values), counts, jnp.full(8, 2))
    for order in (np.arange(8)[::-1], rng.permutation(8), np.array([5]), np.array([3, 3, 1])):
        some = params_of(len(order), **{name: value[order] for name, value in values.items()})
        again = run(logits[order], some, counts, jnp.full(len(order), 7))
        for got, want in zip(again, whole, strict=True):
            np.testing.assert_allclose(got, want[order], rtol=1e-6)


def test_seed_choice_and_number_each_give_other_random_numbers():
    logits = jnp.zeros((1, 1000))
    run = compiled("draw")
    found = {
        (seed, choice, number): int(run(logits, params_of(1, seed=seed, choice=choice, number=number)).tokens[0])
        for seed, choice, number in itertools.product((0, 1, 2**32 - 1), (0, 1), (0, 1, 5))
    }
    assert len(set(found.values())) >= len(found) - 2  # Of 18 draws among 1000, a pair may be equal.


def test_log_probabilities_are_those_of_the_model_whatever_changes_the_draw():
    logits = logits_of(3).astype(jnp.bfloat16)
    allowed = np.zeros((ROWS, SIZE), bool)
    allowed[:, 36] = True
    counts = count_tokens(make_counts(1, SIZE), jnp.int32(0), jnp.array([36]), jnp.array([36]))
    params = params_of(temperature=0.2, top_k=2, repetition=3.0, presence=2.0, mask=bits_of(allowed))
    found = compiled("draw", alternatives=5)(logits, params, counts, jnp.zeros(ROWS, jnp.int32))
    exact = np.asarray(logits, np.float64)
    exact = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    assert found.tokens.tolist() == [36] * ROWS
    assert found.logprobs.dtype == jnp.float32
    np.testing.assert_allclose(found.logprobs, exact[:, 36], rtol=1e-5)
    order = np.argsort(-exact, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(found.top_ids, order)
    np.testing.assert_allclose(found.top_logprobs, np.take_along_axis(exact, order, 1), rtol=1e-5)


def test_scores_of_targets_equal_a_float64_reference():
    logits, targets = logits_of(4, rows=9), jnp.arange(9) * 4
    logprobs, ids, top = score(logits, targets, 2)
    exact = np.asarray(logits, np.float64)
    exact = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    np.testing.assert_allclose(logprobs, exact[np.arange(9), targets], rtol=1e-5)
    np.testing.assert_array_equal(ids[:, 0], greedy(logits))
    np.testing.assert_allclose(top, -np.sort(-exact, axis=1)[:, :2], rtol=1e-5)
    assert [each.shape for each in score(logits, targets)[1:]] == [(9, 0), (9, 0)]


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-6, 1e-4])
def test_as_temperature_goes_to_zero_the_most_likely_token_is_drawn(temperature):
    logits = logits_of(5) * 1000
    found = compiled("draw")(logits, params_of(temperature=temperature, seed=np.arange(ROWS), top_p=0.9))
    np.testing.assert_array_equal(found.tokens, greedy(logits))
    probs = np.asarray(compiled("probabilities")(logits, params_of(temperature=temperature, top_p=0.9)))
    np.testing.assert_array_equal(probs, np.eye(SIZE)[np.asarray(greedy(logits))])


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 65])
def test_a_mask_that_leaves_one_token_leaves_no_nan(size):
    rows = min(size, 5)
    only = np.linspace(0, size - 1, rows).astype(int)
    allowed = np.eye(size, dtype=bool)[only]
    logits = logits_of(6, rows, size) * 1e4
    for temperature in (0.0, 1.0, 100.0):
        params = params_of(rows, temperature=temperature, top_k=3, top_p=0.5, min_p=0.1, mask=bits_of(allowed))
        found = compiled("draw", alternatives=1)(logits, params)
        np.testing.assert_array_equal(found.tokens, only)
        assert all(np.isfinite(each).all() for each in found)
        np.testing.assert_array_equal(compiled("probabilities")(logits, params), allowed)


def test_tokens_are_drawn_as_often_as_they_are_likely():
    count = 20_000
    logits = jnp.broadcast_to(logits_of(7, 1, 8, scale=1.5), (count, 8))
    for varies in ("seed", "choice", "number"):
        params = params_of(count, temperature=1.2, top_p=0.95, **{varies: np.arange(count)})
        often = np.bincount(compiled("draw")(logits, params).tokens, minlength=8)
        want = np.asarray(probabilities(logits[:1], params_of(1, temperature=1.2, top_p=0.95)), np.float64)[0] * count
        assert (often[want == 0] == 0).all()
        kept = want > 0
        chi = ((often[kept] - want[kept]) ** 2 / want[kept]).sum()
        assert chi < 30  # 7 degrees of freedom at most: more than that happens once in ten thousand.


def test_counts_are_of_their_slot_alone_and_anew_for_each_sequence():
    counts = count_tokens(make_counts(3, 5), jnp.int32(1), jnp.array([0, 4, -1, 5]), jnp.array([2, 2, -1, 7]))
    counts = add_tokens(counts, jnp.array([1, 0, 3, -1, 1]), jnp.array([2, 3, 1, 1, -1]))
    np.testing.assert_array_equal(counts.prompt, np.array([[0] * 5, [1, 0, 0, 0, 1], [0] * 5], bool))
    np.testing.assert_array_equal(counts.output, [[0, 0, 0, 1, 0], [0, 0, 3, 0, 0], [0] * 5])
    counts = add_tokens(counts, jnp.array([0, 2]), jnp.array([[3, 3, 1], [4, -1, -1]]))
    np.testing.assert_array_equal(counts.output, [[0, 1, 0, 3, 0], [0, 0, 3, 0, 0], [0, 0, 0, 0, 1]])
    for slot in (3, -1):  # Not there.
        again = count_tokens(counts, jnp.int32(slot), jnp.array([1]), jnp.array([1]))
        jax.tree.map(np.testing.assert_array_equal, again, counts)
    anew = count_tokens(counts, jnp.int32(1), jnp.array([3]), jnp.array([-1]))
    np.testing.assert_array_equal(anew.prompt[1], np.array([0, 0, 0, 1, 0], bool))
    assert not anew.output[1].any()


def test_repetition_counts_prompt_and_output_presence_and_frequency_the_output_alone():
    logits = jnp.asarray(
        [[2.0, 2.0, 2.0, -2.0, 1.0]]
    )  # Tokens 0 and 3 were in the prompt, 1 once and 2 twice after it.
    counts = count_tokens(make_counts(1, 5), jnp.int32(0), jnp.array([0, 3]), jnp.array([1, 2, 2]))
    changed = {
        "repetition": (2.0, [1.0, 1.0, 1.0, -4.0, 1.0]),
        "presence": (0.5, [2.0, 1.5, 1.5, -2.0, 1.0]),
        "frequency": (0.5, [2.0, 1.5, 1.0, -2.0, 1.0]),
    }
    for name, (value, want) in changed.items():
        found = probabilities(logits, params_of(1, **{name: value}), counts, jnp.zeros(1, jnp.int32))
        np.testing.assert_allclose(found[0], jax.nn.softmax(jnp.asarray(want)), rtol=1e-6)


def test_a_row_without_a_slot_has_no_penalties():
    counts = Counts(jnp.ones((2, SIZE), jnp.bool), jnp.ones((2, SIZE), jnp.int32))
    logits, params = logits_of(8, 3), params_of(3, repetition=1.5, frequency=1.0)
    for slots in ([0, 2, 1], [0, -1, 1]):
        found = probabilities(logits, params, counts, jnp.asarray(slots))
        np.testing.assert_allclose(found[1], jax.nn.softmax(logits[1]), rtol=1e-6)
        assert np.abs(found[0] - jax.nn.softmax(logits[0])).max() > 1e-3


# Drafts.


def by_hand(logits, drafts, length, how, prompt, output):
    """Draws one token after the other, without drafts, for as long as they equal the drafts."""
    tokens = []
    for place in range(length + 1):
        been = [*output, *tokens]
        been = jnp.asarray(been + [-1] * (9 - len(been)))
        counts = compiled("count")(make_counts(1, logits.shape[-1]), jnp.int32(0), prompt, been)
        params = params_of(1, **{**how, "number": how["number"] + place})
        tokens.append(int(compiled("draw")(logits[place][None], params, counts, jnp.array([0])).tokens[0]))
        if place < length and tokens[-1] != drafts[place]:
            break
    return tokens


def test_fixed_drafts_give_the_very_tokens_that_are_drawn_without_them():
    rng = np.random.default_rng(9)
    rows, count, size = 12, 3, 6
    logits = jnp.asarray(rng.normal(size=(rows, count + 1, size)) * 2, jnp.float32)
    drafts = np.asarray(jnp.argmax(logits, -1))[:, :-1].astype(np.int32)
    drafts[::4, 1] = rng.integers(0, size, len(drafts[::4]))
    lengths = rng.integers(0, count + 1, rows)
    lengths[:3] = count
    how = {
        "temperature": np.where(np.arange(rows) % 3 == 0, 0.0, 0.6),
        "seed": np.arange(rows),
        "number": np.arange(rows),
    }
    how |= {"repetition": np.full(rows, 1.1), "presence": np.full(rows, 0.4), "top_p": np.full(rows, 0.9)}
    counts = make_counts(rows, size)
    for slot in range(rows):
        counts = count_tokens(counts, jnp.int32(slot), jnp.array([1]), jnp.array([slot % size]))
    found = compiled("verify", alternatives=2)(
        logits, jnp.asarray(drafts), jnp.asarray(lengths), params_of(rows, **how), counts, jnp.arange(rows)
    )
    accepted = set()
    for row in range(rows):
        own = {name: value[row] for name, value in how.items()}
        want = by_hand(logits[row], drafts[row], lengths[row], own, jnp.array([1]), [row % size])
        assert found.tokens[row].tolist() == want + [-1] * (count + 1 - len(want))
        assert int(found.accepted[row]) == len(want) - 1
        for place, token in enumerate(want):
            exact = jax.nn.log_softmax(logits[row, place])
            np.testing.assert_allclose(found.logprobs[row, place], exact[token], rtol=1e-5)
            np.testing.assert_array_equal(found.top_ids[row, place], np.argsort(-exact)[:2])
        accepted.add(len(want) - 1)
    assert accepted == set(range(count + 1))  # All cases are met.


@settings(max_examples=40)
@given(seed=st.integers(0, 2**20), sharp=st.sampled_from([0.3, 1.0, 5.0]), limit=st.sampled_from([1.0, 0.7]))
def test_drafts_from_a_distribution_leave_the_target_distribution_exactly(seed, sharp, limit):
    # The chance of each outcome, summed over all drafts and all ways to keep them, for a chain of two drafts.
    rng = np.random.default_rng(seed)
    size = 3
    nodes = [(), *((a,) for a in range(size)), *itertools.product(range(size), repeat=2)]
    logits = jnp.asarray(rng.normal(size=(len(nodes), size)) * sharp, jnp.float32)
    rows = np.asarray(compiled("probabilities")(logits, params_of(len(nodes), top_p=limit, temperature=0.8)))
    target = dict(zip(nodes, rows, strict=True))
    draft = {node: rng.dirichlet(np.full(size, 0.5)).astype(np.float32) for node in nodes if len(node) < 2}
    outcomes = dict.fromkeys(
        itertools.product(range(size), repeat=3), 0.0
    )  # Three tokens; what is not verified is drawn.

    def finish(tokens, chance):
        if len(tokens) == 3:
            outcomes[tokens] += chance
            return
        for token in range(size):  # As later calls would go on.
            after = target[tokens][token] if tokens in target else 1 / size
            finish((*tokens, token), chance * float(after))

    for drafts in itertools.product(range(size), repeat=2):
        drawn = float(draft[()][drafts[0]]) * float(draft[drafts[:1]][drafts[1]])
        for place in range(2):
            node = drafts[:place]
            p, q = jnp.asarray(target[node]), jnp.asarray(draft[node])
            keep = float(compiled("acceptance")(p, q, jnp.int32(drafts[place])))
            for token, chance in enumerate(np.asarray(compiled("residual")(p, q), np.float64)):
                finish((*node, token), drawn * (1 - keep) * chance)
            drawn *= keep
        finish(drafts, drawn)
    for (a, b, c), chance in outcomes.items():
        want = float(target[()][a]) * float(target[(a,)][b]) * float(target[(a, b)][c])
        np.testing.assert_allclose(chance, want, atol=2e-6)


def test_drafts_from_a_distribution_are_kept_by_those_chances():
    count, size = 30_000, 4
    rng = np.random.default_rng(10)
    logits = np.log(np.array([[0.4, 0.05, 0.3, 0.25], [0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.2, 0.2]]))
    logits = np.broadcast_to(logits, (count, 3, size))
    probs = np.array([[0.1, 0.5, 0.1, 0.3], [0.3, 0.3, 0.2, 0.2]], np.float32)
    drafts = np.stack([rng.choice(size, count, p=each / each.sum()) for each in probs.astype(np.float64)], 1)
    params = params_of(count, seed=np.arange(count), temperature=0.9, top_k=3, number=4)
    found = compiled("verify")(
        jnp.asarray(logits, jnp.float32),
        jnp.asarray(drafts, jnp.int32),
        jnp.full(count, 2),
        params,
        draft_probs=jnp.asarray(np.broadcast_to(probs, (count, 2, size))),
    )
    some = params_of(3, temperature=0.9, top_k=3)
    target = np.asarray(probabilities(jnp.asarray(logits[0], jnp.float32), some), np.float64)
    accepted, tokens = np.asarray(found.accepted), np.asarray(found.tokens)
    for place in range(3):  # Each place, among rows that get there, has the distribution of the target.
        there = tokens[accepted >= place, place]
        often = np.bincount(there, minlength=size) / len(there)
        assert np.abs(often - target[place]).max() < 4.5 * np.sqrt(0.25 / len(there))
    left = np.maximum(target[0] - probs[0], 0)
    instead = tokens[accepted == 0, 0]
    often = np.bincount(instead, minlength=size) / len(instead)
    assert np.count_nonzero(left) > 1  # What takes the place of a draft is drawn, by other random numbers than before.
    assert np.abs(often - left / left.sum()).max() < 4.5 * np.sqrt(0.25 / len(instead))
    keep = np.minimum(target[:2], probs).sum(-1)
    assert abs((accepted >= 1).mean() - keep[0]) < 0.015
    assert abs((accepted == 2).mean() - keep.prod()) < 0.015


def test_rows_without_drafts_or_at_temperature_zero_are_drawn_from_the_target_alone():
    rng = np.random.default_rng(11)
    logits = jnp.asarray(rng.normal(size=(6, 3, 5)), jnp.float32)
    drafts = (
        jnp.asarray(rng.integers(0, 5, (6, 2)), jnp.int32).at[3].set(jnp.argmax(logits[3, :2], -1).astype(jnp.int32))
    )
    probs = jnp.asarray(rng.dirichlet(np.ones(5), (6, 2)), jnp.float32)
    temperature, lengths = np.array([1, 1, 1, 0, 0, 0]), jnp.array([0, 0, 0, 2, 2, 1])
    params = params_of(6, seed=np.arange(6), temperature=temperature)
    found = compiled("verify")(logits, drafts, lengths, params, draft_probs=probs)
    np.testing.assert_array_equal(found.tokens[:3, 0], compiled("draw")(logits[:, 0], params).tokens[:3])
    best = np.asarray(jnp.argmax(logits, -1))
    for row in (3, 4, 5):
        count = 0
        while count < lengths[row] and drafts[row, count] == best[row, count]:
            count += 1
        assert int(found.accepted[row]) == count
        assert found.tokens[row, : count + 1].tolist() == best[row, : count + 1].tolist()
    assert int(found.accepted[3]) == 2


def test_penalties_count_the_drafts_before_a_place():
    logits = jnp.zeros((1, 4, 5)).at[:, :, 2].set(1.0).at[:, :, 4].set(0.5)  # 2 is the best until it has been there.
    how = params_of(1, temperature=0.0, presence=0.7, frequency=0.2)
    run = functools.partial(compiled("verify"), logits, jnp.array([[2, 4, 2]]), jnp.array([3]), how)
    assert run(make_counts(1, 5), jnp.array([0])).tokens.tolist() == [[2, 4, 2, 0]]
    assert run().tokens.tolist() == [[2, 2, -1, -1]]


def test_each_place_of_a_draft_has_its_own_mask():
    logits = jnp.zeros((1, 3, 4)).at[:, :, 0].set(50.0)
    allowed = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], bool)
    run = functools.partial(compiled("verify"), masks=bits_of(allowed)[None])
    found = run(logits, jnp.array([[1, 2]]), jnp.array([2]), params_of(1))
    assert found.tokens.tolist() == [[1, 2, 3]]
    assert found.accepted.tolist() == [2]
    found = run(logits, jnp.array([[1, 0]]), jnp.array([2]), params_of(1))
    assert found.tokens.tolist() == [[1, 2, -1]]
