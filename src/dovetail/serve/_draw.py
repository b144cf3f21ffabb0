# SPDX-License-Identifier: Apache-2.0
"""Drawing tokens on the device: logits and parameters of each row in, tokens and log-probabilities out.

All is pure. What a row gets depends on no other row: its random numbers come from its own seed, choice and number. No
vocabulary is sorted: limits are found by halving the range in which they lie, which is many times faster on a CPU.

Shape letters: R rows, V vocabulary, W words of 32 bits (V / 32, rounded up), M biases, S slots, K alternatives,
D drafts, T time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.ops import is_native, native_argmax

_COLDEST = 1e-5  # A temperature below it is 0: logits would leave the range of floats.
_LARGEST = 1e30  # Of a logit, whatever is added to it.


class DrawParams(NamedTuple):
    """How each row is drawn, as in `Draw`."""

    temperature: Array  # [R] float32; 0: the most likely token.
    top_k: Array  # [R] int32; 0: all.
    top_p: Array  # [R] float32; 1: all.
    min_p: Array  # [R] float32; 0: all.
    repetition: Array  # [R] float32; 1: none.
    presence: Array  # [R] float32; 0: none.
    frequency: Array  # [R] float32; 0: none.
    seed: Array  # [R] uint32.
    choice: Array  # [R] int32.
    number: Array  # [R] int32: of the token that is drawn, in its sequence.
    mask: Array | None = None  # [R, W] int32: token v may be drawn if bit v % 32 of word v // 32 is set; None: all may.
    bias_ids: Array | None = None  # [R, M] int32; what is outside the vocabulary (-1, say) is no token.
    bias: Array | None = None  # [R, M] float32: what is added to the logits of those tokens.


class Counts(NamedTuple):
    """Which tokens have been in each slot: for penalties."""

    prompt: Array  # [S, V] bool.
    output: Array  # [S, V] int32.


class Drawing(NamedTuple):
    """Tokens drawn. Log-probabilities are those of the model itself: before temperature, penalties, bias and limits."""

    tokens: Array  # [R] int32.
    logprobs: Array  # [R] float32, of the tokens.
    top_ids: Array  # [R, K] int32: the most likely ones, in order; of equal ones, the least id first.
    top_logprobs: Array  # [R, K] float32.


def greedy(logits: Array) -> Array:
    """Returns the most likely token `[...]` of logits `[..., V]`; of equal ones, the first."""
    if is_native(logits):
        return native_argmax(logits.reshape(-1, logits.shape[-1])).reshape(logits.shape[:-1])
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def draw(
    logits: Array,
    params: DrawParams,
    counts: Counts | None = None,
    slots: Array | None = None,
    *,
    alternatives: int = 0,
) -> Drawing:
    """Draws a token for each row of logits `[R, V]`.

    In this order: bias, penalties, mask, temperature, top_k, top_p, min_p. A row with no penalties is drawn as by
    `sample`. Nothing is counted: see `add_tokens`.

    Args:
        counts: of all slots, where tokens are counted; without them there are no penalties.
        slots: `[R]`, whose counts each row has; outside of them, none.
        alternatives: how many of the most likely tokens are reported.
    """
    changed = _changed(logits, params, None if counts is None or slots is None else (counts, slots))
    tokens = _draw_changed(changed, params, params.number)
    return Drawing(tokens, *score(logits, tokens, alternatives))


def probabilities(logits: Array, params: DrawParams, counts: Counts | None = None, slots: Array | None = None) -> Array:
    """Returns the probabilities `[R, V]` by which `draw` draws: one token has them all where it draws nothing."""
    changed = _changed(logits, params, None if counts is None or slots is None else (counts, slots))
    return _probs(changed, params)


def score(logits: Array, targets: Array, alternatives: int = 0) -> tuple[Array, Array, Array]:
    """Returns the log-probabilities `[T]` of targets `[T]`, and the most likely tokens and theirs, both `[T, K]`.

    All are of float32, whatever the logits `[T, V]` are.
    """
    logits = logits.astype(jnp.float32)
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1) - total
    best, ids = jax.lax.top_k(logits, min(alternatives, logits.shape[-1]))
    return chosen[:, 0], ids.astype(jnp.int32), best - total


def make_counts(slots: int, vocab_size: int) -> Counts:
    """Returns counts of nothing."""
    return Counts(jnp.zeros((slots, vocab_size), jnp.bool), jnp.zeros((slots, vocab_size), jnp.int32))


def count_tokens(counts: Counts, slot: Array, prompt: Array, output: Array) -> Counts:
    """Sets what has been in one slot: ids of any length, in which those outside the vocabulary (-1, say) fill up.

    A slot that is not there changes nothing.
    """
    size = counts.prompt.shape[-1]
    slot = _inside(slot, counts.prompt.shape[0])
    was = jnp.zeros(size, jnp.bool).at[_inside(prompt, size)].set(True, mode="drop")
    new = jnp.zeros(size, jnp.int32).at[_inside(output, size)].add(1, mode="drop")
    return Counts(counts.prompt.at[slot].set(was, mode="drop"), counts.output.at[slot].set(new, mode="drop"))


def add_tokens(counts: Counts, slots: Array, tokens: Array) -> Counts:
    """Counts tokens that were drawn: `[R]`, or several a row, `[R, D]`, for slots `[R]`.

    Slots and tokens that are not there (-1, say, or one more than there are) are dropped.
    """
    slots, tokens = jnp.broadcast_arrays(slots.reshape(slots.shape + (1,) * (tokens.ndim - 1)), tokens)
    slots, tokens = _inside(slots, counts.output.shape[0]), _inside(tokens, counts.output.shape[1])
    return counts._replace(output=counts.output.at[slots, tokens].add(1, mode="drop"))


def _inside(index: Array, size: int) -> Array:
    """Returns an index that is dropped where it would count from the end."""
    return jnp.where(index < 0, size, index)


class Verified(NamedTuple):
    """What becomes of drafts. Of each row, the first `accepted + 1` tokens are its next ones."""

    accepted: Array  # [R] int32: how many of its drafts are kept.
    tokens: Array  # [R, D + 1] int32: those, then the one after them; behind it, -1.
    logprobs: Array  # [R, D + 1] float32, of those tokens, as in `Drawing`; behind them, anything.
    top_ids: Array  # [R, D + 1, K] int32.
    top_logprobs: Array  # [R, D + 1, K] float32.


def verify(
    logits: Array,
    drafts: Array,
    lengths: Array,
    params: DrawParams,
    counts: Counts | None = None,
    slots: Array | None = None,
    *,
    draft_probs: Array | None = None,
    masks: Array | None = None,
    alternatives: int = 0,
) -> Verified:
    """Keeps as many drafts as the target distribution allows: the tokens are distributed as if `draw` drew each.

    Without `draft_probs`, drafts are fixed guesses, and the tokens are the very ones that `draw` would have drawn.

    Args:
        logits: `[R, D + 1, V]` of the model, after each draft and before the first.
        drafts: `[R, D]`.
        lengths: `[R]`, how many of them each row has.
        params: of the first token. Those after it have the next numbers.
        draft_probs: `[R, D, V]`, from which each draft was drawn, by random numbers that are used for nothing else.
        masks: `[R, D + 1, W]`, in place of that of `params`, which must be None here.

    Reference: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023 (arXiv:2211.17192).
    """
    rows, places, size = logits.shape
    steps = jnp.arange(places, dtype=jnp.int32)
    every = _each_place(params, places, masks)
    given = None
    if counts is not None and slots is not None:
        given = (_with_drafts(counts, slots, drafts), jnp.arange(rows * places))
    changed = _changed(logits.reshape(-1, size), every, given)
    number = (params.number[:, None] + steps).reshape(-1)
    drawn = _draw_changed(changed, every, number).reshape(rows, places)
    if draft_probs is None:
        kept = drawn[:, :-1] == drafts
    else:
        target = _probs(changed, every).reshape(rows, places, size)[:, :-1]
        keys = _keys(every._replace(number=number)).reshape(rows, places)[:, :-1]
        kept, instead = _judge(target, draft_probs, drafts, keys)
        at_draft = steps[:-1] < lengths[:, None]  # Behind the last draft, the target alone counts.
        drawn = drawn.at[:, :-1].set(jnp.where(at_draft, instead, drawn[:, :-1]))
    kept &= steps[:-1] < lengths[:, None]
    accepted = jnp.sum(jnp.cumprod(kept.astype(jnp.int32), axis=-1), axis=-1, dtype=jnp.int32)
    tokens = jnp.where(steps < accepted[:, None], jnp.pad(drafts, ((0, 0), (0, 1))).astype(jnp.int32), drawn)
    found = score(logits.reshape(-1, size), tokens.reshape(-1), alternatives)
    shown = jnp.where(steps <= accepted[:, None], tokens, -1)
    return Verified(accepted, shown, *(each.reshape(rows, places, *each.shape[1:]) for each in found))


def verify_greedy(logits: Array, drafts: Array, lengths: Array) -> Array:
    """Returns the tokens `[R, D + 1]` of `verify` where the most likely ones are drawn; behind them, -1."""
    best = greedy(logits)
    steps = jnp.arange(logits.shape[1], dtype=jnp.int32)
    kept = (best[:, :-1] == drafts) & (steps[:-1] < lengths[:, None])
    accepted = jnp.sum(jnp.cumprod(kept.astype(jnp.int32), axis=-1), axis=-1, dtype=jnp.int32)
    return jnp.where(steps <= accepted[:, None], best, -1)


def acceptance(target: Array, draft: Array, tokens: Array) -> Array:
    """Returns how likely a drafted token `[...]` is kept, for probabilities `[..., V]` of target and draft."""
    wanted = jnp.take_along_axis(target, tokens[..., None], axis=-1)[..., 0]
    had = jnp.take_along_axis(draft, tokens[..., None], axis=-1)[..., 0]
    return jnp.where(had > 0, jnp.minimum(1, wanted / jnp.where(had > 0, had, 1)), jnp.where(wanted > 0, 1.0, 0.0))


def residual(target: Array, draft: Array) -> Array:
    """Returns the probabilities `[..., V]` of the token that takes the place of a draft that is not kept."""
    left = jnp.maximum(target - draft, 0)
    total = jnp.sum(left, axis=-1, keepdims=True)
    return jnp.where(total > 0, left / jnp.where(total > 0, total, 1), target)  # Equal ones: nothing is not kept.


def _judge(target: Array, draft: Array, tokens: Array, keys: Array) -> tuple[Array, Array]:
    """Returns which drafts are kept and what takes their place, each `[R, D]`."""

    def one(key: Array, logits: Array) -> tuple[Array, Array]:
        first, second = jax.random.split(key)
        return jax.random.uniform(first, dtype=jnp.float32), jax.random.categorical(second, logits)

    chance, instead = jax.vmap(jax.vmap(one))(keys, jnp.log(residual(target, draft)))
    return chance < acceptance(target, draft, tokens), instead.astype(jnp.int32)


def _each_place(params: DrawParams, places: int, masks: Array | None) -> DrawParams:
    """Returns parameters of `[R * places]` rows."""
    assert params.mask is None, "a mask of the first token says nothing of those after it: use `masks`"
    repeated = jax.tree.map(lambda each: jnp.repeat(each, places, axis=0), params)
    return repeated._replace(mask=None if masks is None else masks.reshape(-1, masks.shape[-1]))


def _with_drafts(counts: Counts, slots: Array, drafts: Array) -> Counts:
    """Returns the counts of `[R * (D + 1)]` places: those of the slots, and the drafts before each place."""
    prompt, output = _rows(counts, slots)
    rows, size = output.shape
    places = drafts.shape[1] + 1
    before = jnp.zeros((rows, places, size), jnp.int32)
    ids = jnp.broadcast_to(_inside(drafts, size)[:, None], (rows, places, places - 1))
    ids = jnp.where(jnp.arange(places - 1) < jnp.arange(places)[:, None], ids, size)
    before = before.at[jnp.arange(rows)[:, None, None], jnp.arange(places)[:, None], ids].add(1, mode="drop")
    every = (output[:, None] + before).reshape(-1, size)
    return Counts(jnp.repeat(prompt, places, axis=0), every)


def _rows(counts: Counts, slots: Array) -> Counts:
    slots = _inside(slots, counts.output.shape[0])
    prompt = counts.prompt.at[slots].get(mode="fill", fill_value=False)
    return Counts(prompt, counts.output.at[slots].get(mode="fill", fill_value=0))


def _changed(logits: Array, params: DrawParams, counts: tuple[Counts, Array] | None) -> Array:
    """Returns logits `[R, V]` after bias, penalties and mask."""
    x = logits.astype(jnp.float32)
    rows, size = x.shape
    if params.bias_ids is not None and params.bias is not None:
        x = x.at[jnp.arange(rows)[:, None], _inside(params.bias_ids, size)].add(params.bias, mode="drop")
    if counts is not None:
        is_used = (params.repetition != 1) | (params.presence != 0) | (params.frequency != 0)
        x = jax.lax.cond(jnp.any(is_used), lambda x: _penalised(x, params, _rows(*counts)), lambda x: x, x)
    if params.mask is not None:
        words = jax.lax.bitcast_convert_type(params.mask, jnp.uint32)
        bits = (words[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)) & jnp.uint32(1)
        x = jnp.where(bits.reshape(rows, -1)[:, :size] == 1, x, -jnp.inf)
    return jnp.minimum(x, _LARGEST)


def _penalised(x: Array, params: DrawParams, counts: Counts) -> Array:
    repetition = params.repetition[:, None]
    been = counts.prompt | (counts.output > 0)
    x = jnp.where(been, jnp.where(x > 0, x / repetition, x * repetition), x)
    x -= params.frequency[:, None] * counts.output.astype(jnp.float32)
    return x - params.presence[:, None] * (counts.output > 0).astype(jnp.float32)


def _is_warm(params: DrawParams) -> Array:
    return params.temperature >= _COLDEST


def _draw_changed(x: Array, params: DrawParams, number: Array) -> Array:
    """Draws from logits `[R, V]` after all that changes them."""
    best = greedy(x)
    is_warm = _is_warm(params)

    def warm(x: Array) -> Array:
        drawn = jax.vmap(jax.random.categorical)(_keys(params._replace(number=number)), _limited(x, params))
        return jnp.where(is_warm, drawn.astype(jnp.int32), best)

    return jax.lax.cond(jnp.any(is_warm), warm, lambda _: best, x)


def _probs(x: Array, params: DrawParams) -> Array:
    """Returns the probabilities `[R, V]` by which `_draw_changed` draws."""
    best = jax.nn.one_hot(greedy(x), x.shape[-1], dtype=jnp.float32)
    return jnp.where(_is_warm(params)[:, None], jax.nn.softmax(_limited(x, params), axis=-1), best)


def _keys(params: DrawParams) -> Array:
    """Returns the key of each row: of its seed, choice and number, and nothing else."""

    def one(seed: Array, choice: Array, number: Array) -> Array:
        key = jax.random.key(seed, impl="threefry2x32")
        return jax.random.fold_in(jax.random.fold_in(key, choice), number)

    return jax.vmap(one)(params.seed.astype(jnp.uint32), params.choice, params.number)


def _limited(x: Array, params: DrawParams) -> Array:
    """Returns logits after temperature, and of tokens beyond a limit -inf."""
    size = x.shape[-1]
    x = x / jnp.where(_is_warm(params), params.temperature, 1)[:, None]
    x = jnp.where(x == 0, 0.0, x)  # Negative zeros are no smaller than others.
    has_k = (params.top_k > 0) & (params.top_k < size)
    has_p = params.top_p < 1

    def by_k(x: Array) -> Array:
        return _at_least(x, _reaching(x, jnp.ones(x.shape, jnp.int32), params.top_k), has_k)

    def by_p(x: Array) -> Array:  # A token is needed as long as those above it do not reach p together.
        return _at_least(x, _reaching(x, jax.nn.softmax(x, axis=-1), params.top_p), has_p)

    x = jax.lax.cond(jnp.any(has_k), by_k, lambda x: x, x)
    x = jax.lax.cond(jnp.any(has_p), by_p, lambda x: x, x)
    least = jnp.max(x, axis=-1, keepdims=True) + jnp.log(params.min_p)[:, None]
    return jnp.where(x < least, -jnp.inf, x)


def _at_least(x: Array, least: Array, is_limited: Array) -> Array:
    return jnp.where((_ordered(x) < least[:, None]) & is_limited[:, None], -jnp.inf, x)


def _reaching(x: Array, weights: Array, amount: Array) -> Array:
    """Returns the largest value `[R]`, as `_ordered`, for which the weights of all that are no less reach an amount."""
    order = _ordered(x)

    def halve(bit: Array, least: Array) -> Array:
        tried = least | (jnp.uint32(1) << (jnp.uint32(31) - bit.astype(jnp.uint32)))
        reached = jnp.sum(jnp.where(order >= tried[:, None], weights, jnp.zeros_like(weights)), axis=-1)
        return jnp.where(reached >= amount, tried, least)

    return jax.lax.fori_loop(0, 32, halve, jnp.zeros(x.shape[0], jnp.uint32))


def _ordered(x: Array) -> Array:
    """Returns unsigned integers in the order of floats."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits >= sign, ~bits, bits | sign)
