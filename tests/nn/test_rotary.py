# SPDX-License-Identifier: Apache-2.0
"""Rotary layers turn queries and keys by their positions, or leave them; they differ in their frequencies."""

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, replace_all
from dovetail.module import call, specs
from dovetail.nn import (
    Attention,
    DynamicRoPE,
    LinearRoPE,
    Llama3RoPE,
    LongRoPE,
    NoRotary,
    PartialRotary,
    RoPE,
    YaRN,
)
from dovetail.ops import EMPTY, llama3_frequencies, rotary_frequencies, yarn_frequencies
from support import reference
from support.compare import assert_same
from support.numeric import BFLOAT16, FLOAT32, check, normal

POSITIONS = jnp.array([[0, 1, 2], [5, 0, 1]])
X = normal(0, (2, 3, 2, 6))


def turned(cfg, x=X, positions=POSITIONS):
    return call(cfg.set(head_dim=x.shape[-1]).build(), {}, x, positions)[0]


# The result is rounded once.
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, FLOAT32), (jnp.bfloat16, 2 * BFLOAT16)])
@pytest.mark.parametrize("theta", [10_000.0, 500.0])
def test_rope_is_its_definition(theta, dtype, tolerance):
    cfg = RoPE.Config(theta=theta)
    assert specs(cfg.set(head_dim=6).build()) == {}

    def definition(x):
        return reference.rotate(x, np.asarray(POSITIONS), theta)

    got = check(lambda x: turned(cfg, x), definition, X.astype(dtype), tolerance=tolerance)
    assert got.dtype == dtype


def test_no_rotary_changes_nothing():
    x = normal(0, (2, 3, 2, 5))
    model = NoRotary.Config(head_dim=5).build()
    assert call(model, {}, x, POSITIONS)[0] is x


SMALL = {"theta": 100.0, "factor": 4.0, "original_length": 30}
SLOWED = {
    "linear": (LinearRoPE.Config(theta=100.0, factor=4.0), rotary_frequencies(6, 100.0) / 4, 1.0),
    "llama 3": (
        Llama3RoPE.Config(**SMALL),
        llama3_frequencies(6, 100.0, factor=4.0, low=1.0, high=4.0, original_length=30),
        1.0,
    ),
    "yarn": (
        YaRN.Config(**SMALL, fast=4.0),
        yarn_frequencies(6, 100.0, factor=4.0, slow=1.0, fast=4.0, original_length=30, truncate=True),
        0.1 * np.log(4) + 1,
    ),
    "yarn as in DeepSeek": (
        YaRN.Config(**SMALL, slow=2.0, fast=4.0, truncate=False, mscale=0.7, mscale_all_dim=0.2),
        yarn_frequencies(6, 100.0, factor=4.0, slow=2.0, fast=4.0, original_length=30, truncate=False),
        (0.07 * np.log(4) + 1) / (0.02 * np.log(4) + 1),
    ),
}


@pytest.mark.parametrize("cfg, frequencies, magnitude", SLOWED.values(), ids=SLOWED)
def test_a_rotary_turns_by_its_frequencies(cfg, frequencies, magnitude):
    want = magnitude * reference.rotate(np.float64(X), np.asarray(POSITIONS), 0.0, frequencies)
    np.testing.assert_allclose(turned(cfg), want, atol=1e-6)


def test_a_dynamic_rotary_is_rope_up_to_the_original_length_and_slower_beyond_it():
    cfg = DynamicRoPE.Config(theta=100.0, factor=2.0, original_length=4)
    got = turned(cfg)
    assert_same(got[0], turned(RoPE.Config(theta=100.0))[0])
    # The second row goes to position 5: a length of 6, which is 1.5 times the original one, so 2 * 1.5 - 1.
    theta = 100.0 * 2.0 ** (6 / 4)
    want = reference.rotate(np.float64(X[1:]), np.asarray(POSITIONS[1:]), theta)
    np.testing.assert_allclose(got[1:], want, atol=1e-5)  # Powers and angles up to 5 in float32.


LONG = LongRoPE.Config(theta=100.0, factor=8.0, original_length=4, short=(1.0, 1.2, 1.5), long=(2.0, 3.0, 8.0))


@pytest.mark.parametrize("magnitude, times", [(None, np.sqrt(1 + np.log(8) / np.log(4))), (1.3, 1.3)])
def test_longrope_divides_each_frequency_by_its_number_for_the_length_of_the_row(magnitude, times):
    got = turned(LONG.set(magnitude=magnitude))
    for row, numbers in enumerate(([1.0, 1.2, 1.5], [2.0, 3.0, 8.0])):  # Lengths of 3 and 6.
        slowed = np.array([100.0 ** (-2 * i / 6) / number for i, number in enumerate(numbers)])
        want = reference.rotate(np.float64(X[row : row + 1]), np.asarray(POSITIONS[row : row + 1]), 0.0, slowed)
        np.testing.assert_allclose(got[row : row + 1], times * want, atol=1e-6)


@pytest.mark.parametrize("cfg", [DynamicRoPE.Config(factor=2.0, original_length=4), LONG], ids=["dynamic", "long"])
def test_padding_does_not_count_as_length(cfg):
    padded = turned(cfg, positions=POSITIONS.at[0, 2].set(EMPTY))
    assert_same(padded[0, :2], turned(cfg)[0, :2])


def test_a_partial_rotary_turns_the_first_dimensions():
    x = normal(0, (2, 3, 2, 10))
    got = turned(PartialRotary.Config(fraction=0.4, inner=RoPE.Config(theta=100.0)), x)
    assert_same(got[..., :4], turned(RoPE.Config(theta=100.0), x[..., :4]))
    np.testing.assert_array_equal(got[..., 4:], x[..., 4:])


def test_one_rotary_takes_over_what_it_shares_with_another():
    cfg = Attention.Config(dim=8, num_heads=2, rotary=RoPE.Config(theta=5e5, interleaved=True))
    after = replace_all(RoPE.Config, YaRN.Config(factor=8.0, original_length=64))(cfg)
    assert after.rotary == YaRN.Config(factor=8.0, original_length=64, theta=5e5, interleaved=True)


@pytest.mark.parametrize(
    "cfg, text",
    [
        (RoPE.Config(head_dim=5), "rotary (RoPE): head_dim is 5, expected an even number."),
        (
            PartialRotary.Config(head_dim=8, fraction=0.4),
            "rotary.inner (RoPE): head_dim is 3, expected an even number.",
        ),
        (
            PartialRotary.Config(head_dim=8, fraction=1.5),
            "rotary (PartialRotary): fraction is 1.5, expected more than 0 and at most 1.",
        ),
        (LinearRoPE.Config(head_dim=8, factor=0.0), "rotary (LinearRoPE): factor is 0.0, expected a number above 0."),
        (
            YaRN.Config(head_dim=8, factor=2.0, original_length=0),
            "rotary (YaRN): original_length is 0, expected a number above 0.",
        ),
        (
            YaRN.Config(head_dim=8, factor=2.0, original_length=8, slow=4.0, fast=4.0),
            "rotary (YaRN): slow (4.0) must be less than fast (4.0).",
        ),
        (
            Llama3RoPE.Config(head_dim=8, low=4.0, high=1.0),
            "rotary (Llama3RoPE): low (4.0) must be less than high (1.0).",
        ),
        (
            LONG.set(head_dim=6, long=(1.0, 2.0)),
            "rotary (LongRoPE): long is (1.0, 2.0), expected 3 numbers above 0, half of head_dim.",
        ),
        (
            LONG.set(head_dim=6, short=(1.0, 2.0, 0.0)),
            "rotary (LongRoPE): short is (1.0, 2.0, 0.0), expected 3 numbers above 0, half of head_dim.",
        ),
        (
            DynamicRoPE.Config(head_dim=2, factor=2.0, original_length=8),
            "rotary (DynamicRoPE): head_dim is 2, expected at least 4.",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused(cfg, text):
    with pytest.raises(ConfigError) as e:
        cfg.build(path="rotary")
    assert str(e.value) == text
