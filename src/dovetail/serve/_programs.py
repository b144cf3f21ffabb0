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

from dovetail.config import ConfigError
from dovetail.module import State, StateSpecs, call, merged, size_names, specs, state_specs
from dovetail.nn import page_window
from dovetail.ops import Choice, by_native_kernels, kernel_choices
from dovetail.parallel import decoding_layout
from dovetail.train import Program, Trainer

from ._apart import layers_apart
from ._device import DeviceShape, Group
from ._draw import Counts, count_tokens, make_counts
from ._draw_programs import DrawPrograms, abstract_draw, joined, pooled
from ._in_pages import in_pages
from ._memory import fitting_tokens, free_bytes
from ._native import packed_program, packs_weights
from ._predictions import Ahead, Made, guess, predict, with_last
from ._quantised import check_kept, check_speed, in_panels_as_they_are, is_rounded, quantised
from ._serving import LONGEST, Serving, fitting_chunks, num_pages
from ._shapes import abstract_inputs, int_of
from ._store import Store


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
        self._hidden_shape = self._hidden_of_one()
        if self.predictions:
            self._size_names |= self._sizes_of_predictions()
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
        length = self.serving.max_length or min(longest or LONGEST, LONGEST)
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
        pages = {name: num_pages(serving, tokens, length, page_window(name)) for name in groups}
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
            chunks=fitting_chunks(serving, length),
            max_logprobs=serving.max_logprobs,
            max_biased=serving.max_biased,
            drafts=serving.drafts,
            own_drafts=bool(self.predictions),
            pooling=serving.embed,
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

    def _sizes_of_predictions(self) -> set[str]:
        ids, given = abstract_inputs(1, 1)
        with self.program.devices.ambient():
            options = {"sizes": {"batch": 1}, **given, **self._options}
            return size_names(self.program.model, self.params, ids, *self._ahead(1), method="predict", **options)

    def _specs(self, rows: int, pages: Mapping[str, int]) -> StateSpecs:
        width = -(-self._length // self.serving.page)
        sizes = {name: width for name in self._size_names if name.startswith("row_pages")}
        sizes |= {"batch": rows, "capacity": self._length, **pages}
        if self._declared is None:
            ids, given = abstract_inputs(rows, 1)
            with self.program.devices.ambient():
                options = {"sizes": sizes, **given, **self._options}
                self._declared = state_specs(self.program.model, self.params, ids, method="hidden", **options)
                if self.predictions:
                    inputs = (ids, *self._ahead(rows))
                    self._declared |= state_specs(self.program.model, self.params, *inputs, method="predict", **options)
        return {path: spec.resized(sizes) for path, spec in self._declared.items()}

    def _ahead(self, rows: int, time: int = 1) -> tuple[Any, Any]:
        """Returns the shapes of what predictions are made from."""
        return self._hidden(rows, time), self._hidden(rows, self.predictions)

    @functools.cached_property
    def predictions(self) -> int:
        """How many tokens after the next the model predicts, if it makes the guesses itself; else 0."""
        if self.serving.drafter != "predictions" or not self.serving.drafts:
            return 0
        model, count = self.program.model, 0
        if hasattr(model, "num_predictions"):
            with self.program.devices.ambient():
                count, _ = call(model, self.params, method="num_predictions")
        if not count:
            raise ConfigError(
                f'drafter is "predictions", but {model!r} predicts the next token alone.\n'
                '  Train it with `predictions`, or use drafter="lookup", or a draft model.'
            )
        return count

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
        for chunk in shape.chunks if shape.pooling else ():
            yield Key("pool", 1, chunk)
        yield Key("count")
        if shape.has_row_state and shape.snapshots:
            yield Key("save")

    def prediction_keys(self) -> Iterator[Key]:
        """Yields the programs of a model that makes the guesses itself."""
        shape = self.shape
        for rows, time in {(1, chunk) for chunk in (1, *shape.chunks)} | {
            (rows, time) for rows in shape.rows for time in (1, shape.drafts + 1)
        }:
            yield Key("predict", rows, time)
        for rows in shape.rows:
            yield Key("guess", rows, shape.drafts + 1)

    def function(self, key: Key) -> tuple[Callable[..., Any], tuple[int, ...]]:
        """Returns a program, and which of its arguments it takes the memory of."""
        match key.name:
            case "layers":
                return functools.partial(self._layers, self.store(key.rows)), (1,)
            case "predict":
                return functools.partial(predict, self.ahead(key.rows)), (1, 3)
            case "guess":
                return functools.partial(guess, self.ahead(key.rows), key.time - 1), (1,)
            case "greedy":
                return self._draws.greedy, (2,)
            case "draw":
                return self._draws.draw, (2, 3)
            case "verify_greedy":
                return self._draws.verify_greedy, (2,)
            case "verify":
                return self._draws.verify, (2, 3)
            case "score":
                return self._draws.score, ()
            case "pool":
                return pooled, ()
            case "join":
                return joined, ()
            case "count":
                return count_tokens, (0,)
            case _:
                return self.store(1).copied, (0,)

    def traced(self, key: Key) -> Any:
        """Returns a program for arguments of its shapes (`jax.stages.Traced`); nothing is compiled yet."""
        function, donated = self.function(key)
        everywhere, state = self.program.devices.everywhere, self.state_shardings()
        places = {
            "layers": (everywhere, everywhere, state),
            "predict": (everywhere, state),
            "guess": (everywhere, state),
            "save": state,
        }.get(key.name, everywhere)
        options = {} if everywhere is None else {"out_shardings": places}
        with self.program.devices.ambient(), by_native_kernels(bool(self.packs)), kernel_choices() as choices:
            traced = jax.jit(function, donate_argnums=donated, **options).trace(*self.inputs(key))
        self.choices += [choice for choice in choices if choice not in self.choices]
        return traced

    @property
    def _draws(self) -> DrawPrograms:
        return DrawPrograms(self.program.model, self._options, self.shape.max_logprobs)

    def ahead(self, rows: int) -> Ahead:
        """Returns what programs of predictions are made of, for calls of so many rows."""
        return Ahead(self.program.model, self.store(rows), self._options, self.predictions)

    def make_made(self) -> Made:
        """Returns what was made of the last tokens before the first call, for predictions."""
        hidden, slots = self._hidden(self.shape.slots, self.predictions), self.shape.slots
        return Made(jnp.zeros(hidden.shape, hidden.dtype), jnp.full(slots, -1, jnp.int32))

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
        ids = with_last(ids, rows, last)
        given = store.rows(state, rows["source"], rows["fresh"], tables)
        options = {"method": "hidden", "lengths": count, "start": rows["start"], "step": step, **self._options}
        hidden, collected = call(self.program.model, params, ids, state=given, **options)
        end = jnp.maximum(count - 1, 0)[:, None, None]
        final = jnp.take_along_axis(hidden, end, axis=1)[:, 0]
        return hidden, final, store.written(state, collected.state or {}, slots)

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
            case "predict" | "guess":
                layers = self._inputs(Key("layers", key.rows, key.time))
                made = jax.eval_shape(self.make_made)
                more = (self._hidden(key.rows, key.time), ids) if key.name == "predict" else ()
                return *layers[:3], made, *layers[3:], *more
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
            case "pool":
                return self._hidden(1, key.time), jax.ShapeDtypeStruct((1, key.time), jnp.float32)
            case "count":
                padded = int_of((self.shape.max_length,))
                return counts, int_of(()), padded, padded
            case _:
                return state, int_of(()), int_of(())

    def _hidden(self, *shape: int) -> Any:
        return jax.ShapeDtypeStruct((*shape, self._hidden_shape.shape[-1]), self._hidden_shape.dtype)

    def _hidden_of_one(self) -> Any:
        def hidden(params: Any, ids: Array) -> Array:
            return call(self.program.model, params, ids, method="hidden", **self._options)[0]

        with self.program.devices.ambient():
            return jax.eval_shape(hidden, self.params, int_of((1, 1)))


def _merged_params(program: Program) -> Any:
    """Returns the shapes of parameters in the dtype in which modules read them: no step casts what never changes."""
    state = program.abstract_state()

    def read(spec: Any, leaf: Any) -> Any:
        dtype = jax.eval_shape(lambda x: spec.as_read(x, program.dtype), leaf).dtype
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=leaf.sharding)

    return merged(jax.tree.map(read, specs(program.model), state.params), state.run_state)


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
