# SPDX-License-Identifier: Apache-2.0
"""Reading programs: what the text says, and how often loops run."""

import jax
import jax.numpy as jnp

from dovetail.aot import Hlo
from dovetail.aot._hlo import dimensions, sizes

_TEXT = """\
HloModule jit_step, is_scheduled=true

%body (p: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %p = (s32[], f32[8,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8,16]{1,0} get-tuple-element(%p), index=1
  %y = f32[8,16]{1,0} add(%x, %x), metadata={op_name="jit(step)/jvp(model)/stack/while/body/layer/add"}
  ROOT %t = (s32[], f32[8,16]{1,0}) tuple(%i, %y)
}

%condition (q: (s32[], f32[8,16])) -> pred[] {
  %q = (s32[], f32[8,16]{1,0}) parameter(0)
  %n = s32[]{:T(128)} constant(7)
  ROOT %less = pred[] compare(%n, %n), direction=LT
}

ENTRY %main (a: f32[8,16]) -> f32[8,16] {
  %a = f32[8,16]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,16]{1,0}) tuple(%zero, %a)
  %loop = (s32[], f32[8,16]{1,0}) while(%start), condition=%condition, body=%body
  ROOT %out = f32[8,16]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_a_loop_runs_as_often_as_its_condition_says():
    program = Hlo(_TEXT)
    assert program.runs["ENTRY"] == 1
    assert program.runs["body"] == 7


def test_an_instruction_has_operands_and_a_name():
    program = Hlo(_TEXT)
    add = program.instructions["y"]
    assert (add.opcode, add.operands) == ("add", ["x", "x"])
    assert add.op_name == "jit(step)/jvp(model)/stack/while/body/layer/add"
    assert program.instructions["a"].op_name == ""


def test_a_loop_and_its_parameter_lead_to_what_the_body_hands_on():
    program = Hlo(_TEXT)
    assert program.results["loop"].operands == ["i", "y"]
    assert program.results["p"].operands == ["i", "y"]


def test_shapes_are_read_with_their_sizes():
    assert dimensions("(bf16[2,3]{1,0:T(8,128)(2,1)}, pred[], s4[6])") == [("bf16", (2, 3)), ("pred", ()), ("s4", (6,))]
    assert sizes("(bf16[2,3]{1,0}, f32[5], u8[])") == [12, 20, 1]


def test_nested_loops_of_a_real_program_multiply():
    def inner(x, _):
        return jnp.sin(x @ x), None

    def outer(x, _):
        return jax.lax.scan(inner, x, length=3)[0], None

    text = jax.jit(lambda x: jax.lax.scan(outer, x, length=5)[0]).lower(jnp.ones((4, 4))).compile().as_text()
    program = Hlo(text or "")
    found = [
        program.runs[name]
        for name, body in program.computations.items()
        for each in body
        if each.opcode == "dot" or (each.opcode == "custom-call" and "dot" in each.op_name)
    ]
    assert sum(found) == 15


def test_attributes_of_several_lines_belong_to_one_instruction():
    text = """ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %k = f32[8]{0} custom-call(%p), custom_call_target="tpu_custom_call", backend_config={"a":{
"b":"c"
}}, metadata={op_name="jit(step)/model/kernel"}
}
"""
    program = Hlo(text)
    assert program.instructions["k"].op_name == "jit(step)/model/kernel"
    assert program.instructions["k"].dims == (8,)
