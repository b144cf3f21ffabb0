# SPDX-License-Identifier: Apache-2.0
"""What a config takes over from the one whose place it takes, and what would be lost."""
# pyright: reportPrivateUsage=false
# Node's methods are private to this package, not to its file.

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from ._errors import ConfigError, did_you_mean
from ._traverse import get_in
from ._types import name_of
from ._values import Node, join, kind, same, spell

Drop = Iterable[str] | Literal["unplaced"]  # Names of fields, or all that have no place.

_SHOWN = 5  # Places in an error; there may be one for each layer.


class Loss(NamedTuple):
    """A field that was set in the old config and has no place in the new one."""

    path: str
    value: Any
    expected: str | None  # The type of the field of that name, if there is one.

    def __str__(self) -> str:
        found = f"{self.path} = {spell(self.value)}"
        return found if self.expected is None else f"{found} (here it is {self.expected})"


def inherit(new: Any, old: Any, drop: Drop) -> tuple[Any, list[Loss]]:
    """Returns `new` with what it takes over from `old`, and what is lost; `ConfigBase.inherit` documents the rule."""
    losses: list[Loss] = []
    made = _inherit(new, old, frozenset() if drop == "unplaced" else frozenset(drop), losses, "")
    return made, [] if drop == "unplaced" else losses


def check_losses(found: Iterable[tuple[str, Any, Any, list[Loss]]]) -> None:
    """Raises one error for all that is lost, of configs `(path, new, old, losses)`."""
    lossy = [each for each in found if each[-1]]
    if not lossy:
        return
    texts: list[str] = []
    for path, new, old, losses in lossy[:_SHOWN]:
        lines = "".join(f"\n    {loss}" for loss in losses)
        place = f"{path}: " if path else ""
        texts.append(f"{place}{new._label()} has no place for what was set in {old._label()}:{lines}\n")
    if len(lossy) > _SHOWN:
        texts.append(f"... and so at {len(lossy) - _SHOWN} more places.\n")
    names = tuple(dict.fromkeys(loss.path for *_, losses in lossy for loss in losses))
    raise ConfigError(f"{''.join(texts)}  Give it such fields, or let them go: drop={names}.")


def checked_drop(drop: Drop, olds: Iterable[Node], missing_ok: bool = False) -> Drop:
    """Returns `drop`, or raises for a name in it that is a field of none of the old configs."""
    if drop == "unplaced":
        return drop
    if isinstance(drop, str):
        raise ConfigError(f"drop: expected a list of field names, found {drop!r} (str). Write drop=({drop!r},).")
    names, olds = frozenset(drop), list(olds)
    for name in sorted(names):
        if not missing_ok and not any(_has(old, name) for old in olds):
            known = [field for old in olds for field in old._values()]
            raise ConfigError(f"drop: nothing that is replaced has a field {name!r}.{did_you_mean(name, known)}")
    return names


def is_off(cfg: Any, name: str) -> bool:
    """Whether a field is None, False, zero or empty, as it is by default: nothing that could be lost."""
    value = cfg._values()[name]
    plain = kind(value) in ("atom", "list", "tuple", "dict", "set")
    return plain and not value and same(value, cfg._defaults[name])


def _inherit(new: Any, old: Any, drop: frozenset[str], losses: list[Loss], at: str) -> Any:
    hints, mine = new._field_types(), new._values()
    taken: dict[str, Any] = {}
    for name, value in old._values().items():
        place, was_set = join(at, name), name in old._explicit
        if place in drop or kind(value) == "marker":
            continue
        both = name in hints and isinstance(value, Node) and isinstance(mine[name], Node)
        if name in new._explicit and not both:
            continue
        if not was_set and new.keeps_defaults and kind(mine.get(name)) != "marker":
            continue
        if name in hints and name not in new._explicit and _fits(new, name, value, hints[name]):
            taken[name] = value
        elif both:
            below: list[Loss] = []
            taken[name] = _inherit(mine[name], value, drop, below, place)
            losses.extend(below if was_set else ())
        elif was_set and not is_off(old, name):
            losses.append(Loss(place, value, name_of(hints[name]) if name in hints else None))
    made = new._with(taken, new._label())
    object.__setattr__(made, "_explicit", new._explicit | (old._explicit & taken.keys()))
    return made


def _fits(new: Any, name: str, value: Any, hint: Any) -> bool:
    try:
        new._checked(value, hint, name)
    except ConfigError:
        return False
    return True


def _has(old: Any, path: str) -> bool:
    try:
        get_in(old, path)
    except ConfigError:
        return False
    return True
