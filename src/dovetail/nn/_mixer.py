# SPDX-License-Identifier: Apache-2.0
"""Mixers: layers in which positions see each other."""

import abc

from dovetail.config import ConfigError
from dovetail.module import Module, modules
from dovetail.ops import Mask, Support

from ._layer import Layer


class Mixer(Layer, abc.ABC):
    """The interface of layers in which positions see each other: attention, state-space layers and others."""

    @classmethod
    def supports(cls, mask: Mask) -> Support:
        """Says whether the layer can obey a mask; by default, it can obey any."""
        return Support()


def check_masks(model: Module, mask: Mask) -> None:
    """Raises if a mixer of a model cannot obey the mask of that model, so that it is refused when it is built."""
    for module, _ in modules(model):
        if isinstance(module, Mixer) and not (support := module.supports(mask)):
            raise ConfigError(f"{module!r} cannot obey the mask {mask}: {support.reason}.")
