# SPDX-License-Identifier: Apache-2.0
"""A mesh changes the kernels of a model that must know of it, and nothing else."""

from dovetail.config import diff, find
from dovetail.ops import AttentionKernel
from dovetail.parallel import Mesh, RingAttention, on_mesh
from dovetail.zoo import model


def test_one_device_and_split_batches_leave_a_model_as_it_is():
    cfg = model("gemma3-tiny")
    assert on_mesh(cfg, Mesh()) == cfg
    assert on_mesh(cfg, Mesh(pipeline=2, data=2, fsdp=2)) == cfg


def test_attention_is_wrapped_where_heads_or_sequences_are_split():
    cfg = model("gemma3-tiny")
    mesh = Mesh(seq=2, attention="ring").set_in("rules.activations", {**Mesh().rules.activations, "seq": ("data",)})
    changed = on_mesh(cfg, mesh)
    assert {d.path.rpartition(".kernel")[1] for d in diff(cfg, changed)} == {".kernel"}
    kernels = [kernel for path, kernel in find(changed, AttentionKernel.Config) if path.endswith(".kernel")]
    assert kernels
    for kernel in kernels:
        assert isinstance(kernel, RingAttention.Config)
        assert kernel.activations["seq"] == ("data",)
    assert on_mesh(changed, mesh) == changed
