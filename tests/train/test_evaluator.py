# SPDX-License-Identifier: Apache-2.0
"""What every evaluator must keep: it changes nothing, finds the same on any mesh, and runs when it is due.

A new evaluator joins `EVALUATORS`.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import REQUIRED, ConfigError, override, replace_all
from dovetail.nn import FeedForward
from dovetail.parallel import parse_mesh
from dovetail.serve import Sampler
from dovetail.train import Evaluated, Evaluator, Findings, HeldOutLoss, Program, Trainer, evaluators_of, findings
from dovetail.zoo import recipe
from support.objectives import Captions, Contrast, Matching
from support.runs import tiny


class Sizes(Evaluator):
    """A user's own: what layers report of a batch, and the norm of all parameters."""

    class Config(Evaluator.Config):
        rows: int = 4

    def run(self, at: Evaluated) -> Findings:
        batch = next(iter(self.program.cfg.input.set(batch_size=self.cfg.rows).build()))
        found, collected = self.program.call(at, batch)
        norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(at.params)))
        reported = {path.rpartition(".")[2]: float(np.mean(value)) for path, value in collected.summaries.items()}
        return Findings({"norm": norm, "loss": float(found.sum / found.weight), **reported}, {"": f"step {at.step}"})


def evaluators(cfg: Trainer.Config) -> dict[str, Evaluator.Config]:
    held_out = cfg.evaluators["eval"]
    assert isinstance(held_out, HeldOutLoss.Config)
    return {
        "held out": held_out,
        "sample": Sampler.Config(prompt="It was", tokens=6),
        "own": Sizes.Config(),
    }


MESHES = ("data=1", "data=2,tensor=2", "fsdp=2,seq=2")


@pytest.mark.parametrize("name", ["held out", *(pytest.param(n, marks=pytest.mark.long) for n in ("sample", "own"))])
def test_it_leaves_parameters_alone_and_finds_the_same_on_any_mesh(name, tmp_path):
    cfg, all_found = tiny(tmp_path), []
    for mesh in MESHES:
        program = Program(cfg.set(mesh=parse_mesh(mesh), evaluators={"it": evaluators(cfg)[name]}))
        start = program.devices.jit(program.init, out_shardings=program.shardings)
        params = start(jax.random.key(0)).params
        before = jax.device_get(params)
        first, again = (next(findings(evaluators_of(program, {}), Evaluated(7, params))) for _ in range(2))
        assert first == again
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), before)
        all_found.append(first)
    one, *others = all_found
    assert one.metrics or one.texts
    assert all(key == "it" or key.startswith("it/") for key in (*one.metrics, *one.texts))
    for other in others:
        assert other.metrics.keys() == one.metrics.keys()
        np.testing.assert_allclose([*other.metrics.values()], [*one.metrics.values()], rtol=1e-4)
        assert other.texts == one.texts


def records(cfg):
    return [json.loads(line) for line in (Path(cfg.directory) / "metrics.jsonl").read_text().splitlines()]


def test_each_has_a_schedule_of_its_own_and_runs_at_the_end_once(tmp_path):
    every = {"two": Sizes.Config(every=2), "end": Sizes.Config(), "five": Sizes.Config(every=5)}
    cfg = tiny(tmp_path, steps=5, evaluators=every)
    cfg.build().run()
    steps = {name: [r["step"] for r in records(cfg) if f"{name}/norm" in r] for name in every}
    assert steps == {"two": [2, 4, 5], "end": [5], "five": [5]}
    assert [(r["step"], r["end"]) for r in records(cfg) if "end" in r] == [(5, "step 5")]
    more = cfg.set(steps=6, evaluators={"new": Sizes.Config(every=1)})  # They may change when a run goes on.
    more.build().run()
    assert [r["step"] for r in records(more) if "new/norm" in r] == [6]


def test_what_it_sees_is_the_average_that_is_published(tmp_path):
    cfg = tiny(tmp_path, steps=2, evaluators={"own": Sizes.Config()})
    state = cfg.build().run()
    norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(state.learner.ema)))
    (found,) = (r["own/norm"] for r in records(cfg) if "own/norm" in r)
    assert found == pytest.approx(norm, rel=1e-6)


def test_summaries_that_modules_report_can_be_asked_for(tmp_path):
    cfg = tiny(tmp_path).set(model=Matching.Config(), input=Captions.Config(batch_size=4), num_microbatches=1)
    program = Program(cfg.set(evaluators={"own": Sizes.Config()}))
    (found,) = findings(evaluators_of(program, None), Evaluated(0, program.init(jax.random.key(0)).params))
    assert found.metrics["own/apart"] > 0


def test_impossible_evaluators_are_refused_when_the_run_is_built(tmp_path):
    cfg = tiny(tmp_path)
    for changed, message in (
        (cfg.set_in("evaluators.eval.every", 0), r"evaluators.eval.every: is 0, expected at least 1, or None"),
        (cfg.set_in("evaluators.sample.tokens", 0), r"evaluators.sample.tokens: is 0, expected at least 1"),
        (cfg.set_in("evaluators.sample.sampling.top_k", 0), r"top_k is 0, expected at least 1"),
        (cfg.set(model=Contrast.Config(), input=Captions.Config(batch_size=4)), "reads the field 'image' of a batch"),
    ):
        with pytest.raises(ConfigError, match=message):
            changed.set(num_microbatches=1).build()
    other = cfg.set(model=Contrast.Config(), input=Captions.Config(batch_size=4), num_microbatches=1)
    with pytest.raises(ConfigError, match=r"input: Captions has no tokenizer, without which there is no text"):
        other.set(evaluators={"sample": Sampler.Config(prompt="x")}).build()


def test_several_prompts_make_a_table_and_the_first_is_still_the_sample(tmp_path):
    cfg = tiny(tmp_path)
    program = Program(
        cfg.set(evaluators={"it": Sampler.Config(prompt="It was", more_prompts=("A b", "It was"), tokens=6)})
    )
    params = jax.jit(program.init)(jax.random.key(0)).params
    found = next(findings(evaluators_of(program, {}), Evaluated(7, params)))
    table = found.tables["it/all"]
    assert tuple(table.columns) == ("prompt", "continuation", "tokens")
    assert [row[0] for row in table.rows] == ["It was", "A b", "It was"]
    assert found.texts["it"] == f"{table.rows[0][0]}{table.rows[0][1]}"
    assert table.rows[0] == table.rows[2]


@pytest.mark.parametrize(
    "old, now",
    [
        ("eval_input.batch_size=2", "evaluators.eval=HeldOutLoss evaluators.eval.input"),
        ("eval_every=2", "evaluators.NAME.every, of each"),
        ("sample_prompt=x", "evaluators.sample=Sampler evaluators.sample.prompt"),
        ("sampling.temperature=1", "evaluators.sample.sampling"),
    ],
)
def test_what_a_field_was_called_before_says_what_it_is_called_now(old, now):
    with pytest.raises(ConfigError) as e:
        override(recipe("tiny-lm"), [old])
    assert str(e.value).endswith(f"it has no field {old.partition('=')[0].partition('.')[0]!r}. It is now {now}.")
    with pytest.raises(ConfigError, match=r"It is now evaluators\.NAME\.every"):
        recipe("tiny-lm").set(eval_every=3)


class Warmed(FeedForward):
    """A feed-forward that grows with the steps of training, wherever it runs."""

    class Config(FeedForward.Config):
        inner: FeedForward.Config = REQUIRED

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.inner = self.child("inner", cfg.inner.set(dim=cfg.dim))

    def forward(self, x, context=None):
        self.summary("step", jnp.float32(self.step))
        return self.inner(x, context) * jnp.minimum(jnp.float32(self.step) / 4, 1.0)


def test_modules_know_the_step_of_training_when_they_are_trained_evaluated_and_sampled_from(tmp_path):
    cfg = tiny(tmp_path, steps=2)
    cfg = replace_all(FeedForward.Config, lambda old: Warmed.Config(inner=old))(cfg)
    state = cfg.set(evaluators={**cfg.evaluators, "own": Sizes.Config()}).build().run()
    records = [json.loads(line) for line in Path(cfg.directory, "metrics.jsonl").read_text("utf-8").splitlines()]
    assert int(state.step) == 2
    assert [each["own/step"] for each in records if "own/step" in each] == [2.0]
    trained = [value for each in records for name, value in each.items() if name.endswith("ffn.step")]
    assert trained == [0.0, 1.0]
    assert any("eval/loss" in each for each in records)
    assert any("sample" in each for each in records)
