# SPDX-License-Identifier: Apache-2.0
"""What a config takes over from another, and what it says would be lost."""

from typing import ClassVar

import pytest

from dovetail.config import REQUIRED, Component, ConfigBase, ConfigError, config_for
from support.configs import Block, Dense, FeedForward, Mixture, Norm, Record, Twin, power, square


def test_inherit_takes_the_fields_of_the_common_interface():
    old = Dense.Config(dim=4, dropout=0.5, hidden=9)
    new = Mixture.Config(num_experts=8).inherit(old, drop=("hidden",))
    assert new == Mixture.Config(dim=4, dropout=0.5, num_experts=8)


def test_inherit_takes_fields_of_the_same_name_from_a_stranger():
    assert Norm.Config().inherit(Dense.Config(dim=4)) == Norm.Config(dim=4)
    assert Dense.Config().inherit(Block.Config(dim=4)) == Dense.Config(dim=4)
    assert Record(value=1).inherit(Twin(value=2, other=3)) == Record(value=1, other=3)


def test_default_of_the_old_config_is_taken_over_too():
    class Exact(Component):
        class Config(Component.Config):
            eps: float = 0.0

    assert Norm.Config().inherit(Exact.Config()) == Norm.Config(eps=0.0)


def test_what_was_set_is_not_inherited_even_if_set_to_the_default():
    old = Dense.Config(dim=4, dropout=0.5)
    assert Mixture.Config(dim=9, dropout=0.0).inherit(old) == Mixture.Config(dim=9, dropout=0.0)
    assert Mixture.Config().set(dropout=0.0).inherit(old) == Mixture.Config(dim=4, dropout=0.0)


class Choosy(ConfigBase):
    """Its numbers are its own."""

    keeps_defaults: ClassVar[bool] = True
    dim: int = REQUIRED
    eps: float = 0.25


def test_class_that_keeps_its_defaults_takes_over_only_what_was_set_and_what_it_requires():
    assert Choosy().inherit(Norm.Config()) == Choosy()
    assert Choosy().inherit(Norm.Config(eps=1e-6)) == Choosy(eps=1e-6)
    assert Choosy().inherit(Block.Config(dim=4)) == Choosy(dim=4)


def test_redeclared_field_is_taken_over():
    class Quiet(FeedForward):
        class Config(FeedForward.Config):
            dropout: float = 0.9

    assert Quiet.Config().inherit(Dense.Config(dim=4, dropout=0.5)) == Quiet.Config(dim=4, dropout=0.5)


def test_field_that_is_required_in_both_stays_required():
    assert Mixture.Config().inherit(Dense.Config()).dim is REQUIRED


def test_value_of_another_type_has_no_place_and_is_only_lost_if_it_was_set():
    class Loud(ConfigBase):
        eps: str = "small"

    with pytest.raises(ConfigError) as e:
        Loud().inherit(Norm.Config(eps=0.5))
    assert str(e.value) == (
        "Loud has no place for what was set in Norm.Config:\n"
        "    eps = 0.5 (here it is str)\n"
        "  Give it such fields, or let them go: drop=('eps',)."
    )
    assert Loud().inherit(Norm.Config()) == Loud()
    assert Loud().inherit(Norm.Config(eps=0.5), drop=("eps",)) == Loud()
    assert Loud().inherit(Norm.Config(eps=0.5), drop="unplaced") == Loud()


class Scaled(Component):
    """Like a norm, but another class, with one field more."""

    class Config(Component.Config):
        """A size, a constant and a factor."""

        dim: int = REQUIRED
        eps: float = 0.1
        factor: float = 1.0


class Holder(ConfigBase):
    """Holds a config that no `Norm` fits."""

    norm: Scaled.Config = Scaled.Config()


def test_config_that_fits_the_slot_is_taken_over_whole():
    norm = Norm.Config(dim=4, eps=0.5)
    assert Block.Config().inherit(Block.Config(norm=norm)).norm is norm


def test_config_that_does_not_fit_the_slot_hands_its_fields_to_the_one_that_is_there():
    assert Holder().inherit(Block.Config(norm=Norm.Config(dim=4)), drop="unplaced").norm == Scaled.Config(
        dim=4, eps=1e-6
    )


def test_config_that_was_set_in_the_new_one_inherits_what_it_leaves_open():
    new = Block.Config(norm=Norm.Config(eps=0.25)).inherit(Block.Config(norm=Norm.Config(dim=4, eps=0.5)))
    assert new.norm == Norm.Config(dim=4, eps=0.25)


def test_loss_inside_a_config_is_named_by_its_path_and_dropped_by_it_or_with_the_whole():
    class Narrow(ConfigBase):
        norm: Norm.Config = Norm.Config()

    old = Holder(norm=Scaled.Config(eps=0.5, factor=2.0))
    with pytest.raises(ConfigError, match=r"\n    norm\.factor = 2\.0\n.* drop=\('norm\.factor',\)\.$"):
        Narrow().inherit(old)
    assert Narrow().inherit(old, drop=("norm.factor",)) == Narrow(norm=Norm.Config(eps=0.5))
    assert Narrow().inherit(old, drop=("norm",)) == Narrow()
    assert Narrow().inherit(Holder()) == Narrow(norm=Norm.Config(eps=0.1))


def test_function_config_inherits_arguments_of_the_same_name():
    assert config_for(power).inherit(config_for(square, 3.0)) == config_for(power, 3.0)
    with pytest.raises(ConfigError, match=r"exponent = 3\.0"):
        config_for(square).inherit(config_for(power, 3.0, exponent=3.0))


def test_what_is_inherited_counts_as_set_only_if_it_was_set_in_the_old_config():
    first = Mixture.Config().inherit(Dense.Config(dim=4))
    second = first.inherit(Dense.Config(dim=5, dropout=0.5))
    assert second == Mixture.Config(dim=4, dropout=0.5)
