# SPDX-License-Identifier: Apache-2.0
"""What every attention kernel promises. A new kernel joins by one line in `KERNELS`.

Those for one kind of hardware promise less, and join `test_kernels_attention.py`; one that reads nothing but pages
joins `test_paged.py`.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dovetail.ops
import dovetail.parallel
from dovetail.config import find, from_json, replace_all, to_json
from dovetail.module import call
from dovetail.ops import (
    AttentionKernel,
    BlockwiseAttention,
    Causal,
    LinearBias,
    PagedAttention,
    PreferredAttention,
    Prefix,
    QueryBlockAttention,
    ReferenceAttention,
    SameSegment,
    SlidingWindow,
    SplashAttention,
    Tokens,
)
from dovetail.parallel import GatheredAttention, RingAttention
from support import reference
from support.compare import assert_same
from support.models import lm, random_params
from support.numeric import check, normal

KERNELS = [
    ReferenceAttention.Config(),
    BlockwiseAttention.Config(block=2),
    BlockwiseAttention.Config(),
    QueryBlockAttention.Config(block=3),
    QueryBlockAttention.Config(),
    PreferredAttention.Config(kernels=(SplashAttention.Config(), BlockwiseAttention.Config(block=2))),
    GatheredAttention.Config(inner=BlockwiseAttention.Config(block=3)),
    RingAttention.Config(inner=ReferenceAttention.Config()),
]
each_kernel = pytest.mark.parametrize("cfg", KERNELS, ids=str)

SEGMENTS = np.array([[1, 1, 2, 0], [3, 4, 4, 4]])
PREFIX = np.array([[1, 1, 0, 0], [0, 0, 1, 0]], bool)
TOKENS = Tokens(jnp.arange(4)[None], jnp.asarray(SEGMENTS), jnp.asarray(PREFIX))
MASK = SameSegment() & ((Causal() & SlidingWindow(2)) | Prefix())
ARGS = [normal(i, shape) for i, shape in enumerate([(2, 4, 4, 3), (2, 4, 2, 3), (2, 4, 2, 5)])]
HEADS = [normal(i, (4,)) for i in (7, 8)]


def run(cfg, q, k, v, slopes=None, sinks=None, soft_cap=None):
    bias = None if slopes is None else LinearBias(slopes)
    common = {"mask": MASK, "q_tokens": TOKENS, "k_tokens": TOKENS, "scale": 0.5, "aligned": True}
    return cfg.build()(q, k, v, **common, soft_cap=soft_cap, bias=bias, sinks=sinks)


def test_every_kernel_has_joined():
    found = [each for package in (dovetail.ops, dovetail.parallel) for each in inspect.getmembers(package)]
    there = {c for _, c in found if inspect.isclass(c) and issubclass(c, AttentionKernel)}
    there = {c for c in there if not c.__module__.startswith("dovetail.ops.kernels")}
    joined = {type(cfg.build()) for cfg in KERNELS} | {PagedAttention}
    assert joined == {c for c in there if not inspect.isabstract(c)}


def definition(q, k, v, slopes=None, sinks=None, soft_cap=None):
    rows = [list(zip(range(4), SEGMENTS[b].tolist(), PREFIX[b].tolist(), strict=True)) for b in range(2)]
    allowed = np.array([reference.seen(MASK, row, row) for row in rows])
    return reference.attend(q, k, v, allowed, 0.5, slopes=slopes, sinks=sinks, soft_cap=soft_cap)


@each_kernel
def test_a_kernel_is_the_definition(cfg):
    check(lambda *args: run(cfg, *args), definition, *ARGS)


@each_kernel
def test_a_kernel_is_the_definition_with_soft_cap_bias_and_sinks_and_differentiates_them(cfg):
    changed = functools.partial(definition, soft_cap=0.5)
    check(lambda *args: run(cfg, *args, soft_cap=0.5), changed, *ARGS, *HEADS)


@each_kernel
def test_a_kernel_keeps_shape_and_dtype_and_needs_no_jit(cfg):
    for dtype in (jnp.float32, jnp.bfloat16):
        out = jax.eval_shape(lambda *args: run(cfg, *args), *(x.astype(dtype) for x in ARGS))
        assert (out.shape, out.dtype) == ((2, 4, 4, 5), dtype)
    assert_same(jax.jit(lambda *args: run(cfg, *args))(*ARGS), run(cfg, *ARGS))


@each_kernel
def test_a_kernel_config_survives_json(cfg):
    assert from_json(to_json(cfg)) == cfg


@functools.cache
def logits(cfg):
    model = cfg.build()
    params = random_params(model)
    return jax.jit(lambda params: call(model, params, jnp.array([[1, 2, 3, 4, 5]]))[0])(params)


@each_kernel
def test_a_kernel_serves_any_model_that_has_another(cfg):
    after = replace_all(AttentionKernel.Config, cfg)(lm(num_layers=1))
    assert next(found for _, found in find(after, AttentionKernel.Config)) == cfg
    assert_same(logits(after), logits(lm(num_layers=1)))
