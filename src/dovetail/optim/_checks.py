# SPDX-License-Identifier: Apache-2.0
"""Errors of the components here: which one, which field, what was found and what was expected."""

from dovetail.config import Component, ConfigError


def where(component: Component) -> str:
    """Returns how a component is named in errors, as modules are: `trainer.learner.schedule (WSDSchedule)`."""
    return f"{component._path or '(root)'} ({type(component).__name__})"


def expect(component: Component, field: str, ok: bool, expected: str) -> None:
    """Raises if a field of the component's config is out of range. Write `ok` such that it is False for nan."""
    if not ok:
        raise ConfigError(f"{where(component)}: {field} is {getattr(component.cfg, field)!r}, expected {expected}.")


def child_path(component: Component, field: str) -> str:
    """Returns the path of what is built from a field of this component's config."""
    return f"{component._path}.{field}" if component._path else field
