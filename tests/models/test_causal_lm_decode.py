# SPDX-License-Identifier: Apache-2.0
"""Decoding is the forward pass in parts: any split, rows of different lengths, every kind of attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.module import ModuleError, call, state_specs
from dovetail.nn import LearnedPosition, RMSNorm
from support.compare import assert_same
from support.decoding import started
from support.models import gpt2, hybrid, lm, random_params

LENGTH, STEP = 7, 4  # Tokens of each row, and room for tokens in each call.
IDS = np.random.default_rng(0).integers(0, 11, (2, LENGTH))
CASES = {
    "grouped queries": lm(),
    "multi-query, unrolled": lm(loop="unroll", attention={"num_kv_heads": 1}),
    "window, multi-head": lm(attention={"window": 3, "num_kv_heads": None}),
    "qk-norm": lm(attention={"query_norm": RMSNorm.Config(), "key_norm": RMSNorm.Config()}),
    "learned positions, tied": gpt2(),
    # With learned positions, padding is nan: it has no row in the table.
    "attention, Mamba 2 and Gated DeltaNet in turn": hybrid(position=LearnedPosition.Config(max_length=9)),
}
Counts = list[list[int]]  # For each call, how many tokens each row gets.


@functools.cache
def program(cfg, capacity=LENGTH):
    """Returns the logits of all rows at once, the compiled step, and the state before the first."""
    model = cfg.build()
    params = random_params(model)

    @jax.jit
    def step(ids, lengths, state):
        logits, collected = call(model, params, ids, lengths=lengths, state=state)
        lost = sum(jnp.sum(value) for path, value in collected.summaries.items() if path.endswith(".lost"))
        return logits, collected.state, lost

    start = started(model, params, IDS[:, :STEP], sizes={"batch": 2, "capacity": capacity})
    return np.asarray(jax.jit(lambda ids: call(model, params, ids)[0])(jnp.asarray(IDS))), (step, start)


def in_parts(program, counts: Counts):
    """Returns the logits of the real tokens of each row, and the last state."""
    step, state = program
    done, logits = [0, 0], ([], [])
    for call_counts in counts:
        ids = np.full((2, STEP), 10)  # Padding is a word like any other.
        for row, count in enumerate(call_counts):
            ids[row, :count] = IDS[row, done[row] : done[row] + count]
        out, state, lost = step(jnp.asarray(ids), jnp.asarray(call_counts), state)
        assert lost == 0
        for row, count in enumerate(call_counts):
            logits[row].append(np.asarray(out)[row, :count])
            done[row] += count
    return [np.concatenate(parts) for parts in logits], state


UNEVEN: Counts = [[3, 1], [2, 0], [1, 4], [1, 2]]


@pytest.mark.parametrize("cfg", CASES.values(), ids=CASES)
def test_rows_in_uneven_parts_are_the_whole_rows_and_fill_the_cache_to_the_last_place(cfg):
    want, step = program(cfg)
    got, state = in_parts(step, UNEVEN)
    assert_same(got, list(want))
    np.testing.assert_array_equal(state["length"], [LENGTH, LENGTH])


@st.composite
def splits(draw) -> Counts:
    """Draws how both rows are cut into parts of at most STEP, some of them empty."""
    rows: list[list[int]] = []
    for _ in range(2):
        row: list[int] = []
        while sum(row) < LENGTH:
            row.append(min(draw(st.sampled_from([4, 3, 2, 1, 0])), LENGTH - sum(row)))
        rows.append(row)
    longest = max(map(len, rows))
    return [list(each) for each in zip(*(row + [0] * (longest - len(row)) for row in rows), strict=True)]


@settings(max_examples=25)
@given(counts=splits())
def test_any_split_is_the_whole(counts):
    want, step = program(CASES["grouped queries"])
    assert_same(in_parts(step, counts)[0], list(want))


@settings(max_examples=10)
@given(counts=splits())
def test_any_split_of_a_hybrid_is_the_whole(counts):
    want, step = program(CASES["attention, Mamba 2 and Gated DeltaNet in turn"])
    assert_same(in_parts(step, counts)[0], list(want))


def test_a_state_of_fixed_size_does_not_grow_with_the_capacity():
    model = hybrid().build()

    def shapes(capacity):
        found = state_specs(model, random_params(model), IDS, sizes={"batch": 2, "capacity": capacity})
        return {path: spec.shape for path, spec in found.items()}

    few, many = shapes(8), shapes(16)
    attention = {
        f"stack.layer[{i}].mixer.cache.{name}" for i in (0, 3) for name in ("k", "v", "index", "segment", "prefix")
    }
    assert {path for path in few if few[path] != many[path]} == attention
    assert few["stack.layer[1].mixer.memory"] == (1, 2, 4, 2, 3)  # Rounds, rows, heads, dims.


def test_the_logits_of_the_last_token_are_those_of_forward_in_every_part():
    model = lm().build()
    params, counts = random_params(model), jnp.array([3, 1])

    def both(ids, state, lengths):
        found = [
            call(model, params, ids, method=method, lengths=lengths, state=state)
            for method in ("forward", "last_logits")
        ]
        (logits, _), (last, collected) = found
        return logits, last, collected.state

    run = jax.jit(both)
    start = started(model, params, IDS[:, :3], sizes={"batch": 2, "capacity": LENGTH})
    logits, last, state = run(jnp.asarray(IDS[:, :3]), start, counts)
    assert_same(last, jnp.stack([logits[0, 2], logits[1, 0]]))
    logits, last, _ = run(jnp.asarray(IDS[:, 3:]), state, None)
    assert_same(last, logits[:, -1])


def test_one_token_at_a_time_without_lengths_is_the_whole_row_whatever_the_room():
    model = CASES["window, multi-head"].build()
    want, _ = program(CASES["window, multi-head"])
    params = random_params(model)
    step = jax.jit(lambda ids, state: call(model, params, ids, state=state))
    logits, state = [], started(model, params, IDS[:, :1], sizes={"batch": 2, "capacity": LENGTH + 2})
    for t in range(LENGTH):
        out, collected = step(jnp.asarray(IDS[:, t : t + 1]), state)
        logits, state = [*logits, out], collected.state
    assert_same(np.concatenate(logits, axis=1), want)


def test_a_row_in_a_batch_decodes_as_if_alone():
    _, step = program(CASES["grouped queries"])
    together, _ = in_parts(step, [[4, 4], [3, 3]])
    apart, _ = in_parts(step, [[4, 0], [0, 4], [3, 0], [0, 3]])
    assert_same(together, apart)


def test_the_cache_has_the_compute_dtype_and_room_for_the_capacity():
    model = lm().build()
    sizes = {"batch": 2, "capacity": 9}
    found = state_specs(model, random_params(model), IDS, sizes=sizes, dtype=jnp.bfloat16)
    cache = "stack.layer.mixer.cache"
    for name in ("k", "v"):  # Layers, rows, heads, room, dims.
        assert (found[f"{cache}.{name}"].shape, found[f"{cache}.{name}"].dtype) == ((2, 2, 2, 9, 2), jnp.bfloat16)
    kept = {f"{cache}.{name}" for name in ("k", "v", "index", "segment", "prefix")}
    assert set(found) == {"length", *kept}


def test_one_token_too_many_is_told_and_harms_no_other_row():
    _, (step, start) = program(CASES["grouped queries"])
    _, state = in_parts((step, start), [[4, 4], [3, 2]])
    ids, counts = jnp.zeros((2, STEP), jnp.int32), jnp.array([1, 1])
    logits, _, lost = step(ids, counts, state)
    assert lost == 2, "one token, in two layers"
    alone, _, none = step(ids, jnp.array([0, 1]), state)
    assert none == 0
    assert_same(logits[1, 0], alone[1, 0])


def test_state_without_capacity_says_what_to_pass():
    model = lm().build()
    with pytest.raises(ModuleError) as e:
        started(model, random_params(model), IDS, sizes={"batch": 2})
    assert str(e.value) == (
        "stack.layer.mixer.cache.index has the size 'capacity'; the sizes given are {'batch': 2}. "
        "Pass it: state_specs(..., sizes={...})."
    )


def test_a_prompt_that_is_longer_than_the_capacity_is_refused():
    model = lm().build()
    with pytest.raises(ModuleError) as e:
        started(model, random_params(model), IDS, sizes={"batch": 2, "capacity": 6})
    assert str(e.value) == "stack.layer.mixer.cache (DenseCache): 7 tokens do not fit into a capacity of 6."
