# SPDX-License-Identifier: Apache-2.0
"""Seconds of compiled steps: of programs for TPUs and GPUs as their compilers write them, and of real ones."""

import json

import pytest

from dovetail.aot import Hlo
from dovetail.hardware import CHIPS, hardware
from dovetail.plan import constants_of, lower_step, on_hardware
from dovetail.plan._timed import _Costs, compiled_parts
from dovetail.zoo import recipe
from support import compilers

TPU, GPU = (constants_of(CHIPS[name]) for name in ("tpu-v5p", "gpu-h100"))

_ON_TPU = """
ENTRY %main (p: bf16[8192,8192], q: bf16[8192,8192]) -> bf16[8192,8192] {
  %p = bf16[8192,8192]{1,0} parameter(0)
  %q = bf16[8192,8192]{1,0} parameter(1)
  %d = bf16[8192,8192]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(step)/jvp(model)/stack/while/body/layer/ffn/up/dot_general"}, \
backend_config={"window_config":{"estimated_cycles":"7000000"}}
  %c = bf16[8192,8192]{0,1} copy(%d), metadata={op_name="jit(step)/learner/copy"}, \
backend_config={"window_config":{"estimated_cycles":"7000000"}}
  %s = bf16[8192,8192]{1,0} custom-call(%c), custom_call_target="tpu_custom_call"
  ROOT %g = bf16[8192,8192]{1,0} all-gather(%s), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
}
"""
_ON_GPU = """
ENTRY %main (p: bf16[8192,8192]) -> bf16[8192,8192] {
  %p = bf16[8192,8192]{1,0} parameter(0)
  %d = bf16[8192,8192]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
backend_config={"reification_cost":[{"exec_time_us":44172.9,"name":""}]}
  ROOT %n = bf16[8192,8192]{1,0} negate(%d), backend_config={"reification_cost":[{"exec_time_us":331398.8,"name":""},\
{"exec_time_us":50.0,"name":"indexing-cost-model"},{"exec_time_us":0.01,"name":"sol"}]}
}
"""
PRODUCT = 2 * 8192**3


@pytest.fixture(scope="module")
def tiny():
    """A step that was traced for CPUs, whose program is taken for that of other chips."""
    return lower_step(on_hardware(recipe("llama3-tiny"), "cpu-8"), hardware("cpu-8"))


def _timed(tiny, on, text):
    return compiled_parts(tiny._replace(hardware=hardware(on)), text)


def test_products_on_a_tpu_lie_between_cycles_and_peak_and_the_rest_follows_bytes(tiny):
    found = _timed(tiny, "tpu-v5p-16", _ON_TPU)
    cycles, roof = 7e6 / 1.75e9, PRODUCT / (TPU.reached * 459e12)
    assert found.parts["products"] == pytest.approx((cycles * roof) ** 0.5)
    assert found.parts["optimizer"] == pytest.approx(2 * 2 * 8192**2 / (TPU.memory * 2765e9))
    assert any(
        "no time is known for, and none counted: tpu_custom_call (1 times)" in each for each in found.assumptions
    )
    assert [part for part in found.parts if part.startswith("exposed")] == ["exposed, fsdp"]


def test_products_on_a_gpu_follow_what_published_steps_reached_not_tiles_that_nobody_tried(tiny):
    found = _timed(tiny, "gpu-h100-8", _ON_GPU)
    assert found.parts["products"] == pytest.approx(PRODUCT / (GPU.reached * 989.4e12) * (1 + GPU.half_size / 8192))
    assert found.parts["memory traffic"] == pytest.approx(50e-6 / GPU.memory, rel=0.01)
    assert found.assumptions[0].startswith(
        f"products reach {GPU.reached:.2g} of the peak (as fitted to published steps)"
    )
    assert "(a guess: " in _timed(tiny, "gpu-a100-8", _ON_GPU).assumptions[0]


@pytest.mark.parametrize("on, text", [("tpu-v5p-16", _ON_TPU), ("gpu-h100-8", _ON_GPU)])
def test_parts_and_paths_add_up_to_the_same_step(tiny, on, text):
    found = _timed(tiny, on, text)
    assert sum(found.by_path.values()) == pytest.approx(sum(found.parts.values()))
    assert min(found.parts.values()) > 0


def test_what_is_computed_has_the_path_of_its_config(tiny):
    by_path = _timed(tiny, "tpu-v5p-16", _ON_TPU).by_path
    assert max(by_path, key=lambda path: by_path[path]) == "model.stack.layer.ffn.up"
    assert "learner" in by_path


def test_attention_counts_what_the_mask_lets_through(tiny):
    shares = _Costs(tiny, Hlo(_ON_TPU)).seen
    length = tiny.cfg.input.seq_len
    assert shares == {"model.stack.layer.mixer": pytest.approx((length + 1) / (2 * length))}


_CODE = """
import json
from dovetail.config import override
from dovetail.hardware import hardware
from dovetail.plan import compile_lowered, compiled_parts, lower_step, on_hardware
from dovetail.zoo import recipe


changes = ["input.seq_len=128"]
step = lower_step(override(on_hardware(override(recipe("llama3-tiny"), changes), {on!r}), changes), hardware({on!r}))
print(json.dumps(compiled_parts(step, compile_lowered(step, use_cache=False)[0].text)._asdict()))
"""


@pytest.mark.parametrize("platform, on", [("tpu", "tpu-v5p-16"), ("cuda", "gpu-h100-8")])
def test_a_step_of_the_real_compiler_is_timed_as_a_whole(platform, on):
    found = json.loads(compilers.run(platform, _CODE.format(on=on)).splitlines()[-1])
    assert {"products", "attention", "memory traffic", "exposed, fsdp", "optimizer"} <= set(found["parts"])
    assert "model.stack.layer.ffn.up" in found["by_path"]
    assert not [each for each in found["assumptions"] if "no time is known" in each]
