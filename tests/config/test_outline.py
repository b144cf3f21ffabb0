# SPDX-License-Identifier: Apache-2.0
"""A config tree for people: what is set, what parents set, and nothing that goes without saying."""

from typing import Any

from dovetail.config import REQUIRED, Component, built_configs, config_for, missing_fields, outline


def normal(stddev: float = 1.0) -> float:
    return stddev


class Leaf(Component):
    class Config(Component.Config):
        dim: int = REQUIRED
        eps: float = 1e-6
        init: Any = config_for(normal)


class Tree(Component):
    class Config(Component.Config):
        name: str = ""
        width: int = 4
        left: Leaf.Config = Leaf.Config()
        right: Leaf.Config | None = None
        more: tuple[Leaf.Config, ...] = ()
        file: str = REQUIRED

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        for name in ("left", "right"):
            if getattr(cfg, name) is not None:
                getattr(cfg, name).set(dim=cfg.width).build(path=name)


def seen(*args, **kwargs):
    return [(node.path, node.kind, node.settings) for node in outline(*args, **kwargs)]


def test_fields_and_configs_with_their_defaults_are_left_out():
    assert seen(Tree.Config(file="a")) == [("", "Tree", {"file": "a"})]
    assert seen(Tree.Config(file="a", width=8, right=Leaf.Config(eps=0.5))) == [
        ("", "Tree", {"width": "8", "file": "a"}),
        ("right", "Leaf", {"eps": "0.5"}),
    ]


def test_a_default_stays_where_it_is_asked_for():
    assert seen(Tree.Config(file="a"), keep={"left"})[1] == ("left", "Leaf", {})


def test_what_parents_set_is_filled_in():
    cfg = Tree.Config(file="a", right=Leaf.Config(eps=0.5))
    with built_configs() as built:
        cfg.build()
    assert set(built) == {"left", "right"}
    assert seen(cfg, built)[1:] == [("right", "Leaf", {"dim": "4", "eps": "0.5"})]
    assert seen(cfg, built, keep={"left"})[1] == ("left", "Leaf", {"dim": "4"})


def test_configs_in_a_tuple_have_their_places_and_their_depth():
    cfg = Tree.Config(file="a", more=(Leaf.Config(), Leaf.Config(dim=2)))
    assert [(node.path, node.depth) for node in outline(cfg)] == [("", 0), ("more[0]", 1), ("more[1]", 1)]


def test_what_is_built_beyond_a_list_has_a_place_in_it():
    cfg = Tree.Config(file="a", more=(Leaf.Config(eps=0.5),))
    assert seen(cfg, {"more[1]": Leaf.Config(dim=2)})[1:] == [
        ("more[0]", "Leaf", {"eps": "0.5"}),
        ("more[1]", "Leaf", {"dim": "2"}),
    ]


def test_a_config_of_a_function_is_written_as_a_call_and_text_with_a_space_is_quoted():
    cfg = Tree.Config(file="my file", left=Leaf.Config(init=config_for(normal).set(stddev=0.5)))
    assert seen(cfg) == [("", "Tree", {"file": "'my file'"}), ("left", "Leaf", {"init": "normal(stddev=0.5)"})]


def test_missing_are_the_fields_that_no_parent_can_fill():
    assert missing_fields(Tree.Config(right=Leaf.Config())) == ["file"]
    assert missing_fields(Tree.Config(file="a")) == []
