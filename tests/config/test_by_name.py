# SPDX-License-Identifier: Apache-2.0
"""Configs by name on a command line: what fits a slot, what it takes over, what it says is dropped."""

import abc
from typing import Any

import pytest

from dovetail.config import REQUIRED, Component, ConfigBase, ConfigError, FunctionConfig, config_for, override
from dovetail.nn import RMSNorm
from support.configs import Norm, power, square


class Source(Component, abc.ABC):
    """An interface."""

    @abc.abstractmethod
    def read(self) -> str:
        """Returns text."""


class Shipped(Source):
    """Has a field that only it has."""

    class Config(Source.Config):
        """What is read, and which part."""

        seed: int = 0
        split: str = "train"

    def read(self) -> str:
        """Returns nothing."""
        return ""


class Lines(Source):
    """Reads files."""

    class Config(Source.Config):
        """Which files."""

        seed: int = 0
        files: list[str] = REQUIRED

    def read(self) -> str:
        """Returns nothing."""
        return ""


class _Hidden(Source):
    def read(self) -> str:
        return ""


class Other:
    """Holds a class of a name that is taken."""

    class Lines(Source):
        """Not the other one."""

        def read(self) -> str:
            """Returns nothing."""
            return ""


class Run(ConfigBase):
    """Slots of several kinds."""

    source: Source.Config = Shipped.Config(split="held-out", seed=3)
    spare: Source.Config | None = None
    sources: tuple[Source.Config, ...] = ()
    rate: FunctionConfig[float] = config_for(square, 2.0)
    norm: Norm.Config = REQUIRED


def changed(*texts: str) -> tuple[Any, list[str]]:
    """Returns the config after overrides, and what was noted."""
    notes: list[str] = []
    return override(Run(), texts, note=notes.append), notes


def refused(*texts: str) -> str:
    with pytest.raises(ConfigError) as e:
        override(Run(), texts, note=lambda text: None)
    return str(e.value)


@pytest.mark.parametrize("name", ["Lines", "Lines.Config", f"{__name__}:Lines", f"{__name__}.Lines.Config"])
def test_a_part_is_chosen_by_its_name_takes_over_what_fits_and_says_what_is_dropped(name):
    cfg, notes = changed(f"source={name}", "source.files=[my/*.jsonl, other.jsonl]")
    assert cfg.source == Lines.Config(seed=3, files=["my/*.jsonl", "other.jsonl"])
    assert notes == ["source: Lines in place of Shipped, without split = 'held-out'"]


def test_without_anyone_to_tell_a_loss_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)^source: Lines\.Config has no place .*split = 'held-out'"):
        override(Run(), ["source=Lines"])


def test_empty_slot_takes_a_name_and_a_full_one_none():
    assert changed("spare=Lines") == (Run(spare=Lines.Config()), [])
    assert changed("spare=Lines", "spare=none") == (Run(), [])
    assert changed("norm=Norm", "norm.dim=3") == (Run(norm=Norm.Config(dim=3)), [])


def test_a_tuple_of_parts_is_written_by_their_names():
    assert changed("sources=(Lines, Shipped)")[0].sources == (Lines.Config(), Shipped.Config())


def test_name_that_does_not_fit_is_an_error_that_lists_those_that_do():
    assert refused("source=Linse") == (
        "source: expected Source.Config, found 'Linse'. Did you mean 'Lines'?\n"
        "  It takes one of: Lines, Other.Lines, Shipped."
    )
    assert refused("spare=Linse").endswith("It takes one of: Lines, Other.Lines, Shipped, None.")
    assert refused("sources=(Linse)").endswith("It takes one of: Lines, Other.Lines, Shipped.")
    assert refused(f"source={__name__}:Run") == f"source: {__name__}:Run is not a Source.Config."
    assert refused("norm=RMSNorm").endswith("It takes one of: Norm. Fields are set as in norm.dim=...")
    assert RMSNorm.__name__ == "RMSNorm"  # Imported, but of another interface.


def test_function_is_chosen_by_its_import_path_and_takes_over_arguments():
    cfg, notes = changed("rate=support.configs.power", "rate.exponent=3")
    assert (cfg.rate, notes) == (config_for(power, 2.0, exponent=3.0), [])
    cfg, notes = changed("rate=support.configs:power", "rate.exponent=3", "rate=support.configs.square")
    assert cfg == Run()
    assert notes == [
        "rate: config_for(support.configs.square) in place of config_for(support.configs.power), without exponent = 3.0"
    ]
    assert refused("rate=square").endswith(" Write the import path of a function, as in dovetail.ops.gated.")


def test_two_parts_of_one_name_are_told_apart_by_their_paths():
    own, Other.Lines.__qualname__ = Other.Lines.__qualname__, "Lines"
    try:
        assert refused("source=Lines").startswith("source: 'Lines' is the name of several: ")
    finally:
        Other.Lines.__qualname__ = own
