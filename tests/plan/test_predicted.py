# SPDX-License-Identifier: Apache-2.0
"""Which program a prediction is read from, and that it says so."""

import pytest

from dovetail.aot import Compilation, CompileError, Memory
from dovetail.hardware import hardware
from dovetail.plan import _predicted, on_hardware, predict, predicted
from dovetail.zoo import recipe

TEXT = """
ENTRY %main (p: bf16[8192,8192]) -> bf16[8192,8192] {
  %p = bf16[8192,8192]{1,0} parameter(0)
  ROOT %d = bf16[8192,8192]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


@pytest.fixture(scope="module")
def cfg():
    return on_hardware(recipe("llama3-tiny"), "tpu-v5e-8")


def _compiled(monkeypatch, found):
    """Lets a step be traced for CPUs, and a compiler answer at once."""
    from dovetail.plan import lower_step

    def lower(cfg, hw):
        return lower_step(on_hardware(recipe("llama3-tiny"), "cpu-8"), hardware("cpu-8"))._replace(hardware=hw)

    monkeypatch.setattr(_predicted, "lower_step", lower)
    monkeypatch.setattr(_predicted, "compile_lowered", lambda step: (found, False))
    monkeypatch.setattr(_predicted, "versions", lambda hw: {"libtpu": "1"})


def test_all_figures_follow_the_compiled_step(cfg, monkeypatch):
    _compiled(monkeypatch, Compilation(TEXT, Memory(1, 1, 1, 0, []), 1.0, ""))
    found, fast = predicted(cfg, hardware("tpu-v5e-8")), predict(cfg, hardware("tpu-v5e-8"))
    slower = found.step_seconds / fast.step_seconds
    assert found.method == "compiled"
    assert sum(found.breakdown.values()) == pytest.approx(found.step_seconds)
    assert sum(found.by_path.values()) == pytest.approx(found.step_seconds)
    assert found.mfu * slower == pytest.approx(fast.mfu)
    assert fast.cost_per_trillion_units is not None
    assert found.cost_per_trillion_units == pytest.approx(fast.cost_per_trillion_units * slower)
    assert found.interval[0] < found.step_seconds < found.interval[1]
    assert found.versions == {"libtpu": "1"}


def test_a_step_that_does_not_fit_says_so(cfg, monkeypatch):
    _compiled(monkeypatch, Compilation(TEXT, Memory(10**12, 0, 0, 0, []), 1.0, "RESOURCE_EXHAUSTED"))
    found = predicted(cfg, hardware("tpu-v5e-8"))
    assert found.method == "compiled"
    assert found.assumptions[0].startswith("it does not fit: ")


def test_fast_compiles_nothing(cfg, monkeypatch):
    monkeypatch.setattr(_predicted, "lower_step", None)
    assert predicted(cfg, hardware("tpu-v5e-8"), fast=True) == predict(cfg, hardware("tpu-v5e-8"))


@pytest.mark.parametrize("on, reason", [("trn2-16", "no compiler for AWS Trainium2"), ("tpu-v5e-8", "needs a package")])
def test_without_a_compiler_it_is_traced_and_says_why(on, reason, monkeypatch):
    def lower(cfg, hw):
        raise CompileError(f"{reason}, so it cannot be")

    if on != "trn2-16":
        monkeypatch.setattr(_predicted, "lower_step", lower)
    found = predicted(on_hardware(recipe("llama3-tiny"), on), hardware(on))
    assert found.method == "traced"
    assert found.assumptions[-1].startswith("traced, not compiled: ")
    assert reason in found.assumptions[-1]
