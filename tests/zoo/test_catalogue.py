# SPDX-License-Identifier: Apache-2.0
"""The catalogue: every recipe by its name, from tables alone."""

import math

import jax
import pytest

from dovetail.config import ConfigError, find, from_json, to_json
from dovetail.module import abstract, init_run_state
from dovetail.nn import Mamba2, Mixer, MoEFeedForward
from dovetail.train import size_of
from dovetail.zoo import RECIPES, model, recipe

WITH_DATA = [name for name, entry in RECIPES.items() if entry.recipe != "pretrain"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_number_of_parameters_is_the_published_one(name):
    built = model(name).build()
    leaves = jax.tree.leaves((abstract(built), jax.eval_shape(lambda: init_run_state(built))))
    assert sum(math.prod(leaf.shape) for leaf in leaves) == RECIPES[name].parameters, "biases of routers count there"


@pytest.mark.parametrize("name", [name for name in RECIPES if name.endswith("-tiny")])
def test_the_kind_is_that_of_the_layers(name):
    mixers = {type(mixer) for _, mixer in find(model(name), Mixer.Config)}
    experts, states = bool(find(model(name), MoEFeedForward.Config)), Mamba2.Config in mixers
    assert RECIPES[name].kind == (
        "MoE" if experts else "dense" if not states else "SSM" if len(mixers) == 1 else "hybrid"
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json(name):
    cfg = recipe(name)
    assert from_json(to_json(cfg)) == cfg


@pytest.mark.parametrize("name", WITH_DATA)
def test_a_small_recipe_needs_nothing_that_is_not_shipped(name):
    cfg = recipe(name)
    assert cfg.input.build().bounds()["tokens"] <= cfg.model.vocab_size


def test_a_large_recipe_asks_for_data_and_says_both_ways_to_give_it():
    with pytest.raises(ConfigError) as e:
        recipe("llama2-7b").build()
    assert str(e.value) == (
        "Trainer.Config: 1 required field is not set:\n"
        "  input.dataset.path: str | list[str]\n"
        "    Prepare text once, for runs of any size: dovetail data prepare SOURCE... --tokenizer TOKENIZER --to PLACE"
        "\n    and give the place: --data PLACE. Or give text, for a small run, and what tokenises it:\n"
        "    --text FILE... input.tokenizer.file=tokenizer.json 'input.tokenizer.eos_token=...'\n"
        "  Set them, as in cfg.set_in('input.dataset.path', ...)."
    )


def test_the_size_of_a_large_recipe_is_known_without_its_files():
    size = size_of(recipe("llama2-7b"))
    assert size.parameters == RECIPES["llama2-7b"].parameters
    assert 6 < size.flops_per_unit / size.parameters < 7


def test_an_unknown_name_is_an_error_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"^no recipe is called 'llama2-7'\. Did you mean 'llama2-7b'\?$"):
        recipe("llama2-7")
