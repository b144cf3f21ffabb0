# SPDX-License-Identifier: Apache-2.0
"""A mesh changes the kernels of a model that must know of it, and nothing else."""

from typing import Any

import pytest

from dovetail.config import diff, find, replace_all
from dovetail.ops import AttentionKernel, BlockwiseAttention, PreferredAttention, SplashAttention
from dovetail.parallel import GatheredAttention, Mesh, RingAttention, on_mesh
from dovetail.zoo import model


def kernels_of(cfg: Any) -> list[Any]:
    return [kernel for path, kernel in find(cfg, AttentionKernel.Config) if path.endswith(".kernel")]


def test_one_device_leaves_a_model_as_it_is():
    cfg = model("gemma3-tiny")
    assert on_mesh(cfg, Mesh()) == cfg


@pytest.mark.parametrize("mesh", [{"data": 2}, {"fsdp": 2}, {"pipeline": 2}, {"expert": 2}, {"tensor": 2}], ids=str)
def test_attention_is_wrapped_wherever_there_are_several_devices(mesh):
    """The compiler cannot split a kernel that is one call to it, not even along the batch."""
    cfg = model("gemma3-tiny")
    assert {type(kernel) for kernel in kernels_of(on_mesh(cfg, Mesh(**mesh)))} == {GatheredAttention.Config}


def test_nothing_but_kernels_changes_and_that_only_once():
    cfg = model("gemma3-tiny")
    mesh = Mesh(seq=2, attention="ring").set_in("rules.activations", {**Mesh().rules.activations, "seq": ("data",)})
    changed = on_mesh(cfg, mesh)
    assert {d.path.rpartition(".kernel")[1] for d in diff(cfg, changed)} == {".kernel"}
    assert kernels_of(changed)
    for kernel in kernels_of(changed):
        assert isinstance(kernel, RingAttention.Config)
        assert kernel.activations["seq"] == ("data",)
    assert on_mesh(changed, mesh) == changed


def test_several_kernels_to_choose_from_are_wrapped_as_one():
    choice = PreferredAttention.Config(kernels=(SplashAttention.Config(), BlockwiseAttention.Config()))
    changed = on_mesh(replace_all(AttentionKernel.Config, choice)(model("gemma3-tiny")), Mesh(data=2))
    assert {kernel.inner for kernel in kernels_of(changed)} == {choice}
