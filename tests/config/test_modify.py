# SPDX-License-Identifier: Apache-2.0
"""Modifiers: what they find, what they change, what they leave alone, and what they report."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import (
    REQUIRED,
    Change,
    Component,
    ConfigError,
    Modifier,
    Report,
    chain,
    config_for,
    diff,
    find,
    modify,
    replace_all,
    to_text,
)
from support.configs import (
    Block,
    Dense,
    FeedForward,
    Identity,
    Mixture,
    Model,
    Norm,
    Record,
    Twin,
    power,
    square,
    trees,
)

NESTED = Block.Config(dim=4, ffn=Mixture.Config(expert=Mixture.Config()))


def error_of(call, *args) -> str:
    with pytest.raises(ConfigError) as e:
        call(*args)
    return str(e.value)


# replace_all: where.


def test_every_match_in_fields_lists_tuples_and_dicts_is_replaced():
    cfg = Record(
        value=Dense.Config(dim=1),
        items=[Block.Config(dim=4), [Dense.Config(dim=2)]],
        table={"a": Dense.Config(dim=3), "b": ({"c": Dense.Config(dim=4)},)},
        other=Norm.Config(),
    )
    changed = replace_all(FeedForward.Config, Identity.Config(), drop=("hidden",))(cfg)
    assert changed == Record(
        value=Identity.Config(dim=1),
        items=[Block.Config(dim=4, ffn=Identity.Config()), [Identity.Config(dim=2)]],
        table={"a": Identity.Config(dim=3), "b": ({"c": Identity.Config(dim=4)},)},
        other=Norm.Config(),
    )


def test_class_without_config_of_its_own_can_be_told_from_its_siblings():
    cfg = Record(items=[Identity.Config(dim=1), Dense.Config(dim=2, hidden=3)])
    changed = replace_all(Identity.Config, Mixture.Config())(cfg)
    assert changed == Record(items=[Mixture.Config(dim=1), Dense.Config(dim=2, hidden=3)])


def test_root_can_be_replaced():
    cfg = Dense.Config(dim=4, hidden=3)
    swap = replace_all(FeedForward.Config, Identity.Config(), drop=("hidden",))
    assert swap(cfg) == Identity.Config(dim=4)
    assert str(swap.report(cfg)).startswith("1 node replaced\n  (root): Dense.Config -> Identity.Config\n")


def test_configs_among_the_arguments_of_a_function_are_replaced():
    cfg = config_for(power, config_for(square, 3.0), exponent=Norm.Config())
    assert replace_all(Norm.Config, config_for(square, 1.0))(cfg).build() == 9.0
    assert replace_all(type(config_for(square)), config_for(power, 2.0))(cfg) == cfg.set(x=config_for(power, 2.0))


def test_outer_of_two_matches_is_replaced_and_the_inner_one_reported_as_skipped():
    report = replace_all(FeedForward.Config, Identity.Config(), drop=("expert",)).report(NESTED)
    assert report.config == Block.Config(dim=4, ffn=Identity.Config())
    assert report.changes == (Change("ffn", NESTED.ffn, Identity.Config()),)
    assert report.skipped == ("ffn.expert", "ffn.expert.expert")
    assert str(report) == (
        "1 node replaced\n"
        "  ffn: Mixture.Config -> Identity.Config\n"
        "    dropped: num_experts = 2, expert = Mixture.Config\n"
        "  ffn.expert: not replaced, it lies inside a node that was\n"
        "  ffn.expert.expert: not replaced, it lies inside a node that was"
    )


def test_path_that_only_starts_like_another_is_not_inside_it():
    cfg = Record(table={"a": Mixture.Config(), "ab": Dense.Config(), "a-b": Dense.Config()})
    report = replace_all(FeedForward.Config, Identity.Config(), drop="unplaced").report(cfg)
    assert [change.path for change in report.changes] == ["table.a", "table.ab", "table.a-b"]
    assert report.skipped == ("table.a.expert",)


@pytest.mark.parametrize(
    "at, replaced",
    [
        ("*", ["blocks[0].norm", "blocks[1].norm", "norms[0]", "norms[1]"]),
        ("blocks*", ["blocks[0].norm", "blocks[1].norm"]),
        ("blocks[1].*", ["blocks[1].norm"]),
        ("*[1]*", ["blocks[1].norm", "norms[1]"]),
        ("*.norm", ["blocks[0].norm", "blocks[1].norm"]),
        ("norms[0]", ["norms[0]"]),
        ("norms[?]", None),
        ("norm", None),
        ("", None),
    ],
)
def test_pattern_narrows_where_matches_are_looked_for(at, replaced):
    modifier = replace_all(Norm.Config, Norm.Config(eps=0.5), at=at)
    if replaced is None:
        assert error_of(modifier, Model.Config()).startswith(
            f"0 nodes replaced: no Norm.Config at {at!r} in this tree:\n"
        )
    else:
        report = modifier.report(Model.Config())
        assert [change.path for change in report.changes] == replaced
        assert {d.path for d in diff(Model.Config(), report.config)} == {f"{path}.eps" for path in replaced}


def test_pattern_can_name_the_root():
    cfg = Record(value=Record(value=1))
    assert replace_all(Record, Twin(value=2), at="")(cfg) == Twin(value=2)
    assert replace_all(Record, Twin(), at="value")(cfg) == Record(value=Twin(value=1))


# replace_all: nothing found, or no room.


def test_no_match_is_an_error_that_lists_the_tree():
    assert error_of(replace_all(Mixture.Config, Identity.Config()), Model.Config()) == (
        "0 nodes replaced: no Mixture.Config in this tree:\n"
        "  (root): Model.Config\n"
        "  blocks[0]: Block.Config\n"
        "  blocks[0].norm: Norm.Config\n"
        "  blocks[0].ffn: Dense.Config\n"
        "  blocks[1]: Block.Config\n"
        "  blocks[1].norm: Norm.Config\n"
        "  blocks[1].ffn: Dense.Config\n"
        "  norms[0]: Norm.Config\n"
        "  norms[1]: Norm.Config\n"
        "  heads.main: Identity.Config\n"
        '  If that is fine, pass missing="ok".'
    )


def test_tree_in_the_error_is_cut_after_forty_nodes():
    text = error_of(replace_all(Dense.Config, Identity.Config()), Record(items=[Norm.Config()] * 45))
    lines = text.splitlines()
    assert len(lines) == 43
    assert lines[40:] == ["  items[38]: Norm.Config", "  ... and 6 more", '  If that is fine, pass missing="ok".']


def test_no_match_is_fine_if_the_caller_says_so():
    cfg = Model.Config()
    report = replace_all(Mixture.Config, Identity.Config(), missing="ok").report(cfg)
    assert report.config is cfg
    assert (report.changes, str(report).partition("\n")[0]) == ((), "0 nodes replaced")


def test_component_instead_of_its_config_is_named_as_the_mistake():
    """`replace_all(Dense, ...)` means `Dense.Config`; the tree lists Dense.Config, so '0 nodes' would puzzle."""
    text = error_of(replace_all, Dense, Identity.Config())
    assert text == "replace_all: expected a config class, found Dense (a class). Did you mean Dense.Config?"


def test_config_class_instead_of_a_config_is_named_as_the_mistake():
    text = error_of(replace_all, Dense.Config, Identity.Config)
    assert (
        text
        == "replace_all: expected a config or a function, found the class Identity.Config. Write Identity.Config()."
    )


def test_replacement_that_is_missing_is_named_as_the_mistake():
    text = error_of(replace_all, Dense.Config)
    assert text == "replace_all: expected a config or a function to replace Dense.Config, found None."


@pytest.mark.parametrize(
    "cfg, text",
    [
        (Block.Config(), "ffn: expected FeedForward.Config, found Norm.Config (a config)."),
        (Model.Config(), "blocks[0].ffn: expected FeedForward.Config, found Norm.Config (a config)."),
        (NESTED, "ffn: expected FeedForward.Config, found Norm.Config (a config)."),
        (Mixture.Config(), None),
        (
            Model.Config(blocks=[], heads={"main": Dense.Config()}),
            "heads.main: expected FeedForward.Config, found Norm.Config (a config).",
        ),
    ],
)
def test_config_that_does_not_satisfy_the_slot_is_refused_with_its_path(cfg, text):
    modifier = replace_all(FeedForward.Config, Norm.Config())
    if text is None:
        assert modifier(cfg) == Norm.Config()  # The root is in no slot.
    else:
        assert error_of(modifier, cfg) == text


# replace_all: what the new config takes over.


def test_fields_of_the_common_interface_are_inherited_and_what_was_set_wins():
    cfg = Record(items=[Dense.Config(dim=4, dropout=0.5, hidden=3), Dense.Config(dim=5, dropout=0.25)])
    assert replace_all(Dense.Config, Mixture.Config(num_experts=8), drop=("hidden",))(cfg) == Record(
        items=[Mixture.Config(dim=4, dropout=0.5, num_experts=8), Mixture.Config(dim=5, dropout=0.25, num_experts=8)]
    )
    assert replace_all(Dense.Config, Mixture.Config(dropout=0.0), drop=("hidden",))(cfg) == Record(
        items=[Mixture.Config(dim=4, dropout=0.0), Mixture.Config(dim=5, dropout=0.0)]
    )


class Gated(FeedForward):
    """Has a required field of the same name as one of `Dense`, and a dropout of its own."""

    class Config(FeedForward.Config):
        """Declares `hidden` itself, and `dropout` again."""

        hidden: int = REQUIRED
        dropout: float = 0.9
        activation: Any = None

    def forward(self, x: float) -> float:
        """Returns `x`."""
        return x


def test_field_of_the_same_name_is_taken_over_whichever_class_declares_it():
    cfg = Block.Config(dim=4, ffn=Dense.Config(dim=4, dropout=0.5, hidden=3))
    changed = replace_all(FeedForward.Config, Gated.Config())(cfg)
    assert changed.ffn == Gated.Config(dim=4, hidden=3, dropout=0.5, activation=square)


def test_inherited_value_that_does_not_fit_names_its_place():
    class Loud(Component):
        class Config(Component.Config):
            dim: str = REQUIRED

    assert error_of(replace_all(Norm.Config, Loud.Config()), Record(items=[Norm.Config(dim=3)])) == (
        "items[0]: Loud.Config has no place for what was set in Norm.Config:\n"
        "    dim = 3 (here it is str)\n"
        "  Give it such fields, or let them go: drop=('dim',)."
    )


def test_function_gets_the_old_config_and_gives_the_new_one_as_it_is_to_be():
    def twice(old: Any) -> Any:
        return Mixture.Config(dim=old.dim, num_experts=old.hidden)

    cfg = Record(items=[Dense.Config(dim=1, dropout=0.5, hidden=3), Dense.Config(dim=2, hidden=4)])
    assert replace_all(Dense.Config, twice)(cfg) == Record(
        items=[Mixture.Config(dim=1, num_experts=3), Mixture.Config(dim=2, num_experts=4)]
    )


def test_function_that_inherits_gives_the_same_as_the_config_itself():
    cfg = Model.Config()
    by_function = replace_all(
        FeedForward.Config, lambda old: Mixture.Config(num_experts=8).inherit(old, drop="unplaced")
    )
    by_config = replace_all(FeedForward.Config, Mixture.Config(num_experts=8), drop="unplaced")
    assert by_function(cfg) == by_config(cfg)


@pytest.mark.parametrize("returned, shown", [(None, "None"), (3, "3"), (Norm, "<class 'support.configs.Norm'>")])
def test_function_that_returns_no_config_is_refused_with_the_path(returned, shown):
    text = f"blocks[0].ffn: the modifier returned {shown}, expected a config."
    assert error_of(replace_all(Dense.Config, lambda old: returned), Model.Config()) == text
    assert error_of(modify(Dense.Config, lambda old: returned), Model.Config()) == text


def test_error_inside_the_function_names_the_path():
    text = error_of(replace_all(Norm.Config, lambda old: old.set(epps=1)), Block.Config())
    assert text == "norm: Norm.Config has no field 'epps'. Did you mean 'eps'?"


# replace_all: what would be lost.


class Windowed(FeedForward):
    """Has fields that other feed-forwards have not."""

    class Config(FeedForward.Config):
        """A number that may be off, a size, and a config of another kind."""

        window: int | None = None
        size: int = 8
        norm: Norm.Config | None = None

    def forward(self, x: float) -> float:
        """Returns `x`."""
        return x


def test_what_was_set_and_has_no_place_is_one_error_for_all_nodes_with_the_way_out():
    cfg = Record(items=[Windowed.Config(window=4), Dense.Config(hidden=3), Windowed.Config(size=8)])
    swap = replace_all(FeedForward.Config, Identity.Config())
    assert error_of(swap, cfg) == (
        "items[0]: Identity.Config has no place for what was set in Windowed.Config:\n"
        "    window = 4\n"
        "items[1]: Identity.Config has no place for what was set in Dense.Config:\n"
        "    hidden = 3\n"
        "items[2]: Identity.Config has no place for what was set in Windowed.Config:\n"
        "    size = 8\n"
        "  Give it such fields, or let them go: drop=('window', 'hidden', 'size')."
    )
    drop = ("window", "hidden", "size")
    assert replace_all(FeedForward.Config, Identity.Config(), drop=drop)(cfg).items == [Identity.Config()] * 3


def test_places_in_the_error_are_cut_after_five():
    text = error_of(replace_all(Dense.Config, Identity.Config()), Record(items=[Dense.Config(hidden=3)] * 9))
    assert text.count("hidden = 3") == 5
    assert "\n... and so at 4 more places.\n" in text


def test_what_is_off_by_default_and_was_set_so_is_no_loss():
    cfg = Record(items=[Windowed.Config(window=None, norm=None, dropout=0.0)])
    assert replace_all(Windowed.Config, Identity.Config())(cfg).items == [Identity.Config()]


def test_dropped_field_is_not_taken_over_even_where_it_has_a_place():
    cfg = Record(items=[Dense.Config(dropout=0.5, hidden=3)])
    changed = replace_all(Dense.Config, Gated.Config(), drop=("dropout",))(cfg)
    assert changed.items == [Gated.Config(hidden=3, dropout=0.9, activation=square)]


def test_name_to_drop_that_nothing_has_is_a_mistake_unless_the_caller_says_otherwise():
    cfg = Record(items=[Dense.Config()])
    text = error_of(replace_all(Dense.Config, Identity.Config(), drop=("hiden",)), cfg)
    assert text == "drop: nothing that is replaced has a field 'hiden'. Did you mean 'hidden'?"
    assert replace_all(Dense.Config, Identity.Config(), drop=("hiden",), missing="ok")(cfg).items == [Identity.Config()]
    text = error_of(replace_all(Dense.Config, Identity.Config(), drop="hidden"), cfg)
    assert text == "drop: expected a list of field names, found 'hidden' (str). Write drop=('hidden',)."


def test_function_drops_what_it_likes_itself():
    text = error_of(lambda: replace_all(Dense.Config, lambda old: Identity.Config(), drop=("hidden",)))
    assert text == "replace_all: drop is for a config that inherits. A function says itself what it takes over."


# Several at once.


def test_mapping_makes_several_replacements_at_once():
    cfg = Model.Config()
    both = replace_all({Norm.Config: Norm.Config(eps=0.5), Dense.Config: Identity.Config()}, drop=("hidden",))
    second = replace_all(Dense.Config, Identity.Config(), drop=("hidden",))
    one_by_one = chain(replace_all(Norm.Config, Norm.Config(eps=0.5)), second)
    assert both(cfg) == one_by_one(cfg)
    assert both(cfg).blocks[0] == Block.Config(dim=4, norm=Norm.Config(eps=0.5), ffn=Identity.Config())


def test_mapping_can_exchange_two_classes():
    cfg = Record(items=[Record(value=1), Twin(value=2)])
    swap = replace_all({Record: lambda old: Twin(value=old.value), Twin: lambda old: Record(value=old.value)}, at="*[*")
    assert swap(cfg) == Record(items=[Twin(value=1), Record(value=2)])


def test_node_that_two_replacements_claim_is_a_conflict():
    modifier = replace_all({FeedForward.Config: Identity.Config(), Dense.Config: Mixture.Config()})
    assert error_of(modifier, Model.Config()) == (
        "blocks[0].ffn: claimed by two replacements, of FeedForward.Config and Dense.Config."
        " Apply them one after the other."
    )


def test_each_target_of_a_mapping_must_be_found():
    modifier = replace_all({Norm.Config: Norm.Config(), Mixture.Config: Identity.Config()})
    assert error_of(modifier, Block.Config()).startswith("0 nodes replaced: no Mixture.Config in this tree:\n")


# Purity.


def test_input_is_unchanged_and_untouched_parts_are_shared():
    cfg = Model.Config(heads={"main": Mixture.Config(), "other": Identity.Config()})
    before = to_text(cfg)
    changed = replace_all(Mixture.Config, Dense.Config())(cfg)
    assert to_text(cfg) == before
    assert changed.blocks is cfg.blocks
    assert changed.norms is cfg.norms
    assert changed.heads["other"] is cfg.heads["other"]


def test_modifier_can_be_used_again():
    modifier = replace_all(FeedForward.Config, Mixture.Config(), drop=("hidden",))
    assert modifier(Block.Config(dim=1)) == modifier(Block.Config(dim=1))
    assert modifier(Block.Config(dim=2)) == Block.Config(dim=2, ffn=Mixture.Config())


@given(trees(), st.data())
@settings(max_examples=40)
def test_replacement_changes_nothing_but_its_matches(cfg, data):
    outside = Record(value=cfg, other=Norm.Config(dim=data.draw(st.integers(0, 3))))
    report = replace_all(Norm.Config, Norm.Config(eps=0.5)).report(outside)
    assert report.config.value is cfg
    assert [change.path for change in report.changes] == ["other"]
    assert [d.path for d in diff(outside, report.config)] == ["other.eps"]


@given(trees())
@settings(max_examples=40)
def test_replacing_each_node_by_itself_gives_an_equal_tree(cfg):
    for target in (Record, Twin):
        assert replace_all(target, lambda old: old, missing="ok")(cfg) == cfg
        assert modify(target, lambda old: old, missing="ok")(cfg) == cfg


@given(trees())
@settings(max_examples=40)
def test_after_modifying_every_match_each_node_has_changed(cfg):
    changed = modify(Record, lambda old: Twin(value=old.value, items=old.items), missing="ok")(cfg)
    assert find(changed, Record) == []
    assert len(find(changed, Twin)) <= len(find(cfg, Record)) + len(find(cfg, Twin))


# modify.


def test_modify_changes_every_match_inner_ones_first():
    seen: list[int] = []

    def count(old: Any) -> Any:
        seen.append(len(find(old, Mixture.Config)))
        return old.set(num_experts=sum(node.num_experts for _, node in find(old, Mixture.Config)))

    changed: Any = modify(Mixture.Config, count)(NESTED)
    assert seen == [1, 2]
    assert (changed.ffn.expert.num_experts, changed.ffn.num_experts) == (2, 4)


def test_modify_reports_each_change_in_the_order_of_the_tree():
    report = modify(Norm.Config, lambda old: old.set(eps=0.5)).report(Model.Config())
    assert [change.path for change in report.changes] == ["blocks[0].norm", "blocks[1].norm", "norms[0]", "norms[1]"]
    assert report.changes[0] == Change("blocks[0].norm", Norm.Config(), Norm.Config(eps=0.5))


def test_modify_can_change_the_root():
    assert modify(Norm.Config, lambda old: old.set(dim=7))(Norm.Config()) == Norm.Config(dim=7)


def test_modify_without_match_is_an_error_that_lists_the_tree():
    assert error_of(modify(Dense.Config, lambda old: old, at="x*"), Norm.Config()) == (
        "0 nodes modified: no Dense.Config at 'x*' in this tree:\n"
        "  (root): Norm.Config\n"
        '  If that is fine, pass missing="ok".'
    )
    assert modify(Dense.Config, lambda old: old, missing="ok")(Norm.Config()) == Norm.Config()


def test_modify_names_the_path_of_a_value_that_does_not_fit():
    text = error_of(modify(Norm.Config, lambda old: old.set(eps="a"), at="norms[1]"), Model.Config())
    assert text == "norms[1]: Norm.Config.eps: expected float, found 'a' (str)."


# chain.


def test_chain_applies_accumulate_and_reports_all():
    both = chain(
        replace_all(FeedForward.Config, Mixture.Config(), drop=("hidden",)),
        lambda cfg: cfg.set(dim=9),
        replace_all(Mixture.Config, Identity.Config()),
    )
    report = both.report(Block.Config(dim=4))
    assert report.config == Block.Config(dim=9, ffn=Identity.Config())
    assert str(report) == (
        "2 nodes replaced\n"
        "  ffn: Dense.Config -> Mixture.Config\n"
        "    dropped: hidden = 8, activation = support.configs.square\n"
        "  ffn: Mixture.Config -> Identity.Config\n"
        "    dropped: num_experts = 2, expert = Dense.Config"
    )


def test_chain_of_chains_is_a_chain_and_an_empty_one_changes_nothing():
    cfg = Block.Config(dim=4)
    step = replace_all(Norm.Config, Norm.Config(eps=0.5))
    assert chain(chain(step), chain()).report(cfg).changes == step.report(cfg).changes
    assert chain()(cfg) is cfg
    assert isinstance(chain(), Modifier)
    assert chain().report(cfg) == Report(cfg, ())
