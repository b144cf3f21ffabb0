# SPDX-License-Identifier: Apache-2.0
"""Mesh rules: what hardware changes in a config, whatever the model."""

import abc
import fnmatch
from collections.abc import Sequence
from typing import Any

from dovetail.config import REQUIRED, Component, ConfigError

from ._catalogue import Hardware


class MeshRule(Component, abc.ABC):
    """The interface: turns the config of a trainer into the one for some hardware."""

    class Config(Component.Config):
        hardware: str = REQUIRED  # The names it is for, as in `tpu-v5p-*`.

    @abc.abstractmethod
    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns the config with mesh, remat, kernels, precision and compiler options for this hardware."""


def rule_for(rules: Sequence[MeshRule.Config], hardware: Hardware) -> MeshRule.Config:
    """Returns the first rule whose pattern fits the name of the hardware."""
    for rule in rules:
        if fnmatch.fnmatchcase(hardware.name, rule.hardware):
            return rule
    patterns = ", ".join(rule.hardware for rule in rules)
    raise ConfigError(
        f"no mesh rule fits {hardware.name!r}. There are rules for: {patterns}.\n"
        "  Add one for it to mesh_rules in the recipe."
    )
