# SPDX-License-Identifier: Apache-2.0
"""Silent data corruption: every so many steps, what a run computes, keeps and reads is compared with itself.

The batch is read twice. Devices that hold the same part of the state are compared. The step is made twice, from the
same state and batch, and the gradients and the new state of both are compared. All of this is bit for bit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np

from dovetail.checkpoint import flatten
from dovetail.config import ConfigBase, ConfigError
from dovetail.parallel import all_values

from ._device_sums import DeviceSums, bytes_on_a_device
from ._devices import Devices, GlobalBatches
from ._errors import HardwareError, TrainingError
from ._suspects import Seen, Suspect, error, suspects

if TYPE_CHECKING:
    from ._step import TrainState

_GB = 1e9


class HardwareCheck(ConfigBase):
    """How often a run checks that its hardware computes rightly.

    A check takes as long as a step, and a reading of the state or two: every 1,000 steps, a little more than 0.1 %.
    """

    every: int = 1000  # Steps.
    # Where the state is kept while the step is made the first time: beside itself, which takes its memory once more, or
    # on the host, which takes the time to move it there and back.
    keep: Literal["device", "host"] = "device"


class _Evidence(NamedTuple):
    """What is kept of a step that was made."""

    gradients: np.ndarray
    state: np.ndarray
    differ: list[int]  # Leaves of the state whose replicas do.
    metrics: dict[str, bytes]


class Checker:
    """Makes the steps that are checked. All processes of a run make one, and call it at the same steps."""

    def __init__(self, cfg: HardwareCheck, devices: Devices) -> None:
        if cfg.every < 1:
            raise ConfigError(f"hardware_check.every: is {cfg.every}, expected at least 1.")
        self.cfg, self._devices = cfg, devices
        self._mine = [each for each in devices.all if each.process_index == jax.process_index()]
        self._look: Callable[[Any], Any] | None = None

    def is_due(self, step: int) -> bool:
        """Whether a step, counted from 1, is checked."""
        return step % self.cfg.every == 0

    def batch(self, batches: GlobalBatches, step: int) -> Mapping[str, Any] | None:
        """Returns the next batch, read twice; None at the end of the data."""
        batch, *rest = batches.read_twice()
        told = [(rank, *each) for rank, each in enumerate(all_values(rest))]
        if any(not again for _, _, again in told):
            raise TrainingError(
                f"hardware check of step {step}: the input gave three different batches for one position.\n"
                "  Make it give the same each time, or leave out hardware_check: batches cannot be checked."
            )
        found = [
            Suspect(f"the field {field!r} of the batch", device, rank, host, alone=True, times=True)
            for rank, wrong, _ in told
            for field, device, host in wrong
        ]
        if found:
            raise error(step, found)
        return batch

    def check_room(self, compiled: Any, state: Any, limit: int | None = None) -> None:
        """Raises if it is known that the state does not fit twice, beside what the step takes."""
        stats = None if limit is not None else self._mine[0].memory_stats()
        limit = limit or (stats or {}).get("bytes_limit")
        if self.cfg.keep == "host" or limit is None:
            return
        size, more = compiled.memory_analysis(), bytes_on_a_device(state)
        taken = size.argument_size_in_bytes + size.temp_size_in_bytes + size.output_size_in_bytes
        taken -= size.alias_size_in_bytes
        if taken + more > limit:
            raise ConfigError(
                f"hardware_check: the step takes {taken / _GB:.2f} GB on each device, and a copy of the state "
                f"{more / _GB:.2f} GB more, but there are {limit / _GB:.2f} GB.\n"
                "  Use hardware_check.keep=host, or hardware_check=None."
            )

    def replicas(self, state: "TrainState", step: int) -> np.ndarray:
        """Returns the sums of this process's devices; raises if devices that should hold the same do not."""
        sums, differ = self._sums(state)
        wrong = np.flatnonzero(differ).tolist()
        if wrong:
            raise error(step, suspects(self._seen(state, "", [sums]), wrong))
        return sums

    def step(self, compiled: Callable[..., Any], state: "TrainState", batch: Any, step: int) -> tuple[Any, Any]:
        """Returns what the step makes of a state, whose memory it takes, and metrics."""
        self.replicas(state, step)
        again = _kept_on_host(state) if self.cfg.keep == "host" else _copied(state)
        first = self._evidence(*compiled(state, batch))  # Of what was made, only the sums are kept.
        made, values, gradients = compiled(again(), batch)
        both = first, self._evidence(made, values, gradients)
        found = suspects(self._seen(made.params, "the gradient of ", [each.gradients for each in both]))
        differ = sorted({leaf for each in both for leaf in each.differ})
        found = found or suspects(self._seen(made, "", [each.state for each in both]), differ)
        if found:
            raise error(step, found)
        changed = [name for name in values if both[0].metrics[name] != both[1].metrics[name]]
        if any(all_values(bool(changed))):
            names = ", ".join(changed) or "of another process"
            raise HardwareError(f"hardware check of step {step}: metrics are not the same both times: {names}.")
        return made, values

    def _evidence(self, state: "TrainState", metrics: Mapping[str, jax.Array], gradients: jax.Array) -> _Evidence:
        sums, differ = self._sums(state)
        values = {name: np.asarray(value).tobytes() for name, value in metrics.items()}
        return _Evidence(_local(gradients), sums, np.flatnonzero(differ).tolist(), values)

    def _seen(self, state: Any, what: str, times: Sequence[np.ndarray]) -> Seen:
        return Seen(what, list(flatten(state)), _shardings(state), _shapes(state), self._mine, times)

    def _sums(self, state: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the sums of this process's devices, and for each leaf whether replicas differ."""
        if self._look is None:
            sums = DeviceSums(self._devices.mesh, _shardings(state))
            places = (self._devices.each_its_own, self._devices.everywhere)

            def look(state: Any) -> tuple[Any, Any]:
                found = sums.of(state)
                return found, sums.differ(found)

            self._look = self._devices.jit(look, out_shardings=places)
        found, differ = self._look(state)
        return _local(found), np.asarray(differ)


def _shardings(tree: Any) -> list[Any] | None:
    found = [leaf.sharding for leaf in jax.tree.leaves(tree)]
    return found if all(isinstance(each, jax.sharding.NamedSharding) for each in found) else None


def _shapes(tree: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in jax.tree.leaves(tree)]


def _local(sums: jax.Array) -> np.ndarray:
    """Returns the rows of this process's devices, in the order of the devices of the run."""
    shards = sorted(sums.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards])


def _copied(state: Any) -> Callable[[], Any]:
    copies = [jax.tree.map(jax.numpy.copy, state)]
    return copies.pop


def _kept_on_host(state: Any) -> Callable[[], Any]:
    leaves, structure = jax.tree.flatten(state)
    kept = [
        (leaf.shape, leaf.sharding, [(shard.device, np.array(shard.data)) for shard in leaf.addressable_shards])
        for leaf in leaves
    ]

    def back(shape: Any, sharding: Any, parts: Any) -> Any:
        return jax.make_array_from_single_device_arrays(shape, sharding, [jax.device_put(x, d) for d, x in parts])

    return lambda: jax.tree.unflatten(structure, [back(*each) for each in kept])
