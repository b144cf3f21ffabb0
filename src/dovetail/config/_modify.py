# SPDX-License-Identifier: Apache-2.0
"""Modifiers: pure functions from config tree to config tree that know what they changed."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ._base import ConfigBase
from ._component import Component
from ._errors import ConfigError
from ._inherit import Drop, Loss, check_losses, checked_drop, inherit
from ._report import Change, LeftAlone, Report, near_interface
from ._text import ROOT
from ._traverse import find, rebuild
from ._values import bare_name

_C = TypeVar("_C", bound=ConfigBase)
New = ConfigBase | Callable[[Any], Any]
Missing = Literal["error", "ok"]


@dataclass(frozen=True)
class Modifier:
    """A change of configs. Call it to get the new config; `report` says in addition what it changed."""

    report: Callable[[Any], Report]

    def __call__(self, cfg: _C) -> _C:
        return self.report(cfg).config


def replace_all(
    target: type[ConfigBase] | Mapping[type[ConfigBase], New],
    new: New | None = None,
    *,
    at: str = "*",
    missing: Missing = "error",
    drop: Drop = (),
) -> Modifier:
    """Returns a modifier that puts `new` in the place of every `target` config, anywhere in the tree.

    A `new` config inherits from the one it replaces (see `inherit`): it takes over what it has a place for, and what
    was set and has no place is an error. A function gets the old config and returns the new one as it is to be.

    Where one match lies inside another, the outer one is replaced and the report lists the inner one as skipped. It
    also lists what is near to a match and left alone. Several replacements at once are given as a mapping
    `{target: new}`; a node that two of them claim is an error, and so is a target without a match unless
    `missing="ok"`.

    Args:
        at: only paths that match, where `*` stands for any characters: `model.decoder.*`.
        drop: fields of the old configs that a `new` config does not take over, or "unplaced", as in `inherit`.
    """
    rules: dict[Any, Any] = dict(target) if isinstance(target, Mapping) else {target: new}
    for old, replacement in rules.items():
        _check_rule("replace_all", old, replacement)
    if drop and not any(isinstance(replacement, ConfigBase) for replacement in rules.values()):
        raise ConfigError("replace_all: drop is for a config that inherits. A function says itself what it takes over.")

    def report(cfg: ConfigBase) -> Report:
        claimed = _claims(cfg, rules, at, missing, "replaced")
        changes, found = list[Change](), list[tuple[str, Any, Any, list[Loss]]]()
        dropped = checked_drop(drop, map(cfg.get_in, claimed), missing_ok=missing == "ok")

        def swap(path: str, old: ConfigBase) -> ConfigBase | None:
            if path not in claimed:
                return None
            made, losses = _made(rules[claimed[path]], old, path, dropped)
            changes.append(Change(path, old, made))
            found.append((path or ROOT, made, old, losses))
            return made

        changed = rebuild(cfg, swap)  # Says whether each fits its slot, before what it would lose.
        check_losses(found)
        done = {change.path for change in changes}
        skipped = tuple(path for path in claimed if path not in done)
        return Report(changed, tuple(changes), skipped, _left_alone(cfg, rules, at, tuple(done)))

    return Modifier(report)


def modify(target: type[_C], change: Callable[[_C], Any], *, at: str = "*", missing: Missing = "error") -> Modifier:
    """Returns a modifier that applies `change` to every `target` config, to inner matches before outer ones.

    >>> modify(Norm.Config, lambda norm: norm.set(eps=1e-5))  # doctest: +SKIP
    """

    _check_rule("modify", target, change)

    def report(cfg: ConfigBase) -> Report:
        claimed = list(_claims(cfg, {target: change}, at, missing, "modified"))
        alone = _left_alone(cfg, {target: change}, at)
        changes: dict[str, Change] = {}
        for path in sorted(claimed, key=_depth, reverse=True):
            old: Any = cfg.get_in(path)
            changes[path] = Change(path, old, _made(change, old, path)[0])
            cfg = cfg.set_in(path, changes[path].new)
        return Report(cfg, tuple(changes[path] for path in claimed), (), alone)

    return Modifier(report)


def chain(*modifiers: Callable[[Any], Any]) -> Modifier:
    """Returns a modifier that applies these one after the other; plain functions of a config are welcome too."""

    def report(cfg: Any) -> Report:
        reports = [Report(cfg, ())]
        for modifier in modifiers:
            before = reports[-1].config
            reports.append(modifier.report(before) if isinstance(modifier, Modifier) else Report(modifier(before), ()))
        changes = tuple(change for r in reports for change in r.changes)
        done = {change.path for change in changes}
        alone = {node.path: node for r in reports for node in r.left_alone if node.path not in done}
        skipped = tuple(path for r in reports for path in r.skipped)
        return Report(reports[-1].config, changes, skipped, tuple(alone.values()))

    return Modifier(report)


def _check_rule(name: str, target: Any, new: Any) -> None:
    if not (isinstance(target, type) and issubclass(target, ConfigBase)):
        is_component = isinstance(target, type) and issubclass(target, Component)
        found = f"{bare_name(target)} (a class)" if isinstance(target, type) else repr(target)
        hint = f" Did you mean {bare_name(target)}.Config?" if is_component else ""
        raise ConfigError(f"{name}: expected a config class, found {found}.{hint}")
    if isinstance(new, type):
        raise ConfigError(
            f"{name}: expected a config or a function, found the class {bare_name(new)}. Write {bare_name(new)}()."
        )
    if not isinstance(new, ConfigBase) and not callable(new):
        raise ConfigError(f"{name}: expected a config or a function to replace {bare_name(target)}, found {new!r}.")


def _claims(
    cfg: ConfigBase, rules: Mapping[type[ConfigBase], Any], at: str, missing: Missing, verb: str
) -> dict[str, type[ConfigBase]]:
    """Returns `{path: target}` of all matches, parents first, found before anything is changed."""
    pattern = _pattern(at)
    claimed: dict[str, type[ConfigBase]] = {}
    for path, node in find(cfg, ConfigBase):
        targets = [target for target in rules if isinstance(node, target)]
        if not targets or not pattern.fullmatch(path):
            continue
        if len(targets) > 1:
            both = f"{bare_name(targets[0])} and {bare_name(targets[1])}"
            raise ConfigError(
                f"{path or ROOT}: claimed by two replacements, of {both}. Apply them one after the other."
            )
        claimed[path] = targets[0]
    for target in rules:
        if missing == "error" and target not in claimed.values():
            raise ConfigError(_no_match(cfg, target, at, verb))
    return claimed


def _left_alone(
    cfg: ConfigBase, rules: Mapping[type[ConfigBase], Any], at: str, replaced: tuple[str, ...] = ()
) -> tuple[LeftAlone, ...]:
    """Returns the nodes near to a target that none claims, but for those inside a replaced node."""
    pattern, found, inside = _pattern(at), list[LeftAlone](), [f"{path}{after}" for path in replaced for after in ".["]
    for path, node in find(cfg, ConfigBase):
        if isinstance(node, tuple(rules)) or not pattern.fullmatch(path) or path.startswith(tuple(inside)):
            continue
        if interface := next(filter(None, (near_interface(node, target) for target in rules)), None):
            found.append(LeftAlone(path, node, interface))
    return tuple(found)


def _pattern(at: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, at.split("*"))))


def _no_match(cfg: ConfigBase, target: type, at: str, verb: str) -> str:
    nodes = [(path or ROOT, bare_name(type(node))) for path, node in find(cfg, ConfigBase)]
    tree = "".join(f"\n  {path}: {name}" for path, name in nodes[:40])
    more = f"\n  ... and {len(nodes) - 40} more" if len(nodes) > 40 else ""
    narrowed = f" at {at!r}" if at != "*" else ""
    return (
        f"0 nodes {verb}: no {bare_name(target)}{narrowed} in this tree:{tree}{more}\n"
        '  If that is fine, pass missing="ok".'
    )


def _made(new: New, old: ConfigBase, path: str, drop: Drop = ()) -> tuple[ConfigBase, list[Loss]]:
    try:
        made, losses = inherit(new, old, drop) if isinstance(new, ConfigBase) else (new(old), [])
    except ConfigError as e:
        raise ConfigError(f"{path or ROOT}: {e}") from e
    if not isinstance(made, ConfigBase):
        raise ConfigError(f"{path or ROOT}: the modifier returned {made!r}, expected a config.")
    return made, losses


def _depth(path: str) -> int:
    return path.count(".") + path.count("[") + bool(path)
