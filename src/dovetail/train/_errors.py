# SPDX-License-Identifier: Apache-2.0
"""Why a run cannot go on, where that is not a mistake in a config."""


class TrainingError(RuntimeError):
    """A run cannot go on; the message says why, and what is left."""


class HardwareError(TrainingError):
    """Something was computed, kept or moved wrongly; the message says what, and on which device.

    All processes raise it. The state is not saved, and the newest checkpoint is from before.
    """

    def __init__(self, text: str, process: int | None = None) -> None:
        """`process` is the one whose host did it; None where more than one may have."""
        super().__init__(text)
        self.process = process
