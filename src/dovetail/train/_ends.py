# SPDX-License-Identifier: Apache-2.0
"""Where data ends: all processes of a run stop before the same step, although one of them alone has no batch for it.

A process knows some steps ahead that a batch will not come. How many batches it has after that of a step goes along
with the batch, and the least of all processes comes back with the metrics of the step. Those are read before the first
step is begun for which a batch might be missing, so that no process begins one that others cannot join, and nobody
waits for anything that is not waited for anyway.
"""

import math
from typing import Any

import jax
import numpy as np

from dovetail.parallel import all_values, together

from ._devices import Devices, GlobalBatches

LEFT = "batches_left"  # In a batch: of each device, those of its process. In metrics: the least of them.
AHEAD = 2  # Steps that the host is ahead of the device: enough for the device never to wait, few batches in memory.
_LOOK = AHEAD + 1  # Batches: those of the steps that are begun before the metrics of a step are read, and one more.


def abstract_left(devices: Devices) -> dict[str, Any]:
    """Returns shape and place of what goes along with a batch; nothing does where there is one process."""
    if jax.process_count() == 1:
        return {}
    return {LEFT: jax.ShapeDtypeStruct((len(devices.all),), np.int32, sharding=devices.each_its_own)}


class Ends:
    """Finds the last step that all processes have a batch for. All of them make one, before the same step."""

    def __init__(self, batches: GlobalBatches, devices: Devices, step: int) -> None:
        self._batches, self._devices, self._several = batches, devices, jax.process_count() > 1
        self._arrays: dict[int, jax.Array] = {}
        self._begun = False
        self.last = math.inf  # The last step, as far as is known.
        self._agree(step, 1)

    def look(self) -> None:
        """Waits for the batches that have to be there before a step is begun; the first time that is done later."""
        if self._several and self._begun:
            self._batches.left(_LOOK)

    def _agree(self, step: int, most: int) -> None:
        if self._several and (left := min(all_values(self._batches.left(most)))) < most:
            self.last = step + left

    def beside(self, step: int) -> dict[str, jax.Array]:
        """Returns what goes along with the batch of a step, which is about to be begun."""
        if not self._several:
            return {}
        if not self._begun:  # No metrics will tell of the first steps in time.
            self._begun = True
            self._agree(step, _LOOK)
        left = self._batches.left(_LOOK)
        if left not in self._arrays:  # The same one is used again and again.
            place, shape = self._devices.each_its_own, (len(self._devices.all),)
            values = np.full(shape, left, np.int32)
            self._arrays[left] = jax.make_array_from_callback(shape, place, lambda index: values[index])
        return {LEFT: self._arrays[left]}

    def seen(self, step: int, metrics: dict[str, Any]) -> None:
        """Takes what is known of the end from the metrics of a step."""
        if LEFT in metrics and (left := int(metrics.pop(LEFT))) < _LOOK:
            self.last = min(self.last, step + left)

    def raise_errors(self, step: int) -> None:
        """Raises in all processes, if the step was the last because the data of one of them cannot be read."""
        if step == self.last:
            together(self._batches.raise_error, everywhere=True)
