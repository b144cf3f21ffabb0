# SPDX-License-Identifier: Apache-2.0
"""The report on a compiled step, for the compiler that is always there: that of CPUs. Others: tests/contracts."""

import json
import math

import jax
import pytest

from dovetail.aot import CompileError, described_devices
from dovetail.hardware import hardware
from dovetail.module import abstract
from dovetail.plan import Report, compile_step, lower_step, on_hardware
from dovetail.train import size_of
from dovetail.zoo import recipe

GIB = 2**30


@pytest.fixture(scope="module")
def cfg():
    return on_hardware(recipe("qwen3-moe-tiny"), "cpu-8")


@pytest.fixture(scope="module")
def report(cfg) -> Report:
    return compile_step(lower_step(cfg, hardware("cpu-8")))


def test_parameters_and_optimizer_are_what_a_device_holds(cfg, report):
    model = cfg.model.build(path="model")
    held = 0
    for spec, leaf in zip(jax.tree.leaves(_specs(model)), jax.tree.leaves(abstract(model)), strict=True):
        split = 8 if "embed" in spec.axes and len(spec.shape) - spec.stack > 1 else 1
        held += leaf.size * leaf.dtype.itemsize // split
    assert report.hbm["parameters"] * GIB == held
    assert report.hbm["optimizer"] * GIB == pytest.approx(2 * held, rel=0.01)  # And some counts.


def _specs(model):
    from dovetail.module import specs

    return specs(model)


def test_the_parts_add_up(report):
    assert sum(report.hbm.values()) == pytest.approx(report.hbm_per_chip_gib)
    by_kind = {kind: sum(parts.get(kind, 0) for parts in report.hbm_by_path.values()) for kind in report.hbm}
    for kind in ("parameters", "optimizer", "activations", "temporaries"):
        assert by_kind[kind] == pytest.approx(report.hbm[kind])


def test_paths_are_those_of_the_config(cfg, report):
    for path in set(report.hbm_by_path) - {"other", "learner"}:
        node = cfg
        for name in path.split("."):
            node = getattr(node, name)
    assert "model.stack.layer.ffn.down" in report.hbm_by_path


def test_the_models_flops_follow_from_its_size_whatever_the_kernels(cfg, report):
    plain = size_of(recipe("qwen3-moe-tiny"))
    tokens = cfg.input.batch_size * cfg.input.seq_len
    assert (report.unit, report.units_per_step) == ("token", tokens)
    assert report.parameters == plain.parameters
    assert report.model_flops == plain.flops_per_unit * tokens
    assert report.full_model_flops == plain.full_flops_per_unit * tokens
    assert report.hardware_flops >= report.model_flops * 0.9


def test_collectives_are_by_kind_and_axis(report):
    found = {(each["kind"], each["axis"]) for each in report.collectives}
    assert ("all-gather", "fsdp") in found
    assert all(math.isfinite(each["bytes"]) and each["count"] > 0 for each in report.collectives)


def test_kernels_are_named_with_their_paths(report):
    assert {"path", "kernel", "refused"} == set(report.kernels[0])
    assert any(each["path"].startswith("model.stack.layer.mixer.kernel") for each in report.kernels)


def test_it_is_json(report):
    assert Report(**json.loads(json.dumps(report._asdict()))) == report


def test_hardware_without_a_compiler_is_an_error():
    with pytest.raises(CompileError, match="no compiler for AWS Trainium2 can be installed from the package index"):
        described_devices(hardware("trn2-16"))
