# SPDX-License-Identifier: Apache-2.0
"""The convolution layer is its definition, and goes on from call to call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import call, init, specs
from dovetail.nn import CausalConv
from support import reference
from support.compare import assert_same
from support.decoding import started
from support.models import random_params
from support.numeric import check, normal

CFG = CausalConv.Config(shape=(2, 3), axes=("heads", "head_dim"), width=3)
DOCUMENT = np.array([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 2]])


@pytest.mark.parametrize("bias", [True, False])
def test_the_layer_is_its_definition(bias):
    model = CFG.set(bias=bias).build()
    document = jnp.asarray(DOCUMENT)
    definition = functools.partial(reference.causal_conv, segments=DOCUMENT)
    params, x = random_params(model), normal(1, (2, 6, 2, 3))
    check(lambda p, x: call(model, p, x, document=document)[0], definition, params, x)


def test_in_parts_it_is_the_whole_with_rows_of_different_lengths():
    model = CFG.build()
    params, x = random_params(model), normal(1, (2, 5, 2, 3))
    want = call(model, params, x, document=jnp.zeros((2, 5), int))[0]
    step = jax.jit(lambda x, n, state: call(model, params, x, document=jnp.zeros((2, 3), int), count=n, state=state))
    state = started(model, params, x, document=jnp.zeros((2, 5), int), sizes={"batch": 2})
    done, got = np.zeros(2, int), np.zeros(x.shape, np.float32)
    for counts in ([1, 3], [0, 1], [3, 1], [1, 0]):
        part = np.full((2, 3, 2, 3), 7.0, np.float32)  # Padding that would be noticed.
        for row, n in enumerate(counts):
            part[row, :n] = x[row, done[row] : done[row] + n]
        out, collected = step(jnp.asarray(part), jnp.asarray(counts), state)
        state = collected.state
        for row, n in enumerate(counts):
            got[row, done[row] : done[row] + n] = out[row, :n]
            done[row] += n
    assert_same(got, np.asarray(want))


def test_parameters_have_the_axes_of_the_channels_and_start_as_in_pytorch():
    model = CFG.build()
    spec = specs(model)
    assert (spec["weight"].axes, spec["bias"].axes) == ((None, "heads", "head_dim"), ("heads", "head_dim"))
    wide = init(CFG.set(shape=(1000,), axes=(None,), width=4).build(), jax.random.key(0))["weight"]
    assert 0.49 < np.abs(wide).max() <= 0.5  # Uniform up to 1 / sqrt(width).


def test_no_width_is_refused():
    with pytest.raises(ConfigError) as e:
        CFG.set(width=0).build(path="conv")
    assert str(e.value) == "conv (CausalConv): width is 0, expected at least 1."
