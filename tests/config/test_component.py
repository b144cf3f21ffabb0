# SPDX-License-Identifier: Apache-2.0
"""`Component`: its config builds it, and one error reports all that is missing."""

import abc
from typing import Any

import pytest

from dovetail.config import REQUIRED, Component, ConfigBase, ConfigError, config_for, fields_of, find
from support.configs import Block, Dense, FeedForward, Identity, Mixture, Model, Norm, child, power


def error_of(build) -> str:
    with pytest.raises(ConfigError) as e:
        build()
    return str(e.value)


# Each class has one config class.


def test_config_builds_its_own_class_with_itself_and_its_path():
    cfg = Norm.Config(dim=4)
    norm = cfg.build(path="model.norm")
    assert type(norm) is Norm
    assert norm.cfg is cfg
    assert norm._path == "model.norm"


def test_component_cannot_be_given_another_config():
    with pytest.raises(AttributeError):
        Norm.Config(dim=4).build().cfg = Norm.Config(dim=5)


def test_class_without_config_gets_one_of_its_own():
    assert Identity.Config is not FeedForward.Config
    assert Identity.Config.__mro__[1] is FeedForward.Config
    assert fields_of(Identity.Config) == fields_of(FeedForward.Config)
    assert (Identity.Config.__module__, Identity.Config.__qualname__) == ("support.configs", "Identity.Config")
    assert type(Identity.Config(dim=1).build()) is Identity
    assert [path for path, _ in find(Model.Config(), Identity.Config)] == ["heads.main"]


def test_class_without_config_but_with_two_bases_has_the_fields_of_both():
    class Named(Component):
        class Config(Component.Config):
            name: str = "n"

    class NamedNorm(Norm, Named):  # pyright: ignore[reportIncompatibleVariableOverride]
        pass

    assert list(fields_of(NamedNorm.Config)) == ["name", "dim", "eps"]
    assert NamedNorm.Config.__mro__[1:3] == (Norm.Config, Named.Config)
    assert type(NamedNorm.Config(dim=1).build()) is NamedNorm


def test_config_of_a_subclass_must_derive_from_the_config_of_its_base():
    with pytest.raises(ConfigError) as e:

        class Wrong(Norm):
            class Config(Component.Config):  # pyright: ignore[reportIncompatibleVariableOverride]
                dim: int = 3

    assert str(e.value) == "Wrong.Config must derive from Norm.Config, as Wrong does."


def test_config_of_a_subclass_must_derive_from_the_configs_of_all_bases():
    with pytest.raises(ConfigError) as e:

        class Wrong(Norm, Block):
            class Config(Norm.Config):  # pyright: ignore[reportIncompatibleVariableOverride]
                pass

    assert str(e.value) == "Wrong.Config must derive from Block.Config, as Wrong does."


@pytest.mark.parametrize("value", [3, ConfigBase, int], ids=repr)
def test_config_must_be_a_config_class(value):
    with pytest.raises(ConfigError) as e:
        type("Wrong", (Component,), {"Config": value})
    assert str(e.value) == "Wrong.Config must derive from Component.Config, as Wrong does."


def test_config_of_another_class_cannot_be_taken_over():
    with pytest.raises(ConfigError) as e:

        class Wrong(Norm):
            Config = Norm.Config

    assert str(e.value) == "Wrong takes over the Config of Norm. Write `class Config(Norm.Config):`."


# Interfaces.


def test_interface_cannot_be_built_and_lists_its_implementations():
    class Shape(Component, abc.ABC):
        @abc.abstractmethod
        def area(self) -> float: ...

    class Round(Shape, abc.ABC):
        @abc.abstractmethod
        def radius(self) -> float: ...

    class Square(Shape):
        def area(self) -> float:
            return 1.0

    class Circle(Round):
        def area(self) -> float:
            return 3.14

        def radius(self) -> float:
            return 1.0

    assert error_of(Shape.Config().build) == (
        "Shape.Config: Shape is an interface and cannot be built. Choose an implementation: Circle, Square."
    )
    assert error_of(lambda: Round.Config().build(path="model.shape")) == (
        "model.shape: Round is an interface and cannot be built. Choose an implementation: Circle."
    )


def test_interface_without_implementation_says_so():
    class Lonely(Component, abc.ABC):
        @abc.abstractmethod
        def run(self) -> None: ...

    assert error_of(Lonely.Config().build) == (
        "Lonely.Config: Lonely is an interface and cannot be built. No implementation of it is imported."
    )


def test_interface_in_a_slot_names_its_place():
    assert error_of(Block.Config(dim=4, ffn=FeedForward.Config()).build).startswith(
        "ffn: FeedForward is an interface and cannot be built. Choose an implementation: "
    )


# What is missing.


def test_one_missing_field_is_reported_with_its_type_and_what_to_do():
    assert error_of(Norm.Config().build) == (
        "Norm.Config: 1 required field is not set:\n  dim: int\n  Set them, as in cfg.set_in('dim', ...)."
    )


def test_path_given_to_build_is_in_the_report():
    assert error_of(lambda: Dense.Config().build(path="model.ffn")) == (
        "Dense.Config: 2 required fields are not set:\n"
        "  model.ffn.dim: int\n"
        "  model.ffn.hidden: int\n"
        "  Set them, as in cfg.set_in('model.ffn.dim', ...)."
    )


def test_fields_of_children_are_reported_with_those_of_the_parent_but_not_what_the_parent_fills():
    assert error_of(Block.Config(ffn=Dense.Config()).build) == (
        "Block.Config: 2 required fields are not set:\n"
        "  dim: int\n"
        "  ffn.hidden: int\n"
        "  Set them, as in cfg.set_in('dim', ...)."
    )


def test_field_of_a_child_is_reported_when_the_parent_is_complete():
    assert error_of(Block.Config(dim=4, ffn=Dense.Config()).build) == (
        "Block.Config: 1 required field is not set:\n"
        "  ffn.hidden: int\n"
        "  Set them, as in cfg.set_in('ffn.hidden', ...)."
    )


def test_field_of_a_grandchild_is_reported_by_the_outermost_build():
    cfg = Block.Config(dim=4, ffn=Mixture.Config(expert=Dense.Config()))
    assert error_of(cfg.build) == (
        "Block.Config: 1 required field is not set:\n"
        "  ffn.expert.hidden: int\n"
        "  Set them, as in cfg.set_in('ffn.expert.hidden', ...)."
    )


def test_children_in_containers_are_all_reported_at_once():
    cfg = Model.Config(
        blocks=[Block.Config(), Block.Config(dim=3), Block.Config(dim=4, ffn=Dense.Config())],
        norms=(Norm.Config(dim=1), Norm.Config()),
        heads={"main": Dense.Config(dim=4), "side": Identity.Config()},
    )
    assert error_of(cfg.build) == (
        "Model.Config: 5 required fields are not set:\n"
        "  blocks[0].dim: int\n"
        "  blocks[2].ffn.hidden: int\n"
        "  norms[1].dim: int\n"
        "  heads.main.hidden: int\n"
        "  heads.side.dim: int\n"
        "  Set them, as in cfg.set_in('blocks[0].dim', ...)."
    )


class Plain(Component):
    """Builds its children without further ado."""

    class Config(Component.Config):
        """Two children, whose `dim` is filled."""

        a: FeedForward.Config = Dense.Config()
        b: FeedForward.Config = Dense.Config()

    def __init__(self, cfg: Config, *, path: str = "") -> None:
        super().__init__(cfg, path=path)
        self.a = cfg.a.set(dim=1).build(path="a")
        self.b = cfg.b.set(dim=1).build(path="b")


def test_what_no_parent_can_fill_is_reported_even_if_building_stops_at_the_first_child():
    assert error_of(Plain.Config().build) == (
        "Plain.Config: 2 required fields are not set:\n"
        "  a.hidden: int\n"
        "  b.hidden: int\n"
        "  Set them, as in cfg.set_in('a.hidden', ...)."
    )


@pytest.mark.parametrize("slot", [Any, ConfigBase, Component.Config], ids=["Any", "ConfigBase", "Component.Config"])
def test_what_the_parent_fills_is_not_reported_however_the_slot_is_typed(slot):
    class Loose(Component):
        class Config(Component.Config):
            norm: slot = Norm.Config()  # pyright: ignore[reportInvalidTypeForm]
            ffn: FeedForward.Config = Dense.Config()

        def __init__(self, cfg: Any, *, path: str = "") -> None:
            super().__init__(cfg, path=path)
            child(cfg.norm.set(dim=1), path, "norm")
            cfg.ffn.set(dim=1).build(path="ffn")

    assert error_of(Loose.Config().build) == (
        "Loose.Config: 1 required field is not set:\n"
        "  ffn.hidden: int\n"
        "  Set them, as in cfg.set_in('ffn.hidden', ...)."
    )


def test_complete_tree_is_built_with_its_paths():
    model = Model.Config(heads={"main": Mixture.Config(dim=4)}).build()
    assert [block.ffn._path for block in model.blocks] == ["blocks[0].ffn", "blocks[1].ffn"]
    assert model.blocks[1].ffn.cfg == Dense.Config(dim=6, hidden=8)
    assert model.heads["main"].expert.cfg == Dense.Config(dim=4, hidden=3)


def test_error_of_a_component_passes_through_the_builds_around_it():
    class Broken(FeedForward):
        def __init__(self, cfg: Any, *, path: str = "") -> None:
            super().__init__(cfg, path=path)
            raise ZeroDivisionError("mine")

        def forward(self, x: float) -> float:
            return x

    with pytest.raises(ZeroDivisionError, match=r"^mine$"):
        Block.Config(dim=4, ffn=Broken.Config()).build()


def test_failed_build_leaves_nothing_behind_for_the_next_one():
    for _ in range(2):
        assert error_of(Norm.Config().build).startswith("Norm.Config: 1 required field is not set:\n  dim: int\n")
    assert Norm.Config(dim=3).build().cfg == Norm.Config(dim=3)


def test_error_caused_by_a_missing_child_is_the_cause_of_the_report():
    class Careless(Component):
        class Config(Component.Config):
            ffn: FeedForward.Config = Dense.Config(dim=1)

        def __init__(self, cfg: Any, *, path: str = "") -> None:
            super().__init__(cfg, path=path)
            child(cfg.ffn, path, "ffn").forward(1)

    with pytest.raises(
        ConfigError, match=r"^Careless\.Config: 1 required field is not set:\n  ffn\.hidden: int\n"
    ) as e:
        Careless.Config().build()
    assert isinstance(e.value.__cause__, AttributeError)


def test_required_in_a_list_of_values_is_reported():
    class Sized(Component):
        class Config(Component.Config):
            sizes: Any = (1, REQUIRED)

    assert error_of(Sized.Config().build) == (
        "Sized.Config: 1 required field is not set:\n  sizes[1]: Any\n  Set them, as in cfg.set_in('sizes[1]', ...)."
    )


def test_missing_arguments_of_functions_are_reported_with_the_rest():
    assert error_of(config_for(power, x=config_for(power)).build) == (
        "config_for(support.configs.power): 1 required field is not set:\n"
        "  x.x: float\n"
        "  Set them, as in cfg.set_in('x.x', ...)."
    )


def test_arguments_of_build_reach_the_component():
    class Extra(Component):
        def __init__(self, cfg: Any, *, path: str = "", scale: int = 1) -> None:
            super().__init__(cfg, path=path)
            self.scale = scale

    assert Extra.Config().build(scale=3).scale == 3
