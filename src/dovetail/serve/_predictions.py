# SPDX-License-Identifier: Apache-2.0
"""Guesses by a model that predicts tokens further ahead than the next: its programs, as pure functions.

The predictions read all that the model reads, into the same pages. What they make of a token has that token in it, and
what was made of the one before: so that is kept for each slot, from one call to the next.

Shape letters: R rows, T time, S slots, P predictions, D model dim.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from dovetail.module import Module, State, call

from ._draw import greedy
from ._store import Store


class Made(NamedTuple):
    """What was made of the last token that each slot has read."""

    outputs: Array  # [S, P, D]: of the model, and of all predictions but the last.
    place: Array  # [S] int32: of the token after it. A slot that goes on elsewhere, after a prefix, has nothing.


class Ahead(NamedTuple):
    """A model that predicts, for calls of a number of rows."""

    model: Module  # Has methods `predict` and `head_logits`, as `CausalLM` does.
    store: Store
    options: Mapping[str, Any]  # Of a call.
    predictions: int  # P.


def with_last(ids: Array, rows: Mapping[str, Array], last: Array) -> Array:
    """Returns tokens `[R, T]`, of which the first of a row may be the one drawn last in its slot."""
    first = jnp.where(rows["follows"], jnp.take(last, rows["slots"], mode="clip"), ids[:, 0])
    return jnp.concatenate([first[:, None], ids[:, 1:]], axis=1)


def predict(
    ahead: Ahead,
    params: Any,
    state: State,
    last: Array,
    made: Made,
    ids: Array,
    rows: Mapping[str, Array],
    tables: Mapping[str, Array],
    step: Array,
    hidden: Array,
    kept: Array,
) -> tuple[Made, State]:
    """Has the predictions read what the model has read.

    Args:
        hidden: `[R, T, D]`, what the model made of the tokens.
        kept: `[R, T]`, at least 0 for tokens that stay: guesses that do not hold are read again.
    """
    slots, start = rows["slots"], rows["start"]
    given = ahead.store.rows(state, rows["source"], rows["fresh"], tables)
    found, given = _called(ahead, params, given, with_last(ids, rows, last), hidden, _before(made, rows), rows, step)
    outputs = jnp.concatenate([hidden[:, :, None], found[:, :, :-1]], axis=2)
    count = jnp.sum(kept >= 0, axis=1, dtype=jnp.int32)
    final = jnp.take_along_axis(outputs, jnp.maximum(count - 1, 0)[:, None, None, None], axis=1)[:, 0]
    now = Made(made.outputs.at[slots].set(final, mode="drop"), made.place.at[slots].set(start + count, mode="drop"))
    return now, ahead.store.written(state, given, slots)


def guess(
    ahead: Ahead,
    drafts: int,
    params: Any,
    state: State,
    last: Array,
    made: Made,
    ids: Array,
    rows: Mapping[str, Array],
    tables: Mapping[str, Array],
    step: Array,
) -> tuple[Array, State]:
    """Returns the first token of each row with guesses of those after it, `[R, drafts + 1]`.

    Prediction k guesses the token k places ahead. Beyond the last one, it goes on from its own guesses: there, what the
    first prediction made stands for what the model itself would make.
    """
    given = ahead.store.rows(state, rows["source"], rows["fresh"], tables)
    tokens, before = [with_last(ids, rows, last)[:, 0]], _before(made, rows)
    for k in range(drafts):
        now = {"start": rows["start"] + k, "count": (rows["count"] > k + 1).astype(jnp.int32)}
        found, given = _called(ahead, params, given, tokens[-1][:, None], before[:, :1], before, now, step)
        chosen = found[:, 0, min(k, ahead.predictions - 1)]
        logits, _ = call(ahead.model, params, chosen, method="head_logits", **ahead.options)
        tokens.append(greedy(logits))
        before = jnp.concatenate([found[:, 0, :1], found[:, 0, :-1]], axis=1)
    return jnp.stack(tokens, axis=1), ahead.store.written(state, given, rows["slots"])


def _before(made: Made, rows: Mapping[str, Array]) -> Array:
    """Returns what was made of the token before the first of each row, `[R, P, D]`; zeros, where it is not known."""
    known = jnp.take(made.place, rows["slots"], mode="clip") == rows["start"]
    return jnp.where(known[:, None, None], jnp.take(made.outputs, rows["slots"], axis=0, mode="clip"), 0)


def _called(
    ahead: Ahead,
    params: Any,
    given: State,
    ids: Array,
    hidden: Array,
    before: Array,
    rows: Mapping[str, Array],
    step: Array,
) -> tuple[Array, State]:
    places = {"lengths": rows["count"], "start": rows["start"], "step": step}
    inputs = (ids, hidden, before)
    found, collected = call(ahead.model, params, *inputs, method="predict", state=given, **places, **ahead.options)
    return found, collected.state or {}
