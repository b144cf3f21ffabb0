# SPDX-License-Identifier: Apache-2.0
"""What this process was started for, as far as a command line knows it."""

import dataclasses

from ._moment import Moment, age, now


@dataclasses.dataclass
class _Program:
    recipe: str = ""
    began: Moment | None = None


_program = _Program()


def program(recipe: str) -> None:
    """Says that this process is there to train a recipe: its time counts from its beginning, imports included."""
    _program.recipe, _program.began = recipe, now().before(age())


def recipe() -> str:
    """Returns the name of what this process trains; empty if it is not known."""
    return _program.recipe


def began() -> Moment:
    """Returns since when the time of this process is that of a run: from its beginning, for the first who asks."""
    found, _program.began = _program.began, None
    return found or now()
