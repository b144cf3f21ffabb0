# SPDX-License-Identifier: Apache-2.0
"""What the loop does about spikes: it says so, and where that is the policy, goes back to before them.

A rollback takes the newest checkpoint that the run makes on its own, every `save_every` steps: one made because the run
was interrupted would make another run of it.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dovetail.checkpoint import Checkpointer, CorruptionError

from ._devices import GlobalBatches
from ._errors import TrainingError
from ._left_out import LeftOut
from ._program import Program
from ._spikes import Spikes
from ._step import TrainState
from ._trained import restore_state

_log = logging.getLogger(__name__)


class Bad(NamedTuple):
    """A step that a run goes back for."""

    step: int
    streak: int  # Steps without an update, up to this one.
    why: str


def seen(cfg: Spikes.Config, step: int, metrics: Mapping[str, Any], say: Callable[[int, str, str], None]) -> Bad | None:
    """Says what a step without an update was; returns it if it is to be rolled back."""
    streak = int(metrics["spike/streak"])
    if not streak:
        return None
    is_spike, loss = bool(metrics["spike/here"]), float(metrics["total_loss"])
    why = _reason(metrics, loss) if is_spike else f"loss {loss:.6g}, gradient norm {float(metrics['grad_norm']):.6g}"
    goes_back = is_spike and cfg.policy == "rollback"
    goes_back |= cfg.rollback_after_bad is not None and streak >= cfg.rollback_after_bad
    done = "the run goes back" if goes_back else f"its update is left out ({int(metrics['skipped'])} so far)"
    say(step, "spike" if is_spike else "bad step", f"{why}; {done}")
    return Bad(step, streak, why) if goes_back else None


def _reason(metrics: Mapping[str, Any], loss: float) -> str:
    values = {"loss": loss, "norm": float(metrics["grad_norm"])}
    found = []
    for name, value in values.items():
        limit = float(metrics.get(f"spike/{name}_limit", math.inf))
        if value > limit:
            median = float(metrics[f"spike/{name}_median"])
            found.append(f"{_SHOWN[name]} {value:.6g} is above {limit:.6g}, where the median is {median:.6g}")
    return " and ".join(found)


_SHOWN = {"loss": "loss", "norm": "gradient norm"}


class Place(NamedTuple):
    """Where a run has gone back to."""

    step: int
    state: TrainState
    position: Any  # In the data; None before the first batch.


def go_back(
    bad: Bad, program: Program, checkpointer: Checkpointer, start: Callable[[], TrainState], every: int
) -> Place:
    """Returns the state of the newest good checkpoint before a bad step; where there is none, that of the start.

    Newer checkpoints are deleted: the run makes those steps again.
    """
    checkpointer.wait()
    steps = checkpointer.steps()
    before = [step for step in steps if 0 < step <= bad.step - bad.streak]  # Step 0 has weights, and nothing else.
    order = sorted(before, key=lambda step: (step % every == 0, step), reverse=True)
    for step in order:
        try:
            restored, state = restore_state(program, checkpointer, step)
        except CorruptionError as e:
            _log.warning("%s", e)
            continue
        if steps[-1] > step:
            checkpointer.discard_after(step)
        return Place(step, state, restored.data_state)
    if before:
        raise TrainingError(f"step {bad.step} is to be rolled back, and none of the checkpoints {before} is good.")
    if steps and steps[-1]:
        checkpointer.discard_after(0)
    return Place(0, start(), None)


def leave_out(bad: Bad, place: Place, batches: GlobalBatches, number: int) -> LeftOut:
    """Goes on in the data after the bad batch, which has a number; returns what that leaves out.

    The batches are at their start if the run is.
    """
    before = batches.left_out
    if place.position is not None:
        batches.set_state(place.position)
    found = LeftOut(bad.step, place.step, batches.number + 1, number, bad.why)
    batches.left_out = before  # What the checkpoint knows is less.
    batches.leave_out(found)
    return found


def check_number(bad: Bad, before: tuple[LeftOut, ...], cfg: Spikes.Config | None) -> None:
    """Raises if a run would be rolled back too often."""
    most = cfg.max_rollbacks if cfg else 0
    if len(before) >= most:
        made = f"{len(before)} rollbacks are" if len(before) != 1 else "1 rollback is"
        raise TrainingError(
            f"step {bad.step} would have to be rolled back, and {made} made, of at most {most}: {bad.why}.\n"
            "  Look at the data and the learning rate; to go on all the same, raise spikes.max_rollbacks."
        )
