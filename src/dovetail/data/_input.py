# SPDX-License-Identifier: Apache-2.0
"""`Input`: batches for a trainer. `TextInput` makes those of a decoder language model."""

import abc
import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from dovetail.config import REQUIRED, Component, ConfigError, missing_fields

from ._advice import prepare_commands
from ._batches import empty_row, make_batches, needed_streams, shares_of
from ._change import ChangedDataError, Old
from ._dataset import Dataset
from ._errors import DataError, child_path, place_of
from ._iterator import BatchIterator
from ._packing import FIELDS, State
from ._skipped import Skipped
from ._spec import ROW_AXIS, BatchSpec, Field
from ._tokenizer import ByteTokenizer, Tokenizer

_STREAMS = 64  # Each has some megabytes in memory, and as many processes share the reading.


class Input(Component, abc.ABC):
    """Global batches of what its config declares, of which each process makes its part.

    Iterate over it, or over `iterator(...)`. `files` are those that `files()` gave before, as a checkpoint keeps them;
    an input that has them reads no others.
    """

    class Config(Component.Config):
        batch_size: int = REQUIRED  # Rows of a global batch, over all processes.

        def completed(self, where: str, like: "Input.Config | None" = None) -> Self:
            """Returns the config with what follows from its data, as the record of a run has to have it.

            What it leaves open else is as in the input of the run, `like`. `where` is its path, for errors.
            """
            return self

        def batch_specs(self) -> tuple[BatchSpec, ...]:
            """Returns what batches are like: one spec for each shape that there may be. Nothing is read for that."""
            raise ConfigError(f"{type(self).__qualname__} does not say what its batches are. Give it batch_specs().")

        def shares_files(self, other: "Input.Config") -> bool:
            """Whether the files of an input of the other config would be those of this one."""
            return False

    def __init__(self, cfg: Config, *, files: Mapping[str, bytes] | None = None, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)

    def files(self) -> Mapping[str, bytes] | None:
        """Returns what must travel with a model to use it, by file name: all that says what its numbers mean.

        None: that is not known here, so that any files may go with these batches.
        """
        return None

    def bounds(self) -> Mapping[str, int]:
        """Returns a number that all values of a field are less than, by field, where that is known."""
        return {}

    def when_slow(self) -> str:
        """Returns what to do if it makes batches too slowly, as a command or a clause; empty if nothing is known."""
        return ""

    def figures(self, position: State) -> dict[str, float]:
        """Returns what the data has given up to a position of all processes, by name, as in `web/tokens`."""
        return {}

    def skipped(self, position: State) -> Sequence[Skipped]:
        """Returns the last documents that were left out up to a position of all processes."""
        return ()

    def check(self, position: State) -> None:
        """Raises if too much has been left out up to a position of all processes.

        An iterator that knows all of the position does so by itself.
        """
        return

    def carry(self, position: State) -> tuple[State, Sequence[str]]:
        """Returns where to go on here from a position of all processes in other data, and what that means.

        Raises if it means nothing.
        """
        raise ChangedDataError(
            f"{place_of(self)}: {type(self).__name__} cannot go on from a position in other data.\n"
            "  Start it anew, or with what it has for the step: --data-change restart or skip-to-step."
        )

    def follow(self, position: State) -> bool:
        """Takes over from a position what the config leaves open; returns whether that has changed something."""
        return False

    def seek(self, steps: int) -> State | None:
        """Returns the position of all processes after so many steps, at least one, if that is known without reading."""
        return None

    @property
    @abc.abstractmethod
    def is_endless(self) -> bool:
        """Whether there is always another batch."""

    def __iter__(self) -> BatchIterator:
        return self.iterator()

    @abc.abstractmethod
    def iterator(self, *, shard_index: int = 0, shard_count: int = 1) -> BatchIterator:
        """Returns the batches of process `shard_index` of `shard_count`: its rows of each global batch.

        Step n has the same global batch for any number of processes. A position taken with one number of processes can
        be set with another.
        """


class TextInput(Input):
    """Tokens to train a decoder language model on: `tokens`, `targets`, `weights`, `segments`, `positions`, all [B, T].

    With a `GroupPacker` they are [B, K, T]: the K sequences of a group are in one row.

    A finite data set ends with a batch filled up with rows of weight 0; use `epochs=1, shuffle=False` to evaluate.

    With one stream, each process reads all of the data and keeps its rows; that is simple, and fast enough for small
    runs. With more, the work is divided: by processes up to the number of streams, and by `num_workers` in each.
    """

    class Config(Input.Config):
        seq_len: int = REQUIRED
        # None: the one that the data was prepared with; of what a run is evaluated on, else that of the run.
        tokenizer: Tokenizer.Config | None = ByteTokenizer.Config()
        dataset: Dataset.Config = REQUIRED
        seed: int = 0
        # Changes the order of the data, so it is chosen once for a run. It divides batch_size. None: one, but for
        # prepared data that does not end, also in a mixture, as many as are of use: up to 64.
        streams: int | None = None
        num_workers: int = 0  # Processes that prepare batches, beside this one.
        prefetch: int = 2  # Batches prepared ahead in a thread.
        # When a run is resumed. A position knows how many streams it is one of.
        may_change: ClassVar[frozenset[str]] = frozenset({"num_workers", "prefetch", "streams"})

        def batch_specs(self) -> tuple[BatchSpec, ...]:
            """Returns the one that there is: fields of tokens."""
            row = self.dataset.row_shape(self.seq_len)
            shape, axes = (self.batch_size, *row), (ROW_AXIS, *[None] * (len(row) - 1), "seq")
            fields = {name: Field(shape, np.dtype(dtype).name, axes) for name, dtype in FIELDS.items()}
            fields["weights"] = dataclasses.replace(fields["weights"], padding=0)
            return (BatchSpec(fields, "token", math.prod(shape), counted="weights"),)

        def shares_files(self, other: Input.Config) -> bool:
            """Whether the other input has the same tokenizer."""
            return isinstance(other, TextInput.Config) and self.tokenizer == other.tokenizer

        def completed(self, where: str, like: Input.Config | None = None) -> Self:
            """Returns the config with the tokenizer of the data, or else of the run, where it has none of its own."""
            if self.tokenizer is not None or self.dataset is REQUIRED:
                return self
            if (known := self.dataset.prepared_with(f"{where}.dataset")) is not None:
                return self.set(tokenizer=known.cfg)
            return self.set(tokenizer=like.tokenizer) if isinstance(like, TextInput.Config) else self

    def __init__(self, cfg: Config, *, files: Mapping[str, bytes] | None = None, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self.tokenizer = self._built_tokenizer(files)
        for name, least in {"batch_size": 1, "seq_len": 1, "streams": 1, "num_workers": 0, "prefetch": 0}.items():
            if getattr(cfg, name) is not None and getattr(cfg, name) < least:
                raise ConfigError(f"{place_of(self, name)}: is {getattr(cfg, name)}. Use {least} or more.")
        if cfg.streams is not None and cfg.batch_size % cfg.streams:
            raise ConfigError(
                f"{place_of(self, 'streams')}: streams ({cfg.streams}) must divide batch_size ({cfg.batch_size})."
            )
        dataset = cfg.dataset.set(seq_len=cfg.seq_len, seed=cfg.seed)
        given = {"tokenizer": self.tokenizer, "rows_per_step": cfg.batch_size}
        self._dataset: Dataset = dataset.build(path=child_path(self, "dataset"), **given)
        self._check_streams_of_rows()
        several = math.gcd(cfg.batch_size, _STREAMS) if self._dataset.wants_streams and self._dataset.is_endless else 1
        several = cfg.batch_size if self._dataset.rows_go_on else several
        self._num_streams = several if cfg.streams is None else cfg.streams
        if self._num_streams > 1 and not self._dataset.is_endless:
            raise ConfigError(
                f"{place_of(self, 'streams')}: is {self._num_streams}, and the data set ends.\n"
                "  Streams end at different times, and no process knows when the others do. Use streams=1, or no end."
            )

    def _check_streams_of_rows(self) -> None:
        """Raises if rows go on in the batch after, and not each in a stream of its own."""
        if self._dataset.rows_go_on and self.cfg.streams not in (None, self.cfg.batch_size):
            raise ConfigError(
                f"{place_of(self, 'streams')}: is {self.cfg.streams}, and each row of a batch goes on in the next "
                f"one, so that it must be a stream of its own.\n"
                f"  Use streams={self.cfg.batch_size}, the batch_size, or another packer."
            )

    def _built_tokenizer(self, files: Mapping[str, bytes] | None) -> Tokenizer:
        """Returns the tokenizer; that of prepared data is made from what lies with the data."""
        cfg, given, path = self.cfg, self.cfg.tokenizer, child_path(self, "tokenizer")
        if given is None or files is None:
            known = cfg.dataset.prepared_with(child_path(self, "dataset"))
            if known is not None and given in (None, known.cfg):
                given, files = known.cfg, known.files if files is None else files
        if given is None:
            dataset = cfg.dataset.set(seq_len=cfg.seq_len, seed=cfg.seed)
            if missing_fields(dataset):
                dataset.build(path=child_path(self, "dataset"))  # The data is not named: that is to be said.
            raise ConfigError(
                f"{path}: is None, for the one that the data was prepared with, and this data is not prepared.\n"
                f"  Name one, as in {path}=HuggingFaceTokenizer {path}.file=tokenizer.json."
            )
        return given.build(path=path, files=files)

    def files(self) -> Mapping[str, bytes]:
        """Returns those of the tokenizer."""
        return self.tokenizer.files()

    def when_slow(self) -> str:
        if commands := prepare_commands(self.cfg.dataset, self.tokenizer.cfg):
            return commands
        where = place_of(self, "num_workers")
        return f"divide the work among processes, at most {self._num_streams} of them: {where}=N"

    def bounds(self) -> Mapping[str, int]:
        """Returns the number of tokens that there are."""
        return dict.fromkeys(("tokens", "targets"), self.tokenizer.vocab_size)

    @property
    def is_endless(self) -> bool:
        return self._dataset.is_endless

    def iterator(self, *, shard_index: int = 0, shard_count: int = 1) -> BatchIterator:
        cfg = self.cfg
        if not 0 <= shard_index < shard_count:
            raise ConfigError(f"{place_of(self)}: there is no shard {shard_index} of {shard_count}.")
        if cfg.batch_size % shard_count:
            raise ConfigError(
                f"{place_of(self, 'batch_size')}: the number of processes ({shard_count}) must divide batch_size "
                f"({cfg.batch_size})."
            )
        streams = needed_streams(shard=shard_index, num_shards=shard_count, num_streams=self._num_streams)
        if cfg.num_workers > len(streams):
            raise ConfigError(
                f"{place_of(self, 'num_workers')}: num_workers ({cfg.num_workers}) is more than the streams of this "
                f"process ({len(streams)}), so some would have nothing to do.\n"
                f"  Use fewer, or streams={cfg.num_workers * shard_count} (that changes the order of the data)."
            )
        start = functools.partial(self._start, shard_index, shard_count)
        return BatchIterator(
            start,
            streams=streams,
            num_streams=self._num_streams,
            about=self._about(),
            ahead=cfg.prefetch,
            check=self._check_streams,
        )

    def carry(self, position: State) -> tuple[State, Sequence[str]]:
        was, now = position["about"], json.loads(json.dumps(self._about()))
        if was.keys() != now.keys():
            return super().carry(position)
        same_tokens, notes = was["tokenizer"] == now["tokenizer"], list[str]()
        if not same_tokens:
            notes.append("another tokenizer: a token is not what it was")
        streams = [position["streams"].get(str(stream)) for stream in range(was["streams"])]
        if not position["step"]:
            return {"step": 0, "streams": {}, "about": now}, notes
        if missing := [stream for stream, state in enumerate(streams) if state is None]:
            raise DataError(f"the position lacks streams {missing}. Join those of all processes with merge_states.")
        found = self._dataset.carry(streams, Old(was["dataset"], same_tokens, position["step"]), self._num_streams)
        states = {str(stream): state for stream, state in enumerate(found.states)}
        return {"step": position["step"], "streams": states, "about": now}, [*notes, *found.notes]

    def follow(self, position: State) -> bool:
        count = position["about"].get("streams")
        is_open = self.cfg.streams is None and self._dataset.wants_streams and self._dataset.is_endless
        if not is_open or count in (None, self._num_streams) or self.cfg.batch_size % count:
            return False
        self._num_streams = count  # With a batch of another size, it would choose others.
        return True

    def seek(self, steps: int) -> State | None:
        found = self._dataset.seek(steps * self.cfg.batch_size // self._num_streams, self._num_streams)
        if found is None:
            return None
        about = json.loads(json.dumps(self._about()))
        return {"step": steps, "streams": {str(stream): state for stream, state in enumerate(found)}, "about": about}

    def figures(self, position: State) -> dict[str, float]:
        return self._dataset.figures(self._states_of(position["streams"]))

    def skipped(self, position: State) -> Sequence[Skipped]:
        return self._dataset.skipped(self._states_of(position["streams"]))

    def check(self, position: State) -> None:
        self._check_streams(position["streams"])

    def _check_streams(self, states: Mapping[str, State]) -> None:
        self._dataset.check(self._states_of(states))

    def _states_of(self, states: Mapping[str, State]) -> list[State | None]:
        return [states.get(str(stream)) for stream in range(self._num_streams)]

    def _about(self) -> dict[str, Any]:
        """What a position depends on."""
        return {
            "seq_len": self.cfg.seq_len,
            "streams": self._num_streams,
            "tokenizer": self.tokenizer.fingerprint(),
            "dataset": self._dataset.fingerprint(),
        }

    def _start(self, shard_index: int, shard_count: int, states: dict[str, State]) -> list[Any]:
        """Starts what makes the batches of a process: generators, or workers that run them."""
        cfg, pad_id = self.cfg, self.tokenizer.pad_id
        empty = empty_row(cfg.dataset.row_shape(cfg.seq_len), 0 if pad_id is None else pad_id)
        shares = shares_of(
            shard=shard_index,
            num_shards=shard_count,
            batch_size=cfg.batch_size,
            num_streams=self._num_streams,
            workers=max(cfg.num_workers, 1),
        )
        made = [
            functools.partial(
                make_batches,
                self._dataset,
                share,
                {name: state for name, state in states.items() if int(name) in share.streams},
                empty,
            )
            for share in shares
        ]
        if not cfg.num_workers:
            return [make() for make in made]
        from ._workers import Worker  # Here, because it imports JAX.

        return [Worker(make) for make in made]
