# SPDX-License-Identifier: Apache-2.0
"""What every kernel that reads pages promises: what rows give, wherever their pages lie and whatever is in others.

Kernels for one kind of hardware promise less, and are interpreted here; `test_kernels_compiled.py` compiles them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType

from dovetail.config import ConfigError
from dovetail.ops import (
    EMPTY,
    AttentionInputs,
    Causal,
    Full,
    LinearBias,
    NativePagedAttention,
    PagedAttention,
    PreferredAttention,
    Prefix,
    RaggedPagedAttention,
    ReferenceAttention,
    SameSegment,
    Scoring,
    SlidingWindow,
    Tokens,
    TritonPagedAttention,
    Written,
    from_pairs,
    in_pairs,
    kernel_choices,
    native,
    quantise_rows,
)
from dovetail.parallel import GatheredAttention
from support import reference
from support.numeric import BFLOAT16, FLOAT32, assert_close

MASKS = [
    Causal(),
    Causal() & SlidingWindow(1),
    SlidingWindow(3) & Causal() & SlidingWindow(5),
    Full(),
    SameSegment() & Causal(),
    SameSegment() & ((Causal() & SlidingWindow(2)) | Prefix()),
]
RAGGED = RaggedPagedAttention.Config(interpret=True, block_q=4, block_kv=8)
SCALE = 0.3


class Case(NamedTuple):
    """Rows with `lengths` tokens, the last `counts` of which are those of a call; a row with none is not used."""

    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    page: int
    width: int  # Pages of a row.
    heads: tuple[int, int] = (4, 2)
    dim: int = 4
    mask: Any = MASKS[0]
    soft_cap: float | None = None
    biased: bool = False
    sinks: bool = False
    paired: bool = False
    lanes: int = 1  # What heads in pairs are filled up to a multiple of.
    dtype: Any = jnp.float32


def random(rng, shape, dtype):
    return np.asarray(jnp.asarray(rng.standard_normal(shape), dtype).astype(jnp.float32), np.float64)


def made(case: Case) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Returns what a kernel is given, which queries are real, and what comes out by the definition."""
    rng = np.random.default_rng(0)
    rows, time, capacity = len(case.lengths), max(1, *case.counts), case.page * case.width
    heads, kv_heads = case.heads
    q, k, v = (random(rng, (rows, capacity, n, case.dim), case.dtype) for n in (heads, kv_heads, kv_heads))
    segment, prefix = rng.integers(1, 3, (rows, capacity)), rng.random((rows, capacity)) < 0.3
    slopes, sinks = (
        rng.standard_normal(heads).astype(np.float32) if is_on else None for is_on in (case.biased, case.sinks)
    )
    # The pages, in any order; all else, the first page included, holds what must not matter.
    count = rows * case.width + 2
    table = 1 + rng.permutation(count - 1)[: rows * case.width].reshape(rows, case.width)
    pages = [np.full((count, case.page, kv_heads, case.dim), np.nan) for _ in range(2)]
    index, places = np.full((rows, time), EMPTY), np.full((rows, capacity), EMPTY)
    for row, (length, new) in enumerate(zip(case.lengths, case.counts, strict=True)):
        if not new:
            table[row] = 0
            continue
        index[row, :new], places[row, :length] = np.arange(length - new, length), np.arange(length)
        for place in range(length):
            for whole, part in zip(pages, (k, v), strict=True):
                whole[table[row, place // case.page], place % case.page] = part[row, place]
    real = index != EMPTY
    at = np.where(real, index, 0)
    tokens = [list(zip(range(capacity), s, p, strict=True)) for s, p in zip(segment, prefix, strict=True)]
    allowed = np.array([reference.seen(case.mask, row, row) for row in tokens]) & (places != EMPTY)[:, None]
    want = reference.attend(q, k, v, allowed, SCALE, soft_cap=case.soft_cap, slopes=slopes, sinks=sinks)

    def picked(x):
        return np.take_along_axis(x, at.reshape(rows, time, *[1] * (x.ndim - 2)), axis=1)

    kv = [jnp.asarray(each, case.dtype) for each in pages]
    pairs = jnp.pad(in_pairs(*kv), ((0, 0),) * 3 + ((0, -case.dim % case.lanes),)) if case.paired else None
    uses = "Segment" in str(case.mask)
    given = {
        "q": jnp.asarray(picked(q), case.dtype),
        "k": kv[0] if pairs is None else from_pairs(pairs)[0][..., : case.dim],
        "v": kv[1] if pairs is None else from_pairs(pairs)[1][..., : case.dim],
        "pairs": pairs,
        "q_tokens": Tokens(
            jnp.asarray(index, jnp.int32), *([jnp.asarray(picked(x)) for x in (segment, prefix)] if uses else ())
        ),
        "k_tokens": Tokens(
            jnp.asarray(places, jnp.int32), *([jnp.asarray(x) for x in (segment, prefix)] if uses else ())
        ),
        "bias": None if slopes is None else LinearBias(jnp.asarray(slopes)),
        "sinks": None if sinks is None else jnp.asarray(sinks),
        "pages": jnp.asarray(table, jnp.int32),
    }
    return given, real, picked(want)


def hold(cfg: Any, case: Case) -> None:
    """Asserts that a kernel gives real queries what they get by the definition."""
    given, real, want = made(case)
    kernel = cfg.build(path="kernel")
    common = {"mask": case.mask & Written(), "scale": SCALE, "aligned": False, "soft_cap": case.soft_cap}
    got = np.asarray(jax.jit(lambda arrays: kernel(**arrays, **common))(given).astype(jnp.float32))
    # In bfloat16, weights are rounded as well as the result.
    tolerance = FLOAT32 if case.dtype == jnp.float32 else 4 * BFLOAT16
    assert_close(got[real], want[real], tolerance)


@settings(max_examples=25)
@given(st.data())
def test_pages_are_as_rows(data):
    draw = data.draw
    page, width = draw(st.sampled_from([(1, 12), (2, 6), (3, 4), (5, 3), (16, 1), (4, 8)]))
    rows = draw(st.integers(1, 3))
    lengths = tuple(draw(st.integers(1, page * width)) for _ in range(rows))
    most = draw(st.sampled_from([1, 1, 4]))
    counts = tuple(draw(st.integers(0, min(most, length))) for length in lengths)
    case = Case(
        lengths,
        counts,
        page,
        width,
        heads=draw(st.sampled_from([(4, 4), (4, 2), (3, 1)])),
        mask=draw(st.sampled_from(MASKS)),
        soft_cap=draw(st.sampled_from([None, 0.5])),
        biased=draw(st.booleans()),
        sinks=draw(st.booleans()),
        paired=draw(st.booleans()),
        lanes=draw(st.sampled_from([1, 8])),
        dtype=draw(st.sampled_from([jnp.float32, jnp.bfloat16])),
    )
    hold(PagedAttention.Config(block=draw(st.sampled_from([1, 4, 128]))), case)


LATER = Case((9, 1, 14), (1, 0, 1), page=4, width=4)
CHUNKS = Case((7, 11, 3, 9), (4, 3, 0, 1), page=2, width=6)
EACH = [LATER, CHUNKS._replace(mask=MASKS[2]), CHUNKS._replace(biased=True, sinks=True, soft_cap=0.5, paired=True)]


@pytest.mark.parametrize("case", EACH, ids=["decode", "window", "all"])
def test_a_kernel_that_reads_no_pages_is_given_rows(case):
    """But for what nobody has written, which a definition by products cannot keep out."""
    given, real, want = made(case)
    given |= {name: jnp.nan_to_num(given[name]) for name in ("k", "v")}
    common = {"mask": case.mask & Written(), "scale": SCALE, "aligned": False, "soft_cap": case.soft_cap}
    got = ReferenceAttention.Config().build()(**given, **common)
    assert_close(np.asarray(got)[real], want[real], FLOAT32)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("heads", [(4, 2), (4, 1)], ids=str)
def test_pages_are_read_on_a_mesh(heads, paired):
    cfg = GatheredAttention.Config(inner=PagedAttention.Config(block=4))
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        hold(cfg, CHUNKS._replace(heads=heads, paired=paired, sinks=True))


# The kernel for TPUs, interpreted.


@pytest.fixture
def _interpreter(monkeypatch):
    """Corrects the interpreter of jax 0.10, which asks a number for its shape."""
    from jax._src.literals import TypedInt

    monkeypatch.setattr(TypedInt, "shape", (), raising=False)


TPU = {
    "decode": LATER._replace(dim=128, paired=True),
    "chunks": CHUNKS._replace(dim=128, heads=(4, 1), soft_cap=0.5, paired=True),
    "a window": LATER._replace(dim=128, mask=Causal() & SlidingWindow(3), paired=True, lengths=(9, 1, 2)),
    "heads filled up": LATER._replace(dim=64, paired=True, lanes=128),
    "a chunk in bfloat16": Case((13,), (7,), 4, 4, heads=(4, 2), dim=128, paired=True, dtype=jnp.bfloat16),
}


@pytest.mark.parametrize("case", TPU.values(), ids=TPU)
@pytest.mark.usefixtures("_interpreter")
def test_the_ragged_kernel_is_the_definition(case):
    hold(RAGGED, case)


@pytest.mark.usefixtures("_interpreter")
def test_the_ragged_kernel_runs_on_each_device_of_a_mesh():
    with jax.set_mesh(jax.make_mesh((2,), ("tensor",), axis_types=(AxisType.Auto,))), kernel_choices() as choices:
        hold(GatheredAttention.Config(inner=PreferredAttention.Config(kernels=(RAGGED,))), TPU["decode"])
    assert [choice.kernel for choice in choices] == ["RaggedPagedAttention"]


def reason(case: Case, cfg: Any = RAGGED, **changes: Any) -> str:
    given, *_ = made(case)
    inputs = AttentionInputs(**given)._replace(**changes)
    return cfg.build().supports(inputs, Scoring(case.mask & Written(), SCALE, case.soft_cap), False).reason


GOOD = TPU["decode"]
REFUSED = [
    (GOOD, {"pages": None}, "keys and values are not in pages"),
    (GOOD._replace(paired=False), {}, "keys and values do not lie in pairs"),
    (GOOD._replace(dim=64), {}, "heads have dim 64, expected 128, or to be filled up to that"),
    (GOOD._replace(heads=(3, 3), dtype=jnp.bfloat16), {}, "3 key heads on a device do not fill registers"),
    (GOOD._replace(mask=Full()), {}, "the mask is not causal"),
    (GOOD._replace(mask=Causal() | Prefix()), {}, "the ragged kernel for TPUs does not offer the mask "),
    (GOOD._replace(sinks=True), {}, "the ragged kernel for TPUs does not offer sinks"),
    (GOOD._replace(biased=True), {}, "the ragged kernel for TPUs does not offer a bias"),
    (GOOD._replace(mask=MASKS[4]), {}, "the ragged kernel for TPUs does not offer packed documents"),
    (GOOD, {"q": jnp.zeros((3, 1, 4, 128), jnp.bfloat16)}, "queries are bfloat16, keys and values float32"),
    (GOOD, {"pages": jnp.zeros((512, 300), jnp.int32)}, "tables of 512 rows with 300 pages do not fit into scalar "),
]


@pytest.mark.parametrize("case, changes, why", REFUSED, ids=[why for *_, why in REFUSED])
def test_the_ragged_kernel_refuses_what_it_does_not_offer_and_another_takes_its_place(case, changes, why):
    assert not reason(GOOD)
    assert reason(case, **changes).startswith(why)


def test_where_a_kernel_refuses_the_choice_says_so_and_the_answer_is_the_same():
    cfg = PreferredAttention.Config(kernels=(RAGGED, PagedAttention.Config()))
    with kernel_choices() as choices:
        hold(cfg, GOOD._replace(sinks=True))
    assert [str(choice) for choice in choices] == [
        "kernel: PagedAttention; not RaggedPagedAttention: the ragged kernel for TPUs does not offer sinks"
    ]


# The kernel for GPUs, interpreted.

TRITON = TritonPagedAttention.Config(interpret=True, block=4, splits=2)
GPU = {
    "decode": LATER,
    "guesses": CHUNKS,
    "a soft cap and one key head": CHUNKS._replace(heads=(4, 1), soft_cap=0.5),
    "a window": CHUNKS._replace(mask=Causal() & SlidingWindow(3)),
    "a window that is longer than a row": LATER._replace(mask=Causal() & SlidingWindow(99)),
    "many heads in bfloat16": LATER._replace(heads=(34, 2), dim=16, dtype=jnp.bfloat16),
}


@pytest.mark.parametrize("case", GPU.values(), ids=GPU)
def test_the_kernel_for_gpus_is_the_definition(case):
    hold(TRITON, case)


def test_the_kernel_for_gpus_reads_integers_by_their_scales():
    given, real, _ = made(LATER)
    given |= {name: jnp.nan_to_num(given[name]) for name in ("k", "v")}
    whole = {name: quantise_rows(given[name]) for name in ("k", "v")}
    given |= {name: numbers for name, (numbers, _) in whole.items()}
    given["scales"] = tuple(scale for _, scale in whole.values())
    common = {"mask": LATER.mask & Written(), "scale": SCALE, "aligned": False}
    got, want = (np.asarray(cfg.build()(**given, **common))[real] for cfg in (TRITON, PagedAttention.Config()))
    assert_close(got, want, FLOAT32)


NOT_ON_GPUS = [
    (LATER, {"pages": None}, "keys and values are not in pages"),
    (LATER._replace(paired=True), {}, "keys and values lie in pairs"),
    (LATER, {"v": jnp.zeros((2, 4, 2, 8))}, "keys have dim 4, values 8: expected the same"),
    (Case((12,), (9,), 4, 4), {}, "9 queries of a row, expected at most 8"),
    (LATER._replace(mask=Full()), {}, "the mask is not causal"),
    (LATER._replace(sinks=True), {}, "the kernel for pages on GPUs does not offer sinks"),
    (LATER._replace(mask=MASKS[4]), {}, "the kernel for pages on GPUs does not offer packed documents"),
]


@pytest.mark.parametrize("case, changes, why", NOT_ON_GPUS, ids=[why for *_, why in NOT_ON_GPUS])
def test_the_kernel_for_gpus_refuses_what_it_does_not_offer(case, changes, why):
    assert not reason(LATER, TRITON)
    assert reason(case, TRITON, **changes) == why


# The native kernel for CPUs.

NATIVE = NativePagedAttention.Config()


@settings(max_examples=8)
@given(st.data())
def test_the_native_kernel_is_the_definition(data):
    draw = data.draw
    page, width = draw(st.sampled_from([(1, 150), (3, 70), (16, 10), (64, 3)]))
    rows = draw(st.integers(1, 3))
    lengths = tuple(draw(st.integers(1, page * width)) for _ in range(rows))
    most = draw(st.sampled_from([1, 1, 19]))
    counts = tuple(draw(st.integers(0, min(most, length))) for length in lengths)
    window = draw(st.sampled_from([None, 1, 40, 100]))
    case = Case(
        lengths,
        counts,
        page,
        width,
        heads=draw(st.sampled_from([(2, 2), (6, 2), (4, 1), (5, 1)])),
        dim=native().width * draw(st.integers(1, 6)),
        mask=Causal() if window is None else Causal() & SlidingWindow(window),
        soft_cap=draw(st.sampled_from([None, 0.5])),
        sinks=draw(st.booleans()),
    )
    hold(NATIVE, case)


def test_neither_other_queries_nor_the_chunks_of_a_prompt_change_a_bit():
    case = Case((130, 61), (130, 61), page=16, width=9, heads=(6, 2), dim=2 * native().width)
    given, real, _ = made(case)
    kernel = NATIVE.build()
    run = jax.jit(lambda arrays: kernel(**arrays, mask=Causal() & Written(), scale=SCALE, aligned=False))
    whole = np.asarray(run(given))
    for row, time in ((0, 0), (0, 63), (0, 64), (0, 129), (1, 60)):
        at = {"q": given["q"][row : row + 1, time : time + 1], "pages": given["pages"][row : row + 1]}
        index = given["q_tokens"].index[row : row + 1, time : time + 1]
        one = run(
            {**given, **at, "q_tokens": Tokens(index), "k_tokens": Tokens(given["k_tokens"].index[row : row + 1])}
        )
        assert np.array_equal(np.asarray(one)[0, 0], whole[row, time])
    assert real.sum() == 191


def test_the_native_kernel_refuses_what_it_does_not_offer(monkeypatch):
    good = Case((9, 1), (1, 0), page=4, width=4, dim=native().width)
    assert not reason(good, NATIVE)
    assert reason(good, NATIVE, pages=None) == "keys and values are not in pages, or in pairs"
    assert reason(good._replace(dim=native().width + 1), NATIVE).endswith(f"expected multiples of {native().width}")
    assert reason(good._replace(mask=Full()), NATIVE) == "the mask is not causal"
    assert reason(good._replace(biased=True), NATIVE) == "the native kernel does not offer a bias"
    assert reason(good._replace(mask=MASKS[4]), NATIVE) == "the native kernel does not offer packed documents"
    assert reason(good._replace(dtype=jnp.bfloat16), NATIVE) == "it computes in float32, this is bfloat16"
    scales = (jnp.zeros((18, 4, 2)),) * 2
    assert reason(good, NATIVE, scales=scales) == "keys and values are integers"


@pytest.mark.parametrize(
    "cfg, why",
    [
        (TritonPagedAttention.Config(splits=0), "mixer.kernel: splits is 0, expected at least 1."),
        (PagedAttention.Config(block=0), "mixer.kernel: block is 0, expected at least 1."),
        (RaggedPagedAttention.Config(block_q=0), "mixer.kernel: block_q is 0, expected at least 1."),
    ],
)
def test_blocks_hold_something(cfg, why):
    with pytest.raises(ConfigError) as caught:
        cfg.build(path="mixer.kernel")
    assert str(caught.value) == why
