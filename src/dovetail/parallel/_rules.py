# SPDX-License-Identifier: Apache-2.0
"""The table from logical axes, which layers name, to mesh axes, which only this package knows."""

from collections.abc import Mapping

from dovetail.config import ConfigBase

# From the slowest links to the fastest: neighbours along the last axis are the closest devices.
MESH_AXES = ("pipeline", "data", "fsdp", "expert", "seq", "tensor")

Table = Mapping[str, tuple[str, ...]]

# What parameters are stored over. No mesh axis splits a parameter twice: the first dimension that asks gets it.
PARAMETERS: Table = {
    "layers": ("pipeline",),
    "expert": ("expert",),
    "vocab": ("tensor", "pipeline"),  # So that embedding and head are work for every stage.
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
    "embed": ("fsdp",),
    "latent": ("fsdp",),
    "head_dim": (),
}

# What activations are split over.
ACTIVATIONS: Table = {
    "layers": ("pipeline",),  # The stages of a pipeline, side by side.
    "batch": ("data", "fsdp", "expert"),
    "seq": ("seq",),
    "stream": ("seq", "tensor"),  # The sequence between layers: sequence parallelism.
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "state_heads": ("tensor", "seq"),  # Of layers that read the sequence in order: each device has some heads of all.
    "mlp": ("tensor",),
    "vocab": ("tensor", "pipeline"),
    "expert": ("expert",),
}


class Rules(ConfigBase):
    """Which mesh axes split which logical axis; an axis of size 1 splits nothing."""

    parameters: Table = PARAMETERS
    activations: Table = ACTIVATIONS
    gathered: tuple[str, ...] = ("fsdp",)  # Mesh axes over which parameters are stored, but not used.
    # Parameters that stay whole where a mesh axis does not divide them. All others have to fit.
    may_stay_whole: tuple[str, ...] = ("layers", "kv_heads", "vocab", "latent")
