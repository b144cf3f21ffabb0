# SPDX-License-Identifier: Apache-2.0
"""The programs of a served model, as pure functions, and the sizes of what they keep. Nothing is allocated here.

Shape letters: R rows, T time, D model dim, V vocabulary, S slots, K alternatives.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dovetail.config import ConfigBase, ConfigError
from dovetail.module import State, StateSpecs, call, merged, size_names, specs, state_specs
from dovetail.nn import page_window
from dovetail.ops import Choice, by_native_kernels, kernel_choices
from dovetail.parallel import decoding_layout
from dovetail.train import Program, Trainer

from ._apart import layers_apart
from ._device import DeviceShape, Group
from ._draw import (
    Counts,
    Drawing,
    DrawParams,
    Verified,
    add_tokens,
    count_tokens,
    draw,
    greedy,
    make_counts,
    score,
    verify,
    verify_greedy,
)
from ._in_pages import in_pages
from ._memory import fitting_tokens, free_bytes
from ._native import packed_program, packs_weights
from ._quantised import KV, Weights, check_kept, check_speed, in_panels_as_they_are, is_rounded, quantised
from ._shapes import abstract_draw, abstract_inputs, int_of
from ._store import Store

_LONGEST = 4096  # Tokens of a sequence, unless more are asked for.


class Serving(ConfigBase):
    """How much is served at once. All programs are compiled for these sizes before the first request."""

    slots: int = 16  # Sequences that run at once.
    page: int = 16  # Tokens of a page.
    max_length: int | None = None  # Tokens of a sequence; None: as many as the model can have, 4096 at most.
    tokens: int | None = None  # Of all sequences together; None: slots * max_length, if there is memory.
    memory: float = 0.5  # Of what is free, for the state of sequences.
    snapshots: int | None = None  # Of state that is not in pages, for prefixes; None: twice the slots.
    # Numbers of sequences in a step, slots at most, and of tokens of a prompt; None: few where padding costs nothing.
    rows: tuple[int, ...] | None = None
    chunks: tuple[int, ...] | None = None
    max_logprobs: int = 20  # Alternatives of a token that can be reported.
    drafts: int = 0  # Tokens that are guessed and then verified in one step, at most; 0: none. They change no answer.
    # Whether each layer is compiled by itself: longer to compile, but a loop copies weights or pages in each round.
    apart: bool = True
    weights: Weights | None = None  # How they are kept, rounded when they are loaded; None: they stay as they are.
    kv: KV | None = None  # Keys and values, or what else caches keep; None: in the dtype of the computation.
    slower: bool = False  # Whether to use few bits also where they take longer, to save memory.

    def check(self) -> None:
        """Raises if a value makes no sense."""
        least = {"slots": 1, "page": 1, "max_length": 2, "tokens": 1, "snapshots": 0, "max_logprobs": 0, "drafts": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise ConfigError(f"{name} is {value}, expected at least {smallest}.")
        if self.chunks and self.drafts >= self.chunks[-1]:
            raise ConfigError(f"drafts is {self.drafts}, expected less than the largest chunk: {self.chunks[-1]}.")
        if not 0 < self.memory <= 1:
            raise ConfigError(f"memory is {self.memory}, expected a share: more than 0, at most 1.")
        for name, smallest in {"rows": 1, "chunks": 2}.items():
            values = getattr(self, name)
            if values is not None and (not values or list(values) != sorted(set(values)) or values[0] < smallest):
                raise ConfigError(f"{name} is {values}, expected ascending numbers from {smallest} on.")

    def sized(self, *, leaves_out_padding: bool) -> "Serving":
        """Returns the same with numbers of rows and chunks; each is a program to compile."""
        rows = (1, 16, 64, 256) if leaves_out_padding else (1, 4, 8, 16, 32, 64, 128, 256)
        chunks = (16, 64, 128, 256) if leaves_out_padding else (16, 32, 64, 128, 256)
        return self.set(rows=self.rows or rows, chunks=self.chunks or chunks)

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Numbers of rows of a step of decoding; the last has room for all slots."""
        return (*(count for count in self.rows or () if count < self.slots), self.slots)


class Key(NamedTuple):
    """A program, and the rows and tokens that it is for."""

    name: str
    rows: int = 1
    time: int = 1


class ServedModel:
    """A model in pages, as programs take it.

    Args:
        cfg: of the run.
        devices: those that are only described, to compile for them; None: those that are here.
        room: bytes for the state of sequences; None: a share of what is free.
        draft: a smaller model that guesses what this one says; its state is in the same pages.
    """

    def __init__(
        self,
        cfg: Trainer.Config,
        serving: Serving,
        devices: Any = None,
        *,
        room: int | None = None,
        draft: "ServedModel | None" = None,
    ) -> None:
        serving.check()
        probe = Program(cfg, devices, trains=False)
        for method in ("hidden", "head_logits", "max_length"):
            if not hasattr(probe.model, method):
                raise ConfigError(
                    f"{probe.model!r} cannot be served: it has no method `{method}`, as a language model has."
                )
        self.packs = packs_weights(probe)
        check_kept(serving.weights, self.packs)
        if not serving.slower and serving.weights != "bfloat16":
            check_speed(serving.weights, probe.devices.platform, self.packs, cfg.model)
        self.rounds = is_rounded(serving.weights, serving.kv)
        cfg = cfg.set(model=quantised(serving.weights, serving.kv)(cfg.model))
        self.serving, self.source = serving.sized(leaves_out_padding=bool(self.packs)), cfg.model
        model = layers_apart(cfg.model) if serving.apart else cfg.model
        paged = in_pages(model, serving.page, probe.devices.platform)
        self._layout = decoding_layout(cfg.mesh, split_rows=False)
        cfg = cfg.set(model=paged)
        if self.packs:
            kept = "bfloat16" if serving.weights == "bfloat16" else "float32"
            self.program = packed_program(cfg, kept, in_panels_as_they_are(), self._trace)
        else:
            self.program = Program(cfg, devices, trains=False)
            self._trace(self.program)
        self._declared: StateSpecs | None = None
        refused = () if self.packs else (("NativeKernels", self.packs.reason),)
        self.choices = [Choice("model", "XLA", refused)] if refused else self.program.fallbacks
        self._options: dict[str, Any] = {"dtype": self.program.dtype, "layout": self._layout}
        self.params = _merged_params(self.program)  # Their shapes.
        self.fit(self._shape(room, {} if draft is None else draft.page_bytes))
        if draft is not None:
            _check_draft(self.shape, draft.shape)
            self.shape = dataclasses.replace(self.shape, own_drafts=True)
            draft.fit(self.shape)

    def fit(self, shape: DeviceShape) -> None:
        """Makes room for so many sequences and pages, which may be more than the model itself has a use for."""
        self.shape, self._length = shape, shape.max_length
        pages = {group.name: group.pages for group in shape.groups if group.name in self._size_names}
        total = self._specs(self.shape.slots + self.shape.snapshots, pages)
        self._stores = {rows: Store(self._specs(rows, pages), total) for rows in {1, *self.shape.rows}}

    @functools.cached_property
    def _length(self) -> int:
        with self.program.devices.ambient():
            longest, _ = call(self.program.model, self.params, method="max_length")
        length = self.serving.max_length or min(longest or _LONGEST, _LONGEST)
        if longest is not None and length > longest:
            raise ConfigError(f"max_length is {length}, but the model has {longest} positions. Use {longest} or less.")
        return length

    def _shape(self, room: int | None, more: Mapping[str, int]) -> DeviceShape:
        serving, length = self.serving, self._length
        names = self._size_names
        own = sorted(name for name in names if name.startswith("pages"))
        groups = sorted({*own, *more})
        one = self._specs(1, dict.fromkeys(own, 1))
        store = Store(one, one)
        if serving.drafts and store.has_row_state:
            raise ConfigError(
                f"drafts is {serving.drafts}, but {self.program.model!r} has layers whose state is of all tokens so"
                " far: it cannot go back to before a guess that was wrong.\n  Use drafts=0."
            )
        if room is None:
            free = free_bytes(self.program.devices.all)
            room = None if free is None else int(free * serving.memory)
        page_bytes = {name: store.page_bytes(name) + more.get(name, 0) for name in groups}
        copies = (2 * serving.slots if serving.snapshots is None else serving.snapshots) if store.has_row_state else 0
        if room is not None:
            room -= store.row_bytes() * (serving.slots + copies)
        tokens = fitting_tokens(serving.tokens or serving.slots * length, length, page_bytes, serving.page, room)
        pages = {name: _pages(serving, tokens, length, page_window(name)) for name in groups}
        self.page_bytes, self.row_bytes = page_bytes, store.row_bytes()
        return DeviceShape(
            slots=serving.slots,
            page=serving.page,
            groups=tuple(Group(name, page_window(name), pages[name]) for name in groups),
            snapshots=copies,
            has_row_state=store.has_row_state,
            max_length=length,
            vocab_size=self._vocab_size,
            rows=serving.row_counts,
            chunks=_chunks(serving, length),
            max_logprobs=serving.max_logprobs,
            drafts=serving.drafts,
        )

    def _trace(self, program: Program) -> None:
        """Traces all that is computed with the weights of a program: layers with their state, and logits."""
        (ids, given), params = abstract_inputs(1, 1), _merged_params(program)
        options = {"dtype": program.dtype, "layout": self._layout}

        def logits(params: Any, ids: Array) -> Array:
            return call(program.model, params, ids, **options)[0]

        with program.devices.ambient():
            named = {"sizes": {"batch": 1}, "method": "hidden", **given, **options}
            self._size_names = size_names(program.model, params, ids, **named)
            self._vocab_size = jax.eval_shape(logits, params, ids).shape[-1]

    def _specs(self, rows: int, pages: Mapping[str, int]) -> StateSpecs:
        width = -(-self._length // self.serving.page)
        sizes = {name: width for name in self._size_names if name.startswith("row_pages")}
        sizes |= {"batch": rows, "capacity": self._length, **pages}
        if self._declared is None:
            ids, given = abstract_inputs(rows, 1)
            with self.program.devices.ambient():
                options = {"sizes": sizes, "method": "hidden", **given, **self._options}
                self._declared = state_specs(self.program.model, self.params, ids, **options)
        return {path: spec.resized(sizes) for path, spec in self._declared.items()}

    def store(self, rows: int) -> Store:
        """Returns how state is kept, for calls of so many rows."""
        return self._stores[rows]

    def make_state(self) -> State:
        """Returns the state of all slots before the first call."""
        return self.store(1).make()

    def make_tokens(self) -> tuple[Array, Counts]:
        """Returns the tokens drawn last, and which have been in each slot, before the first call."""
        return jnp.zeros(self.shape.slots, jnp.int32), make_counts(self.shape.slots, self.shape.vocab_size)

    def state_shardings(self) -> Any:
        """Returns where the state lies; None on one device."""
        return self.store(1).shardings(self._layout, self.program.devices.mesh)

    def keys(self) -> Iterator[Key]:
        """Yields all programs that there are, those that take longest to compile first."""
        shape = self.shape
        for chunk in reversed(shape.chunks):
            yield Key("layers", 1, chunk)
        for rows in reversed(shape.rows):
            yield Key("layers", rows, 1)
        if 1 not in shape.rows:
            yield Key("layers", 1, 1)
        for rows in {1, *shape.rows}:
            yield from (Key("greedy", rows), Key("draw", rows))
        for rows in shape.rows if shape.drafts else ():
            if rows > 1 or shape.drafts + 1 not in shape.chunks:
                yield Key("layers", rows, shape.drafts + 1)
            yield from (Key("verify_greedy", rows, shape.drafts + 1), Key("verify", rows, shape.drafts + 1))
        for chunk in (*shape.chunks, 1):
            yield Key("score", 1, chunk)
        yield Key("count")
        if shape.has_row_state and shape.snapshots:
            yield Key("save")

    def function(self, key: Key) -> tuple[Callable[..., Any], tuple[int, ...]]:
        """Returns a program, and which of its arguments it takes the memory of."""
        match key.name:
            case "layers":
                return functools.partial(self._layers, self.store(key.rows)), (1,)
            case "greedy":
                return self._greedy, (2,)
            case "draw":
                return self._draw, (2, 3)
            case "verify_greedy":
                return self._verify_greedy, (2,)
            case "verify":
                return self._verify, (2, 3)
            case "score":
                return self._score, ()
            case "join":
                return _joined, ()
            case "count":
                return count_tokens, (0,)
            case _:
                return self.store(1).copied, (0,)

    def traced(self, key: Key) -> Any:
        """Returns a program for arguments of its shapes (`jax.stages.Traced`); nothing is compiled yet."""
        function, donated = self.function(key)
        everywhere, state = self.program.devices.everywhere, self.state_shardings()
        places = {"layers": (everywhere, everywhere, state), "save": state}.get(key.name, everywhere)
        options = {} if everywhere is None else {"out_shardings": places}
        with self.program.devices.ambient(), by_native_kernels(bool(self.packs)), kernel_choices() as choices:
            traced = jax.jit(function, donate_argnums=donated, **options).trace(*self.inputs(key))
        self.choices += [choice for choice in choices if choice not in self.choices]
        return traced

    def _layers(
        self,
        store: Store,
        params: Any,
        state: State,
        last: Array,
        ids: Array,
        rows: Mapping[str, Array],
        tables: Mapping[str, Array],
        step: Array,
    ) -> tuple[Array, Array, State]:
        """Runs the layers on `[R, T]` tokens; returns `[R, T, D]`, its last token of each row, and the state."""
        slots, count = rows["slots"], rows["count"]
        first = jnp.where(rows["follows"], jnp.take(last, slots, mode="clip"), ids[:, 0])
        ids = jnp.concatenate([first[:, None], ids[:, 1:]], axis=1)
        given = store.rows(state, rows["source"], rows["fresh"], tables)
        options = {"method": "hidden", "lengths": count, "start": rows["start"], "step": step, **self._options}
        hidden, collected = call(self.program.model, params, ids, state=given, **options)
        end = jnp.maximum(count - 1, 0)[:, None, None]
        final = jnp.take_along_axis(hidden, end, axis=1)[:, 0]
        return hidden, final, store.written(state, collected.state or {}, slots)

    def _logits(self, params: Any, hidden: Array) -> Array:
        return call(self.program.model, params, hidden, method="head_logits", **self._options)[0]

    def _greedy(self, params: Any, hidden: Array, last: Array, slots: Array, draws: Array) -> tuple[Array, Array]:
        tokens = greedy(self._logits(params, hidden))
        return tokens, _remembered(last, slots, draws, tokens)

    def _draw(
        self, params: Any, hidden: Array, last: Array, counts: Counts, slots: Array, draws: Array, how: DrawParams
    ) -> tuple[Drawing, Array, Counts]:
        drawing = draw(self._logits(params, hidden), how, counts, slots, alternatives=self.shape.max_logprobs)
        counted = add_tokens(counts, jnp.where(draws, slots, -1), drawing.tokens)
        return drawing, _remembered(last, slots, draws, drawing.tokens), counted

    def _verify_greedy(
        self, params: Any, hidden: Array, last: Array, slots: Array, draws: Array, ids: Array, count: Array
    ) -> tuple[Array, Array]:
        tokens = verify_greedy(self._logits(params, hidden), ids[:, 1:], jnp.maximum(count - 1, 0))
        return tokens, _remembered(last, slots, draws, _last_of(tokens))

    def _verify(
        self,
        params: Any,
        hidden: Array,
        last: Array,
        counts: Counts,
        slots: Array,
        draws: Array,
        ids: Array,
        count: Array,
        how: DrawParams,
    ) -> tuple[Verified, Array, Counts]:
        assert how.mask is not None
        # It is of the first place. Rows of a grammar have no guesses, so what they have at other places is not used.
        masks = jnp.repeat(how.mask[:, None], ids.shape[1], axis=1)
        found = verify(
            self._logits(params, hidden),
            ids[:, 1:],
            jnp.maximum(count - 1, 0),
            how._replace(mask=None),
            counts,
            slots,
            masks=masks,
            alternatives=self.shape.max_logprobs,
        )
        counted = add_tokens(counts, jnp.where(draws, slots, -1), found.tokens)
        return found, _remembered(last, slots, draws, _last_of(found.tokens)), counted

    def _score(self, params: Any, hidden: Array, targets: Array) -> tuple[Array, Array, Array]:
        return score(self._logits(params, hidden[0]), targets[0], self.shape.max_logprobs)

    def inputs(self, key: Key) -> tuple[Any, ...]:
        """Returns the shapes of the arguments of a program, and where they lie: on every device, if nothing else."""
        everywhere = self.program.devices.everywhere

        def placed(x: Any) -> Any:
            place = everywhere if x.sharding is None else x.sharding
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)

        return jax.tree.map(placed, self._inputs(key))

    def _inputs(self, key: Key) -> tuple[Any, ...]:
        state, (last, counts) = jax.eval_shape(self.store(1).make), jax.eval_shape(self.make_tokens)
        places = self.state_shardings()
        if places is not None:
            state = {path: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=places[path]) for path, x in state.items()}
        ids, one = int_of((key.rows, key.time)), int_of((key.rows,))
        flags = jax.ShapeDtypeStruct((key.rows,), jnp.bool)
        match key.name:
            case "layers":
                rows = dict.fromkeys(("slots", "source", "start", "count"), one) | {"fresh": flags, "follows": flags}
                tables = {group.name: int_of((key.rows, self.shape.row_pages)) for group in self.shape.groups}
                return self.params, state, last, ids, rows, tables, int_of(())
            case "greedy":
                return self.params, self._hidden(key.rows), last, one, flags
            case "draw":
                return (
                    self.params,
                    self._hidden(key.rows),
                    last,
                    counts,
                    one,
                    flags,
                    abstract_draw(self.shape, key.rows),
                )
            case "verify_greedy":
                return self.params, self._hidden(key.rows, key.time), last, one, flags, ids, one
            case "verify":
                how = abstract_draw(self.shape, key.rows)
                return self.params, self._hidden(key.rows, key.time), last, counts, one, flags, ids, one, how
            case "join":
                return one, (one,) * (key.time - 1)
            case "score":
                return self.params, self._hidden(1, key.time), ids
            case "count":
                padded = int_of((self.shape.max_length,))
                return counts, int_of(()), padded, padded
            case _:
                return state, int_of(()), int_of(())

    def _hidden(self, *shape: int) -> Any:
        hidden, _, _ = self._hidden_shape
        return jax.ShapeDtypeStruct((*shape, hidden.shape[-1]), hidden.dtype)

    @functools.cached_property
    def _hidden_shape(self) -> Any:
        key = Key("layers", 1, 1)
        with self.program.devices.ambient():
            return jax.eval_shape(self.function(key)[0], *self.inputs(key))


def _merged_params(program: Program) -> Any:
    """Returns the shapes of parameters in the dtype in which modules read them: no step casts what never changes."""
    state = program.abstract_state()

    def read(spec: Any, leaf: Any) -> Any:
        dtype = jax.eval_shape(lambda x: spec.as_read(x, program.dtype), leaf).dtype
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=leaf.sharding)

    return merged(jax.tree.map(read, specs(program.model), state.params), state.run_state)


def _pages(serving: Serving, tokens: int, length: int, window: int | None) -> int:
    """Returns how many pages a group has: page 0, which nobody uses, and as many as sequences can fill."""
    whole = -(-tokens // serving.page)
    if window is None:
        return 1 + whole
    chunk = max(_chunks(serving, length))
    each = min(-(-(window + chunk) // serving.page) + 2, -(-length // serving.page))
    return 1 + min(whole, max(each * serving.slots, each))


def _chunks(serving: Serving, length: int) -> tuple[int, ...]:
    """Returns the chunks of prompts that a sequence of this length can have; one at least."""
    chunks = serving.chunks or ()
    return tuple(chunk for chunk in chunks if chunk < length) or chunks[:1]


def _remembered(last: Array, slots: Array, draws: Array, tokens: Array) -> Array:
    return last.at[jnp.where(draws, slots, last.shape[0])].set(tokens, mode="drop")


def _last_of(tokens: Array) -> Array:
    """Returns the last token `[R]` of each row that is one."""
    return jnp.take_along_axis(tokens, jnp.sum(tokens >= 0, axis=1, keepdims=True) - 1, axis=1)[:, 0]


def _joined(first: Array, more: tuple[Array, ...]) -> Array:
    return jnp.stack([first, *more], axis=1)


def _check_draft(shape: DeviceShape, draft: DeviceShape) -> None:
    if not shape.drafts:
        raise ConfigError("there is a draft model, but drafts is 0, expected how many tokens it guesses: 4, say.")
    if draft.vocab_size != shape.vocab_size:
        raise ConfigError(
            f"the draft model has {draft.vocab_size} tokens, and the model {shape.vocab_size}: expected the same."
        )
    if draft.max_length < shape.max_length:
        raise ConfigError(
            f"max_length is {shape.max_length}, but the draft model has {draft.max_length} positions. Use"
            f" max_length={draft.max_length} or less."
        )
