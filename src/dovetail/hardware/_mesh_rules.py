# SPDX-License-Identifier: Apache-2.0
"""Mesh rules: what hardware changes in a config, whatever the model."""

import abc
import fnmatch
from collections.abc import Sequence
from typing import TypeVar

from dovetail.config import REQUIRED, Component, ConfigBase, ConfigError, override

from ._catalogue import Hardware

_C = TypeVar("_C", bound=ConfigBase)


class MeshRule(Component, abc.ABC):
    """The interface: turns the config of a trainer into the one for some hardware."""

    class Config(Component.Config):
        hardware: str = REQUIRED  # The names it is for, as in `tpu-v5p-*`.

    @abc.abstractmethod
    def apply(self, cfg: _C, hardware: Hardware) -> _C:
        """Returns the config with mesh, remat, kernels, precision and compiler options for this hardware."""


class Changes(MeshRule):
    """A user's rule: what another rule makes, with some fields changed."""

    class Config(MeshRule.Config):
        changes: tuple[str, ...] = REQUIRED  # As on the command line: `mesh.fsdp=64`, `remat=full`.
        base: MeshRule.Config | None = None  # None: the recipe as it is.

    def apply(self, cfg: _C, hardware: Hardware) -> _C:
        base = cfg if self.cfg.base is None else self.cfg.base.build().apply(cfg, hardware)
        return override(base, self.cfg.changes)


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
