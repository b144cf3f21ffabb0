# SPDX-License-Identifier: Apache-2.0
"""Collectives are read from compiled programs: kind, mesh axes, how often, how many bytes."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dovetail.aot import Collective, Groups, Hlo, collectives

MESH = {"a": 2, "b": 4}


def program(line: str) -> str:
    return f"HloModule m\n\nENTRY %main (p: f32[4]) -> f32[4] {{\n  %x = {line}\n}}\n"


@pytest.mark.parametrize(
    "line, kind, axes, size",
    [
        (
            "f32[8,4]{1,0} all-gather(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}",
            "all-gather",
            ("b",),
            128,
        ),
        ("bf16[8]{0} all-reduce(%p), replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add", "all-reduce", ("a",), 16),
        ("f32[8]{0} all-reduce(%p), replica_groups=[1,8]<=[8], to_apply=%add", "all-reduce", ("a", "b"), 32),
        ("f32[2]{0} reduce-scatter(%p), replica_groups=[2,4]<=[8], dimensions={0}", "reduce-scatter", ("b",), 32),
        ("(f32[2]{0}, s8[3]{0}) all-to-all(%p, %q), replica_groups=mesh['x'=2,'y'=4] {'y'}", "all-to-all", ("b",), 11),
        ("f32[2] all-gather(%p), replica_groups=mesh['x'=4,'y'=2]<=[2,4]T(1,0) {'y'}", "all-gather", ("a",), 8),
        (
            "f32[2] collective-permute(%p), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}",
            "collective-permute",
            ("b",),
            8,
        ),
        ("f32[2] all-reduce(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add", "all-reduce", ("?",), 8),
        ("f32[2] all-reduce(%p), replica_groups={}, to_apply=%add", "all-reduce", ("a", "b"), 8),
    ],
)
def test_groups_of_devices_are_named_by_mesh_axes(line, kind, axes, size):
    (found,) = collectives(program(line), MESH)
    assert found == Collective(kind, axes, 1, size, False, "")


def test_an_asynchronous_collective_counts_once_with_the_size_of_its_result():
    text = program(
        "(f32[4], f32[8]) all-gather-start(%p), replica_groups=[1,8]<=[8], dimensions={0}\n"
        "  %y = f32[8] all-gather-done(%x)"
    )
    assert collectives(text, MESH) == [Collective("all-gather", ("a", "b"), 1, 32, True, "")]


def test_a_loop_counts_as_often_as_it_runs():
    mesh = jax.make_mesh((8,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))

    def layers(x, w):
        return jax.lax.scan(lambda x, w: (jax.lax.with_sharding_constraint(x @ w, P("a")), None), x, w)[0]

    with jax.set_mesh(mesh):
        w = jax.ShapeDtypeStruct((5, 16, 16), jnp.float32, sharding=NamedSharding(mesh, P(None, "a")))
        x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P("a")))
        text = jax.jit(layers).lower(x, w).compile().as_text() or ""
    (found,) = collectives(text, {"a": 8})
    assert (found.kind, found.axes, found.count, found.bytes) == ("all-gather", ("a",), 5, 16 * 16 * 4)
    assert "while/body" in found.path


_PIECES = """\
%async_collective_fusion.1 (p1: bf16[1,16]) -> bf16[1,256] {
  %p1 = bf16[1,16]{1,0} parameter(0)
  ROOT %ag1 = bf16[1,256]{1,0} all-gather(%p1), channel_id=3, replica_groups=[1,16]<=[16], metadata={op_name="a"}
}
%async_collective_fusion.2 (p2: bf16[1,16]) -> bf16[1,256] {
  %p2 = bf16[1,16]{1,0} parameter(0)
  ROOT %ag2 = bf16[1,256]{1,0} all-gather(%p2), channel_id=3, replica_groups=[1,16]<=[16], metadata={op_name="a"}
}
%async_collective_fusion.3 (p3: bf16[1,16]) -> bf16[1,256] {
  %p3 = bf16[1,16]{1,0} parameter(0)
  ROOT %ag3 = bf16[1,256]{1,0} all-gather(%p3), channel_id=3, replica_groups=[1,16]<=[16], metadata={op_name="a"}
}
%wrapped (q: f32[8]) -> f32[8] {
  %q = f32[8]{0} parameter(0)
  ROOT %a2a = f32[8]{0} all-to-all(%q), channel_id=1, replica_groups=[1,16]<=[16], metadata={op_name="b"}
}
%wrapped.2 (r: f32[8]) -> f32[8] {
  %r = f32[8]{0} parameter(0)
  ROOT %a2a.2 = f32[8]{0} all-to-all(%r), channel_id=1, replica_groups=[1,16]<=[16], metadata={op_name="b"}
}
%core (s: f32[4]) -> f32[4] {
  %s = f32[4]{0} parameter(0)
  ROOT %ar = f32[4]{0} all-reduce(%s), channel_id=4, replica_groups=[1,16]<=[16], to_apply=%add
}
%rare (t: f32[4]) -> f32[4] {
  %t = f32[4]{0} parameter(0)
  ROOT %ar.2 = f32[4]{0} all-reduce(%t), channel_id=5, replica_groups=[1,16]<=[16], to_apply=%add
}
ENTRY %main (x: bf16[1,16], y: f32[8], z: f32[4]) -> bf16[1,256] {
  %x = bf16[1,16]{1,0} parameter(0)
  %y = f32[8]{0} parameter(1)
  %z = f32[4]{0} parameter(2)
  %async-collective-start = bf16[1,256]{1,0} fusion(%x), kind=kCustom, calls=%async_collective_fusion.1
  %step = bf16[1,256]{1,0} fusion(%x), kind=kOutput, calls=%async_collective_fusion.2
  %one = f32[8]{0} async-start(%y), calls=%wrapped
  %two = f32[8]{0} async-start(%y), calls=%wrapped.2
  %sparse = f32[4]{0} call-start(%z), async_execution_thread="sparsecore", to_apply=%core
  %seldom = f32[4]{0} call(%z), to_apply=%rare, metadata={op_name="jit(step)/rarely/call"}
  %again = f32[4]{0} all-reduce(%z), channel_id=6, replica_groups=[1,16]<=[16], to_apply=%add
  ROOT %done = bf16[1,256]{1,0} fusion(%x), kind=kCustom, calls=%async_collective_fusion.3
}
"""


def test_what_runs_beside_other_work_is_told_apart_and_counted_once():
    found = [(each.kind, each.count, each.bytes, each.asynchronous) for each in collectives(_PIECES, {"fsdp": 16})]
    assert sorted(found) == [
        ("all-gather", 1, 512, True),
        ("all-reduce", 1, 16, False),
        ("all-reduce", 1, 16, True),
        ("all-to-all", 1, 32, True),
        ("all-to-all", 1, 32, True),
    ]


def test_groups_say_who_takes_part_and_what_is_sent():
    text = (
        "ENTRY %main (p: bf16[4]) -> bf16[8] {\n  %p = bf16[4]{0} parameter(0)\n"
        "  ROOT %g = bf16[8]{0} all-gather(%p), replica_groups={{0,1},{2,3}}, dimensions={0}\n}"
    )
    program, groups = Hlo(text), Groups({"data": 2, "fsdp": 2})
    assert groups.sent(program.instructions["g"]) == ("all-gather", ("fsdp",), 16, (0, 1))
    assert groups.sent(program.instructions["p"]) is None
