# SPDX-License-Identifier: Apache-2.0
"""The platform that a program is traced for, by which kernels are chosen."""

import jax

from ._kernel_choice import Support


def target() -> str:
    """Returns the platform of the ambient mesh, or else of JAX's default devices: "tpu", "cuda", "neuron" or "cpu".

    The mesh comes first, because a program may be compiled for devices that are not there.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    platform = jax.default_backend() if device is None else device.platform
    return "cuda" if platform == "gpu" else platform


def device_kind() -> str:
    """Returns what kind of devices these are, as JAX calls it: "TPU v5"."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0].device_kind if device is None else device.device_kind


def runs_on(platform: str) -> Support:
    """Refuses if the program is for another platform."""
    here = target()
    return Support() if here == platform else Support(f"it runs on {platform}, this is {here}")
