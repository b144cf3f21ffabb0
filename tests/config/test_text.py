# SPDX-License-Identifier: Apache-2.0
"""Canonical text and the difference of two configs."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings

from dovetail.config import Difference, config_for, diff, to_text
from support.configs import Block, Dense, Identity, Mixture, Model, Norm, Record, Twin, cube, run_python, trees

MODEL = """\
(root) = support.configs.Model.Config
name = 'model'
kind = support.configs.Kind.CAUSAL
sizes = [1, 2]
blocks = [2 items]
blocks[0] = support.configs.Block.Config
blocks[0].dim = 4
blocks[0].norm = support.configs.Norm.Config
blocks[0].norm.dim = REQUIRED
blocks[0].norm.eps = 1e-06
blocks[0].ffn = support.configs.Dense.Config
blocks[0].ffn.dim = REQUIRED
blocks[0].ffn.dropout = 0.0
blocks[0].ffn.hidden = 8
blocks[0].ffn.activation = support.configs.square
blocks[1] = support.configs.Block.Config
blocks[1].dim = 6
blocks[1].norm = support.configs.Norm.Config
blocks[1].norm.dim = REQUIRED
blocks[1].norm.eps = 1e-06
blocks[1].ffn = support.configs.Dense.Config
blocks[1].ffn.dim = REQUIRED
blocks[1].ffn.dropout = 0.0
blocks[1].ffn.hidden = 8
blocks[1].ffn.activation = support.configs.square
norms = (2 items)
norms[0] = support.configs.Norm.Config
norms[0].dim = 1
norms[0].eps = 1e-06
norms[1] = support.configs.Norm.Config
norms[1].dim = 2
norms[1].eps = 1e-06
heads = {1 items}
heads.main = support.configs.Identity.Config
heads.main.dim = 4
heads.main.dropout = 0.0
"""


def test_text_has_one_line_per_config_and_value():
    assert to_text(Model.Config()) == MODEL


def test_text_of_what_jax_brings_names_import_paths():
    assert to_text(Record(value=jax.nn.silu, other=np.dtype(jnp.bfloat16), items=[jnp.float32, jax.nn.relu])) == (
        "(root) = support.configs.Record\n"
        "value = jax.nn.silu\n"
        "other = dtype(bfloat16)\n"
        "items = [jax.numpy.float32, jax.nn.relu]\n"
        "table = {}\n"
    )


def test_text_with_a_newline_in_a_value_or_a_key_stays_one_line():
    text = to_text(Record(value="a\nb", table={"c\nd": Norm.Config()}))
    assert len(text.splitlines()) == 8
    assert "value = 'a\\nb'\n" in text


def test_text_is_the_same_in_a_process_with_another_hash_seed():
    program = (
        "from support.configs import *\n"
        "from dovetail.config import config_for, to_text\n"
        "nodes = {'y': Norm.Config(), 'x': Model.Config()}\n"
        "table = {Kind.CAUSAL: {1, 2}}\n"
        "cfg = Record(value=nodes, other={'p', 'q', 'r', 's'}, items=[config_for(power, 1)], table=table)\n"
        "print(to_text(cfg), end='')"
    )
    nodes = {"x": Model.Config(), "y": Norm.Config()}
    texts = {run_python(program, hash_seed=seed) for seed in (1, 2, 3)}
    assert len(texts) == 1
    assert "other = set('p', 'q', 'r', 's')\n" in texts.pop()
    assert to_text(Record(value=nodes)) == to_text(Record(value=dict(reversed(nodes.items()))))


def test_key_that_is_a_function_is_written_without_its_address():
    assert "0x" not in to_text(Record(table={cube: 1}))


# diff.


def test_diff_of_equal_configs_is_empty():
    assert diff(Model.Config(), Model.Config()) == ()
    assert str(diff(Model.Config(), Model.Config())) == ""


def test_diff_shows_changed_added_and_removed_lines_in_the_order_of_the_text():
    old = Block.Config(dim=4)
    new = Block.Config(dim=5, norm=Norm.Config(eps=1e-5), ffn=Mixture.Config(expert=Identity.Config()))
    assert str(diff(old, new)) == (
        "  dim: 4 -> 5\n"
        "  norm.eps: 1e-06 -> 1e-05\n"
        "  ffn: support.configs.Dense.Config -> support.configs.Mixture.Config\n"
        "- ffn.hidden = 8\n"
        "- ffn.activation = support.configs.square\n"
        "+ ffn.num_experts = 2\n"
        "+ ffn.expert = support.configs.Identity.Config\n"
        "+ ffn.expert.dim = REQUIRED\n"
        "+ ffn.expert.dropout = 0.0"
    )


def test_diff_shows_a_block_that_was_inserted():
    old = Model.Config(blocks=[], norms=(Norm.Config(), Norm.Config()))
    new = old.set(blocks=[Block.Config(dim=4, ffn=Identity.Config())], name="longer")
    assert str(diff(old, new)) == (
        "  name: 'model' -> 'longer'\n"
        "  blocks: [] -> [1 items]\n"
        "+ blocks[0] = support.configs.Block.Config\n"
        "+ blocks[0].dim = 4\n"
        "+ blocks[0].norm = support.configs.Norm.Config\n"
        "+ blocks[0].norm.dim = REQUIRED\n"
        "+ blocks[0].norm.eps = 1e-06\n"
        "+ blocks[0].ffn = support.configs.Identity.Config\n"
        "+ blocks[0].ffn.dim = REQUIRED\n"
        "+ blocks[0].ffn.dropout = 0.0"
    )


def test_diff_of_another_root_names_the_root():
    assert list(diff(Record(), Twin())) == [Difference("(root)", "support.configs.Record", "support.configs.Twin")]
    assert str(diff(Record(), Twin())) == "  (root): support.configs.Record -> support.configs.Twin"


def test_diff_of_two_functions_names_both():
    assert str(diff(Record(value=config_for(cube, 1)), Record(value=config_for(cube, 2)))) == "  value.x: 1.0 -> 2.0"


def test_difference_holds_path_old_and_new():
    assert diff(Norm.Config(dim=1), Norm.Config(dim=2))[0] == ("dim", "1", "2")
    assert diff(Dense.Config(), Identity.Config())[1] == ("hidden", "REQUIRED", None)
    assert diff(Identity.Config(), Dense.Config())[1] == ("hidden", None, "REQUIRED")


@given(trees(), trees())
@settings(max_examples=40)
def test_diff_is_empty_exactly_if_the_configs_are_equal(one, two):
    assert (len(diff(one, two)) == 0) == (one == two)
    assert diff(one, one) == ()


@given(trees(), trees())
@settings(max_examples=40)
def test_diff_back_is_the_diff_with_both_sides_exchanged(one, two):
    there, back = diff(one, two), diff(two, one)
    assert {(d.path, d.new, d.old) for d in there} == set(back)
    assert len(there) == len({d.path for d in there})
