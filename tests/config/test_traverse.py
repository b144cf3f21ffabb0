# SPDX-License-Identifier: Apache-2.0
"""Traversal and paths: every config and leaf has one path, and the path leads back to it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigBase, ConfigError, diff, find, to_text, visit
from dovetail.config._traverse import holds_nodes
from support.configs import (
    Block,
    Dense,
    FeedForward,
    Identity,
    Kind,
    Mixture,
    Model,
    Norm,
    Record,
    square,
    trees,
    values,
)


def error_of(call, *args) -> str:
    with pytest.raises(ConfigError) as e:
        call(*args)
    return str(e.value)


def test_visit_yields_configs_containers_of_configs_and_leaves_parents_first():
    cfg = Record(value=Norm.Config(dim=1), items=[1, Identity.Config()], table={"a": [1], "b": ({"c": Norm.Config()},)})
    assert [path for path, _ in visit(cfg)] == [
        "",
        "value",
        "value.dim",
        "value.eps",
        "other",
        "items",
        "items[0]",
        "items[1]",
        "items[1].dim",
        "items[1].dropout",
        "table",
        "table.a",
        "table.b",
        "table.b[0]",
        "table.b[0].c",
        "table.b[0].c.dim",
        "table.b[0].c.eps",
    ]
    assert dict(visit(cfg))["table.a"] == [1]
    assert dict(visit(cfg))["value"] is cfg.value


def test_find_gives_every_config_of_a_class_the_root_included():
    cfg = Block.Config(dim=4, ffn=Mixture.Config())
    assert [path for path, _ in find(cfg, FeedForward.Config)] == ["ffn", "ffn.expert"]
    assert find(cfg, Dense.Config) == [("ffn.expert", Dense.Config(hidden=3))]
    assert find(cfg, Block.Config) == [("", cfg)]
    assert [path for path, _ in find(cfg, ConfigBase)] == ["", "norm", "ffn", "ffn.expert"]
    assert find(cfg, Model.Config) == []


@given(trees())
@settings(max_examples=40)
def test_every_path_that_visit_names_leads_back_to_its_value(cfg):
    for path, value in visit(cfg):
        assert cfg.get_in(path) is value


@given(trees())
@settings(max_examples=40)
def test_paths_are_unique(cfg):
    paths = [path for path, _ in visit(cfg)]
    assert len(set(paths)) == len(paths)


@given(trees(), values(), st.data())
@settings(max_examples=40)
def test_set_in_changes_what_get_in_reads_and_nothing_else(cfg, new, data):
    leaves = [path for path, value in visit(cfg) if not isinstance(value, ConfigBase) and not holds_nodes(value)]
    places = [path for path in leaves if path.rpartition(".")[2] not in ("items", "table")]
    path = data.draw(st.sampled_from(places))
    before = to_text(cfg)
    changed = cfg.set_in(path, new)
    assert Record(value=changed.get_in(path)) == Record(value=new)
    assert to_text(cfg) == before
    assert {d.path for d in diff(cfg, changed)} <= {p for p in dict(visit(cfg)) if p.startswith(path)} | {path}
    assert changed.set_in(path, cfg.get_in(path)) == cfg


@given(trees())
@settings(max_examples=40)
def test_set_in_with_the_value_that_is_there_changes_nothing(cfg):
    for path, value in visit(cfg):
        if path:
            assert cfg.set_in(path, value) == cfg


def test_set_in_shares_what_it_does_not_change():
    cfg = Model.Config()
    changed = cfg.set_in("blocks[1].norm.eps", 0.5)
    assert changed.blocks[0] is cfg.blocks[0]
    assert changed.blocks[1].ffn is cfg.blocks[1].ffn
    assert changed.heads is cfg.heads
    assert changed.blocks[1].norm.eps == 0.5
    assert cfg.blocks[1].norm.eps == 1e-6


@pytest.mark.parametrize(
    "path, new",
    [
        ("name", "x"),
        ("kind", Kind.MASKED),
        ("sizes[1]", 7),
        ("blocks[0].dim", 7),
        ("blocks[1].ffn.activation", square),
        ("norms[0]", Norm.Config(dim=9)),
        ("norms[1].eps", 0.5),
        ("heads.main.dropout", 0.5),
        ("heads['main'].dropout", 0.5),
        ('heads["main"].dropout', 0.5),
        ("heads.new", Dense.Config()),
        ("heads['new head']", Dense.Config()),
    ],
)
def test_path_reaches_fields_items_and_entries(path, new):
    assert Model.Config().set_in(path, new).get_in(path) == new


def assert_entry_is_reached_by_its_path(key) -> None:
    cfg = Record(table={key: Norm.Config(dim=1)})
    path = next(path for path, value in visit(cfg) if isinstance(value, Norm.Config))
    assert cfg.get_in(path) == Norm.Config(dim=1)
    assert cfg.set_in(f"{path}.dim", 2) == Record(table={key: Norm.Config(dim=2)})


@pytest.mark.parametrize(
    "key",
    ["a", "a-b", "", "a b", "a.b", "a[0]", "it's", 'say "x"', "both ' and \"", "back\\slash", "tab\t", "é", "0",
     0, -1, 10**20],
    ids=repr,
)  # fmt: skip
def test_entry_with_any_text_or_number_as_key_is_reached_by_the_path_that_visit_gives_it(key):
    assert_entry_is_reached_by_its_path(key)


@pytest.mark.parametrize("key", [1.5, True, None, (1, "a"), Kind.CAUSAL, square])
def test_entry_with_another_key_is_reached_by_its_path_too_or_refused(key):
    try:
        Record(table={key: Norm.Config(dim=1)})
    except ConfigError as e:
        refusal = str(e)
    else:
        return assert_entry_is_reached_by_its_path(key)
    assert "Record.table" in refusal


def test_empty_path_is_the_root():
    cfg = Norm.Config(dim=1)
    assert cfg.get_in("") is cfg


@pytest.mark.parametrize(
    "path, text",
    [
        ("blocks[0].dmi", "blocks[0].dmi: blocks[0] is Block.Config, it has no field 'dmi'."
         " Did you mean 'blocks[0].dim'?"),
        ("nmae", "nmae: the root is Model.Config, it has no field 'nmae'. Did you mean 'name'?"),
        ("blocks[2]", "blocks[2]: blocks is a list of 2, it has no entry 2. Did you mean 'blocks[1]'?"),
        ("blocks[-1]", "blocks[-1]: blocks is a list of 2, it has no entry -1. Did you mean 'blocks[1]'?"),
        ("norms.first", "norms.first: norms is a tuple of 2, it has no entry 'first'. Did you mean 'norms'?"),
        ("heads.mian", "heads.mian: heads is a dict of 1, it has no entry 'mian'. Did you mean 'heads.main'?"),
        ("heads.other.dim", "heads.other.dim: heads is a dict of 1, it has no entry 'other'."
         " Did you mean 'heads.main.dim'?"),
        ("name.x", "name.x: name is 'model' (str), it has no entry 'x'. Did you mean 'name'?"),
        ("kind.CAUSAL", "kind.CAUSAL: kind is support.configs.Kind.CAUSAL (Kind), it has no entry 'CAUSAL'."),
        ("qqqqqqqqqqqq", "qqqqqqqqqqqq: the root is Model.Config, it has no field 'qqqqqqqqqqqq'."),
    ],
)  # fmt: skip
def test_path_that_leads_nowhere_says_where_it_ends(path, text):
    assert error_of(Model.Config().get_in, path) == text
    if path != "heads.mian":  # A dict takes new entries.
        assert error_of(Model.Config().set_in, path, 1) == text


@pytest.mark.parametrize(
    "path, hint",
    [
        ("blocks[0]dim", " Did you mean 'blocks[0].dim'?"),
        ("blocks[x].dim", " Did you mean 'blocks[1].dim'?"),
        ("blocks..dim", None),
        ("name.", " Did you mean 'name'?"),
        (".name", " Did you mean 'name'?"),
        ("blocks[0", " Did you mean 'blocks[0]'?"),
        ("blocks[0].norm eps", " Did you mean 'blocks[0].norm.eps'?"),
        (" ", ""),
        ("3", ""),
    ],
)
def test_text_that_is_no_path_is_refused(path, hint):
    for call, args in ((Model.Config().get_in, ()), (Model.Config().set_in, (1,))):
        text = error_of(call, path, *args)
        start = f"{path!r} is not a path. Write it as in 'model.layers[0].dim'."
        assert text.startswith(start)
        assert hint is None or text == start + hint


@pytest.mark.parametrize(
    "path, new, text",
    [
        ("name", 3, "name: expected str, found 3 (int)."),
        ("blocks[1].norm.eps", "a", "blocks[1].norm.eps: expected float, found 'a' (str)."),
        ("sizes[0]", "a", "sizes[0]: expected int, found 'a' (str)."),
        ("blocks[1]", Norm.Config(), "blocks[1]: expected Block.Config, found Norm.Config (a config)."),
        ("blocks[1].ffn", Norm.Config(), "blocks[1].ffn: expected FeedForward.Config, found Norm.Config (a config)."),
        ("heads.main", Norm.Config(), "heads.main: expected FeedForward.Config, found Norm.Config (a config)."),
        ("heads.new", 3, "heads.new: expected FeedForward.Config, found 3 (int)."),
        ("norms", (), "norms: expected tuple[Norm.Config, Norm.Config], found () (tuple)."),
    ],
)
def test_value_of_another_type_is_refused_with_its_path(path, new, text):
    assert error_of(Model.Config().set_in, path, new) == text


def test_set_in_at_the_root_takes_a_config_only():
    cfg = Norm.Config(dim=1)
    assert cfg.set_in("", Norm.Config(dim=2)) == Norm.Config(dim=2)
    assert error_of(cfg.set_in, "", 3) == "(root): expected a config, found 3 (int)."


@given(values())
def test_leaf_without_configs_is_visited_once(value):
    assert [path for path, _ in visit(Record(value=value)) if path.startswith("value")] == ["value"]
