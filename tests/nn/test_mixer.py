# SPDX-License-Identifier: Apache-2.0
"""A mixer says which masks it can obey, and a model that it cannot serve is refused when it is built."""

import pytest

from dovetail.config import ConfigError
from dovetail.nn import Attention, Mixer, check_masks
from dovetail.ops import Causal, Full, Mask, SameSegment, SlidingWindow, Support
from support.models import hybrid, lm, mixer_only


class Whole(Mixer):
    """A mixer that lets every token see all others, and nothing else."""

    @classmethod
    def supports(cls, mask: Mask) -> Support:
        return Support() if mask == Full() else Support("it sees everything: Full()")

    def forward(self, x, context):
        return x + x.mean(axis=1, keepdims=True)


def test_by_default_a_mixer_obeys_any_mask():
    for mask in (Causal(), Full(), Causal() & SameSegment(), SlidingWindow(3)):
        assert Attention.supports(mask)


def test_a_model_is_refused_when_it_is_built_with_the_path_of_the_mixer():
    cfg = lm().set_in("stack.layer", mixer_only(Whole.Config()))
    with pytest.raises(ConfigError) as e:
        cfg.build(path="model")
    assert str(e.value) == (
        "model.stack.layer.mixer (Whole) cannot obey the mask And(a=Causal(), b=SameSegment()): "
        "it sees everything: Full()."
    )


def test_every_mixer_of_a_model_is_asked():
    model = hybrid().build()
    check_masks(model, Causal())
    with pytest.raises(ConfigError, match=r"stack.layer\[1\].mixer \(Mamba2\) cannot obey the mask Full\(\)"):
        check_masks(model, Full())
