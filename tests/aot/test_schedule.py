# SPDX-License-Identifier: Apache-2.0
"""Time along a schedule, in short programs written by hand as compilers write them."""

import pytest

from dovetail.aot import Cost, Hlo, copied, moved_bytes, products_of, schedule

SECONDS = {"work": 2.0, "gather": 3.0, "copy": 1.0, "permute": 5.0, "rare": 100.0}


def _cost(each):
    kind = each.name.rstrip("0123456789.")
    kind = {"all-gather-start": "gather", "async-collective-start": "gather", "cp-start": "permute"}.get(kind, kind)
    return Cost(kind, SECONDS[kind], "links" if kind in ("gather", "permute") else "") if kind in SECONDS else None


def _spent(text):
    found = schedule(Hlo(text), _cost).spent
    return [(each.instruction.name, each.seconds, each.runs) for each in found]


def _entry(*lines):
    return "\n".join(["ENTRY %main (p: f32[8]) -> f32[8] {", "  %p = f32[8]{0} parameter(0)", *lines, "}"])


def test_what_other_work_does_not_hide_is_waited_for():
    text = _entry(
        "  %all-gather-start = (f32[8]{0}, f32[16]{0}) all-gather-start(%p), channel_id=1",
        "  %work.1 = f32[8]{0} negate(%p)",
        "  %all-gather-done = f32[16]{0} all-gather-done(%all-gather-start)",
        "  ROOT %work.2 = f32[8]{0} negate(%work.1)",
    )
    assert _spent(text) == [("work.1", 2.0, 1), ("all-gather-start", 1.0, 1), ("work.2", 2.0, 1)]


def test_what_uses_the_same_links_takes_turns():
    text = _entry(
        "  %all-gather-start.1 = (f32[8]{0}, f32[16]{0}) all-gather-start(%p), channel_id=1",
        "  %cp-start.1 = (f32[8]{0}, f32[8]{0}) collective-permute-start(%p), channel_id=2",
        "  %cp-done.1 = f32[8]{0} collective-permute-done(%cp-start.1)",
        "  ROOT %all-gather-done.1 = f32[16]{0} all-gather-done(%all-gather-start.1)",
    )
    assert _spent(text) == [("cp-start.1", 8.0, 1)]


def test_loops_run_as_often_as_their_condition_says_and_hide_inside_of_them():
    text = "\n".join(
        [
            "%body (b: (s32[], f32[8])) -> (s32[], f32[8]) {",
            "  %b = (s32[], f32[8]{0}) parameter(0)",
            "  %x = f32[8]{0} get-tuple-element(%b), index=1",
            "  %all-gather-start.2 = (f32[8]{0}, f32[16]{0}) all-gather-start(%x), channel_id=1",
            "  %work.3 = f32[8]{0} negate(%x)",
            "  %all-gather-done.2 = f32[16]{0} all-gather-done(%all-gather-start.2)",
            "  ROOT %t = (s32[], f32[8]{0}) tuple(%i, %work.3)",
            "}",
            "%condition (c: (s32[], f32[8])) -> pred[] {",
            "  %limit = s32[] constant(7)",
            "}",
            _entry("  ROOT %loop = (s32[], f32[8]{0}) while(%p), condition=%condition, body=%body"),
        ]
    )
    assert _spent(text) == [("work.3", 14.0, 7), ("all-gather-start.2", 7.0, 7)]


def test_collectives_in_pieces_of_other_work_are_found_by_their_channel():
    text = "\n".join(
        [
            "%start (a: f32[8]) -> f32[16] {",
            "  %a = f32[8]{0} parameter(0)",
            "  ROOT %all-gather.1 = f32[16]{0} all-gather(%a), channel_id=4",
            "}",
            "%done (d: f32[8]) -> f32[16] {",
            "  %d = f32[8]{0} parameter(0)",
            "  ROOT %all-gather.2 = f32[16]{0} all-gather(%d), channel_id=4",
            "}",
            _entry(
                "  %async-collective-start.1 = f32[16]{0} fusion(%p), kind=kCustom, calls=%start",
                "  %work.4 = f32[8]{0} fusion(%async-collective-start.1), kind=kOutput, calls=%piece",
                "  ROOT %async-collective-done.1 = f32[16]{0} fusion(%work.4), kind=kCustom, calls=%done",
            ),
        ]
    )
    assert _spent(text) == [("work.4", 2.0, 1), ("async-collective-start.1", 1.0, 1)]


def test_of_several_branches_the_longest_counts_and_what_runs_rarely_does_not():
    text = "\n".join(
        [
            "%short (s: f32[8]) -> f32[8] {",
            "  ROOT %copy.1 = f32[8]{0} copy(%s)",
            "}",
            "%long (l: f32[8]) -> f32[8] {",
            "  ROOT %work.5 = f32[8]{0} negate(%l)",
            "}",
            _entry(
                '  %rare.1 = f32[8]{0} negate(%p), metadata={op_name="jit(step)/rarely/neg"}',
                "  ROOT %c = f32[8]{0} conditional(%p, %p, %p), branch_computations={%short, %long}",
            ),
        ]
    )
    assert _spent(text) == [("work.5", 2.0, 1)]


SLICED = "\n".join(
    [
        "%fused (a: f32[32,8], b: s32[], c: f32[8], d: f32[32,8]) -> f32[32,8] {",
        "  %a = f32[32,8]{1,0} parameter(0)",
        "  %b = s32[] parameter(1)",
        "  %c = f32[8]{0} parameter(2)",
        "  %d = f32[32,8]{1,0} parameter(3)",
        "  %bitcast.1 = f32[32,1,8]{2,1,0} bitcast(%a)",
        "  %slice.1 = f32[1,1,8]{2,1,0} dynamic-slice(%bitcast.1, %b, %b, %b), dynamic_slice_sizes={1,1,8}",
        "  %row = f32[1,8]{1,0} bitcast(%slice.1)",
        "  %sum = f32[1,8]{1,0} add(%row, %c)",
        "  ROOT %update = f32[32,8]{1,0} dynamic-update-slice(%d, %sum, %b, %b)",
        "}",
        "ENTRY %main (p: f32[32,8], i: s32[], q: f32[8], r: f32[32,8]) -> f32[32,8] {",
        "  %p = f32[32,8]{1,0} parameter(0)",
        "  %i = s32[] parameter(1)",
        "  %q = f32[8]{0} parameter(2)",
        "  %r = f32[32,8]{1,0} parameter(3)",
        "  ROOT %f = f32[32,8]{1,0} fusion(%p, %i, %q, %r), kind=kLoop, calls=%fused",
        "}",
    ]
)


def test_of_what_is_sliced_and_updated_only_the_slice_is_moved():
    program = Hlo(SLICED)
    row = 8 * 4
    assert moved_bytes(program.instructions["f"], program) == row + 4 + row + row  # Sliced, index, read, written.


@pytest.mark.parametrize(
    "line, size",
    [
        ("(f32[64]{0:S(1)}, f32[64]{0}, u32[]) copy-start(%p)", 256),
        ("((s8[4096]{0}), s8[1024]{0:S(1)}, s32[]) slice-start(%p), slice={[0:1024]}", 1024),
        ("((f32[32,8]{1,0:S(5)}, s32[], s32[]), f32[1,8]{1,0}, u32[]) dynamic-slice-start(%p, %i, %i)", 32),
        ("((f32[32,8]{1,0:S(5)}, f32[8]{0}, s32[]), f32[32,8]{1,0:S(5)}) dynamic-update-slice-start(%p, %q, %i)", 32),
    ],
)
def test_what_is_copied_beside_other_work_is_a_copy_or_a_slice(line, size):
    given = "  %q = f32[8]{0} parameter(0)\n  %i = s32[] parameter(1)"
    program = Hlo(f"ENTRY %main (q: f32[8]) -> f32[8] {{\n{given}\n  %s = {line}\n}}")
    assert copied(program.instructions["s"], program) == size


def test_products_say_over_how_many_numbers_they_sum():
    program = Hlo(
        "ENTRY %main (a: bf16[2,4,8], b: bf16[2,8,16]) -> bf16[2,4,16] {\n"
        "  %a = bf16[2,4,8]{2,1,0} parameter(0)\n  %b = bf16[2,8,16]{2,1,0} parameter(1)\n"
        "  ROOT %d = bf16[2,4,16]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_batch_dims={0}, rhs_contracting_dims={1}\n}"
    )
    (found,) = products_of(program.instructions["d"], program)
    assert found[1:] == (2 * 2 * 4 * 8 * 16, 8)


def test_stretches_are_what_passes_between_loops_and_inside_of_them():
    text = "\n".join(
        [
            "%body (b: (s32[], f32[8])) -> (s32[], f32[8]) {",
            "  %b = (s32[], f32[8]{0}) parameter(0)",
            "  %x = f32[8]{0} get-tuple-element(%b), index=1",
            "  %all-gather-start.2 = (f32[8]{0}, f32[16]{0}) all-gather-start(%x), channel_id=1",
            "  %work.3 = f32[8]{0} negate(%x)",
            "  %all-gather-done.2 = f32[16]{0} all-gather-done(%all-gather-start.2)",
            "  ROOT %t = (s32[], f32[8]{0}) tuple(%i, %work.3)",
            "}",
            "%condition (c: (s32[], f32[8])) -> pred[] {",
            "  %limit = s32[] constant(7)",
            "}",
            _entry(
                "  %work.1 = f32[8]{0} negate(%p)",
                "  %loop = (s32[], f32[8]{0}) while(%p), condition=%condition, body=%body",
                "  ROOT %work.2 = f32[8]{0} negate(%p)",
            ),
        ]
    )
    spent, stretches = schedule(Hlo(text), _cost)
    assert [(each.runs, each.seconds) for each in stretches] == [(0, 2.0), (7, 21.0), (0, 2.0)]
    assert sum(each.seconds for each in spent) == sum(each.seconds for each in stretches)
    loop = stretches[1]
    assert dict(loop.parts) == {"work": 14.0, "gather": 7.0}
    assert dict(loop.beside) == {"gather": 14.0}  # Of 3 seconds each, work hides 2.
    assert [(each.runs, each.seconds) for each in loop.inside] == [(0, 21.0)]
