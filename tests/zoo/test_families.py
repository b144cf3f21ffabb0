# SPDX-License-Identifier: Apache-2.0
"""Families: each a function and a table, known nowhere else; each small model learns and decodes."""

import ast
import io
import re
import tokenize
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dovetail
from dovetail.config import modify
from dovetail.module import call, init_run_state, specs
from dovetail.nn import Repeat
from dovetail.serve import Sampling, generate
from dovetail.train import init_state, train_step
from dovetail.zoo import RECIPES, families, model, recipe
from support.models import random_params, random_values

SRC = Path(dovetail.__file__).parent
HOME = SRC / "zoo" / "families"
FAMILIES = sorted({entry.family for entry in RECIPES.values()})
TINY = [name for name in RECIPES if name.endswith("-tiny")]
# Those whose layers are made of what others have as well.
ALIKE = ("bamba", "command-r", "deepseek-v2", "gemma", "gemma2", "gpt-neox", "granite", "mistral", "mixtral", "olmo2")
ALIKE += ("olmo3", "olmoe", "phi3", "qwen2.5", "qwen3", "smollm3", "starcoder2")
ALIKE += ("gemma3", "gpt-oss", "qwen3-next")  # Of these, tests of their layers are in `make test`.
EACH = [pytest.param(name, marks=[pytest.mark.long] if name.removesuffix("-tiny") in ALIKE else []) for name in TINY]


def test_every_family_has_a_small_model_that_trains_at_once():
    assert [RECIPES[name].family for name in TINY] == FAMILIES
    assert {RECIPES[name].recipe for name in TINY} == {"tiny"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_one_function_and_no_class(family):
    body = ast.parse((HOME / f"_{family}.py").read_text("utf-8")).body
    defined = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert defined == [family]
    assert callable(getattr(families, family))


def test_no_family_is_named_outside_its_own_files():
    names = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, [*FAMILIES, *set(RECIPES) - {'tiny-lm'}]))})(?![\w-])")
    files = [file for file in SRC.rglob("*.py") if file.parent != HOME]
    found = [f"{file.relative_to(SRC)}: {match[0]}" for file in files for match in names.finditer(_code(file))]
    assert found == []


def _code(file: Path) -> str:
    """Returns the names and strings of a file, without comments and docstrings, where papers and models are cited."""
    read = tokenize.generate_tokens(io.StringIO(file.read_text("utf-8")).readline)
    return " ".join(t.string for t in read if t.type in (tokenize.NAME, tokenize.STRING) and '"""' not in t.string)


@pytest.mark.parametrize("name", EACH)
def test_a_small_model_learns(name):
    cfg = recipe(name)
    built = cfg.model.build()
    learner = cfg.learner.set_in("schedule.warmup_steps", 0).build(specs=specs(built), steps=cfg.steps)
    step = jax.jit(train_step(built, learner, seed=0, num_microbatches=1, dtype=None))
    batch = next(iter(cfg.input.set(batch_size=2, seq_len=24).build()))
    state, losses = init_state(random_params(built), learner, init_run_state(built)), []
    for _ in range(30):  # Most need four.
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
        if losses[-1] < losses[0] - 0.2:
            return
    pytest.fail(f"the loss does not fall: {losses}")


@pytest.mark.parametrize("name", EACH)
def test_what_a_small_model_writes_is_most_likely_by_the_whole_sequence_with_its_layers_unrolled(name):
    """Generation with scanned layers, against one call for all tokens with a program for each layer."""
    scanned = model(name).set(predictions=()).build()
    unrolled = _unrolled(model(name).set(predictions=())).build()
    length, new = 5, 12  # Beyond the windows of all small models.
    prompts = jnp.asarray(np.random.default_rng(0).integers(0, 256, (3, length), np.int32))

    @jax.jit
    def run(params):
        written = generate(
            scanned,
            params,
            prompts,
            jnp.full((3,), length),
            key=jax.random.key(0),
            max_new=new,
            sampling=Sampling(temperature=0),
        )
        ids = jnp.concatenate([prompts, written], axis=1)
        return written, call(unrolled, params, ids)[0][:, length - 1 : -1]

    written, logits = map(np.asarray, run(random_values(scanned)))
    chosen = np.take_along_axis(logits, written[:, :, None], axis=2)[:, :, 0]
    np.testing.assert_allclose(chosen, logits.max(axis=2), rtol=0, atol=1e-4)


def _unrolled(cfg):
    return modify(Repeat.Config, lambda old: old.set(loop="unroll"))(cfg)


def test_biases_and_norms_are_not_matrices():
    """Weight decay and Muon pick matrices by their specs."""
    flat = jax.tree_util.tree_leaves_with_path(specs(model("gpt2-tiny").build()), is_leaf=lambda x: hasattr(x, "axes"))
    matrices = {path[-1].key for path, spec in flat if spec.in_dims and spec.out_dims}
    others = {path[-1].key for path, spec in flat if not (spec.in_dims and spec.out_dims)}
    assert (matrices, others) == ({"weight"}, {"bias", "scale", "table"})
