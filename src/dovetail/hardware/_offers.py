# SPDX-License-Identifier: Apache-2.0
"""Where chips can be had: on which clusters, and under what name."""

from dovetail.config import ConfigError, did_you_mean

from ._catalogue import CHIPS, Hardware
from ._cluster import Cluster, Offer


def cluster_of(hw: Hardware, provider: str | None = None) -> tuple[str, Cluster]:
    """Returns a provider and what is known of a chip there; without a provider, the only one that is known.

    >>> from dovetail.hardware import hardware
    >>> cluster_of(hardware("tpu-v5p-512"))[0]
    'gke'
    """
    known = hw.chip.kubernetes
    if not known:
        having = sorted(chip.name for chip in CHIPS.values() if chip.kubernetes)
        raise ConfigError(
            f"launch.provider: it is not known what pods need for {hw.chip.name} on Kubernetes.\n"
            f"  It is known of {', '.join(having)}."
        )
    if provider is None and len(known) > 1:
        raise ConfigError(
            f"launch.provider is not set, and {hw.chip.name} is known of {' and '.join(known)}.\n"
            f"  Say which cluster it is, as in launch.provider={next(iter(known))}."
        )
    name = provider or next(iter(known))
    if name not in known:
        raise ConfigError(
            f"launch.provider is {name!r}, and {hw.chip.name} is known of {' and '.join(known)} only."
            f"{did_you_mean(name, known)}"
        )
    return name, known[name]


def offer_of(hw: Hardware) -> Offer:
    """Returns what SkyPilot calls a chip."""
    if hw.chip.skypilot is None:
        having = sorted(chip.name for chip in CHIPS.values() if chip.skypilot)
        raise ConfigError(
            f"launch: it is not known what SkyPilot calls {hw.chip.name}.\n  It is known of {', '.join(having)}."
        )
    return hw.chip.skypilot
