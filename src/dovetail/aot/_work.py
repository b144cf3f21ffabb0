# SPDX-License-Identifier: Apache-2.0
"""Counts the floating-point operations of a compiled program: what one device does in a step.

The rule is that of `count_flops`: products of matrices, and convolutions, which is what products become on TPU. What
happens inside of kernels the text does not say; `count_flops` finds that in the traced program.
"""

import json
import math
import re

from ._hlo import Hlo, Instruction, dimensions


def count_compiled_flops(program: Hlo) -> int:
    """Returns the operations of one device in a step, without those in kernels."""
    total = 0
    for name, body in program.computations.items():
        times = program.runs.get(name, 0)
        total += times * sum(product_flops(each, program) for each in body) if times else 0
    return total


def copied_bytes(program: Hlo) -> int:
    """Returns the bytes that one device copies in a step only to lay them out differently."""
    total = 0
    for name, body in program.computations.items():
        for each in body:
            if each.opcode in ("copy", "transpose") and "S(" not in each.shape and "fused" not in name:
                total += program.runs.get(name, 0) * sum(
                    math.prod(dims) * _width(dtype) for dtype, dims in dimensions(each.shape)
                )
    return total


def _width(dtype: str) -> int:
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits.group()) // 8) if bits else 1


def product_flops(each: Instruction, program: Hlo) -> int:
    """Returns the operations of one run of an instruction; 0 if it is no product."""
    if each.opcode == "dot":
        contracted = each.attribute(r"lhs_contracting_dims=\{([\d,]*)\}")
        return _dot(each, program, [int(n) for n in (contracted or "").split(",") if n])
    if each.opcode == "convolution":
        return _convolution(each, program)
    if each.opcode == "custom-call" and "gemm" in (each.attribute(r'custom_call_target="([^"]*)"') or ""):
        numbers = each.attribute(r'"dot_dimension_numbers":(\{.*?\})')
        contracted = json.loads(numbers or "{}").get("lhs_contracting_dimensions", [])
        return _dot(each, program, [int(n) for n in contracted])
    return 0


def _dims(name: str, program: Hlo) -> tuple[int, ...]:
    return dimensions(program.instructions[name].shape)[0][1]


def _dot(each: Instruction, program: Hlo, contracted: list[int]) -> int:
    left = _dims(each.operands[0], program)
    return 2 * math.prod(dimensions(each.shape)[0][1]) * math.prod(left[dim] for dim in contracted)


def _convolution(each: Instruction, program: Hlo) -> int:
    labels = each.attribute(r"dim_labels=(\S+?)(?:,|$)") or ""
    left, right, out = re.split(r"_|->", labels)
    shapes = [_dims(name, program) for name in each.operands[:2]]
    result = dict(zip(out, dimensions(each.shape)[0][1], strict=True))
    kernel, data = dict(zip(right, shapes[1], strict=True)), dict(zip(left, shapes[0], strict=True))
    window = each.attribute(r"window=\{(.*?)\}") or ""
    spatial = [label for label in left if label.isdigit()]
    taps = math.prod(_taps(data[label], kernel[label], result[label], _along(window, int(label))) for label in spatial)
    return 2 * result["b"] * result["f"] * kernel["i"] * taps


def _along(window: str, dim: int) -> dict[str, str]:
    """Returns what a window says of one dimension: `size=1x32 pad=0_0x31_31` along the second is `32` and `31_31`."""
    fields = dict(re.findall(r"(\w+)=(\S+)", window))
    return {name: value.split("x")[dim] for name, value in fields.items()}


def _taps(data: int, kernel: int, out: int, window: dict[str, str]) -> int:
    """Returns how many products of an input and a kernel element there are along a dimension: no padding, no gaps."""
    stride, spread, gap = (int(window.get(name, "1")) for name in ("stride", "lhs_dilate", "rhs_dilate"))
    before = int(window.get("pad", "0_0").split("_")[0])
    places = (at * stride + tap * gap - before for at in range(out) for tap in range(kernel))
    return sum(place % spread == 0 and 0 <= place < data * spread for place in places)
