# SPDX-License-Identifier: Apache-2.0
"""What every objective must keep: sums over rows, padding that counts for nothing, any split, any mesh.

A new objective joins `OBJECTIVES`, with an input that gives what it reads.
"""

import json
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.data import ByteTokenizer, ShippedCorpus, TextDataset, TextInput
from dovetail.models import CausalLM
from dovetail.module import Loss, Objective, Remat, call, constant
from dovetail.optim import ConstantSchedule, Learner
from dovetail.parallel import parse_mesh
from dovetail.train import HeldOutLoss, JsonLines, Trainer, eval_step, gradients_of
from dovetail.train._fields import trace_loss
from support.compare import assert_same
from support.models import lm, random_params
from support.objectives import Captions, Contrast, Matching, Pairs, Preference

TEXT = TextInput.Config(
    batch_size=4,
    seq_len=8,
    tokenizer=ByteTokenizer.Config(),
    dataset=TextDataset.Config(source=ShippedCorpus.Config()),
)
OBJECTIVES = {
    "language model": (lm(vocab_size=260), TEXT),
    "preference": (Preference.Config(policy=lm(), reference=lm()), Pairs.Config(batch_size=4)),
    "matching": (Matching.Config(), Captions.Config(batch_size=4)),
    "contrast": (Contrast.Config(), Captions.Config(batch_size=4)),
}
SUMS = [name for name, (cfg, _) in OBJECTIVES.items() if cfg._owner.sums_over_rows]


def made(name):
    cfg, data = OBJECTIVES[name]
    model = cfg.build(path="model")
    return model, random_params(model), next(iter(data.build())), data.batch_specs()[0]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_reads_what_its_input_gives_and_all_of_it(name):
    model, _, _, spec = made(name)
    assert trace_loss(model, spec, "input").read == spec.fields.keys()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_rows_of_padding_count_for_nothing(name):
    model, params, batch, spec = made(name)
    run = eval_step(model, dtype=None)
    assert_same(run(params, spec.filled(batch, 3)), run(params, batch))


@pytest.mark.parametrize("name", SUMS)
def test_sum_weight_and_metrics_add_up_over_rows(name):
    model, params, batch, _ = made(name)
    run = jax.jit(eval_step(model, dtype=None))
    rows = [run(params, {field: values[i : i + 1] for field, values in batch.items()}) for i in range(4)]
    assert_same(run(params, batch), jax.tree.map(lambda *parts: sum(parts), *rows))


@pytest.mark.parametrize("name", SUMS)
def test_any_split_into_microbatches_gives_the_same(name):
    model, params, batch, _ = made(name)
    found = [jax.jit(gradients_of(model, num_microbatches=n, dtype=None))(params, batch, None) for n in (1, 2, 4)]
    for other in found[1:]:
        own = {path: value for path, value in other[0][2].items() if path not in ("loss/model.size", "model.apart")}
        assert_same(own, {path: found[0][0][2][path] for path in own})
        if name != "matching":  # Which adds a loss that is a mean over rows, whatever they weigh.
            assert_same((other[0][0], other[1]), (found[0][0][0], found[0][1]))


def trainer(name, directory, **fields):
    cfg, data = OBJECTIVES[name]
    return Trainer.Config(
        model=cfg,
        learner=Learner.Config(schedule=ConstantSchedule.Config(peak=1e-2)),
        input=data,
        steps=3,
        directory=str(directory),
        observers=(JsonLines.Config(),),
        log_every=1,
    ).set(**fields)


def records(cfg):
    return [json.loads(line) for line in (Path(cfg.directory) / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", [pytest.param("preference", marks=pytest.mark.long), "matching", "contrast"])
def test_it_trains_on_a_mesh_as_on_one_device_and_is_counted_in_its_unit(name, tmp_path):
    unit = OBJECTIVES[name][1].batch_specs()[0].unit
    held_out = {"images": HeldOutLoss.Config(input=Captions.Config(batch_size=3, num_images=5))}
    fields = {} if name == "preference" else {"evaluators": held_out}
    runs = [
        trainer(name, tmp_path / mesh, mesh=parse_mesh(mesh), **fields)
        for mesh in ("data=1", "data=2", "fsdp=2,tensor=2")
    ]
    for cfg in runs:
        cfg.build().run()
    steps, *others = ([r for r in records(cfg) if "loss" in r] for cfg in runs)
    assert [r[f"{unit}s"] for r in steps] == [4.0] * 3
    assert f"{unit}s_per_second" in steps[-1]
    for other in others:
        np.testing.assert_allclose([r["loss"] for r in other], [r["loss"] for r in steps], rtol=1e-4)
    if fields:
        last = [r for cfg in runs for r in records(cfg) if "images/loss" in r]
        assert [r["images/images"] for r in last] == [5.0] * 3  # Batches of 3 are filled up, the last one twice.
        if name == "matching":
            np.testing.assert_allclose([r["images/loss"] for r in last], last[0]["images/loss"], rtol=1e-4)


class Whole(Objective):
    """A language model whose batches must stay whole, for whatever reason."""

    sums_over_rows: ClassVar[bool] = False

    class Config(Objective.Config):
        inner: CausalLM.Config = lm(vocab_size=260)

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.inner = self.child("inner", cfg.inner)

    def loss(self, batch):
        return self.inner.loss(batch)


def test_a_loss_that_is_no_sum_over_rows_is_not_split(tmp_path):
    said = r"model \(Whole\): its loss is not a sum over rows, so that a batch must not be split, but "
    cfg = trainer("language model", tmp_path, model=Whole.Config())
    with pytest.raises(ConfigError, match=said + r"num_microbatches is 2.\n  Use num_microbatches=1"):
        cfg.set(num_microbatches=2).build()
    stages = parse_mesh("pipeline=2").set(microbatches=2)
    with pytest.raises(ConfigError, match=said + r"mesh.schedule is one_forward_one_backward"):
        cfg.set(mesh=stages.set(schedule="one_forward_one_backward")).build()
    cfg.set(mesh=stages).build()  # Layers may be in stages where the loss is still of the whole batch.


class Odd(Objective):
    """Reads fields by name, and has a metric of some name."""

    class Config(Objective.Config):
        fields: tuple[str, ...] = ("image", "caption", "weight")
        metric: str = "good"

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.param("scale", (), axes=(), init=constant(1.0))

    def loss(self, batch):
        x = sum((jnp.mean(batch[name]) for name in self.cfg.fields), self.scale)
        return Loss(x, jnp.ones(()), {self.cfg.metric: (x, x)})


def refused(directory, **fields):
    with pytest.raises(ConfigError) as e:
        trainer("contrast", directory, model=Odd.Config().set(**fields)).build()
    return str(e.value)


def test_what_does_not_fit_together_is_refused_when_the_run_is_built_and_both_sides_are_named(tmp_path):
    assert refused(tmp_path, fields=("image", "sound")) == (
        "model (Odd) reads the field 'sound' of a batch, which input (Captions) does not give. It gives: "
        "image, caption, weight.\n  Change the input, or the loss."
    )
    assert refused(tmp_path, fields=("weight", "image")) == (
        "input (Captions) gives the field 'caption', which model (Odd) does not read. It reads: image, weight.\n"
        "  Change the input, or the loss."
    )
    assert refused(tmp_path, metric="loss") == (
        "model (Odd): the metric 'loss' is one of the trainer's own. Give it another name."
    )
    held_out = {"pairs": HeldOutLoss.Config(input=Pairs.Config(batch_size=2, num_pairs=2))}
    with pytest.raises(ConfigError, match=r"the field 'image' .* which evaluators.pairs.input \(Pairs\) does"):
        trainer("contrast", tmp_path, evaluators=held_out).build()


def test_a_field_is_read_inside_of_remat_too():
    model, _, _, spec = made("matching")
    again = model.cfg.set(remat=Remat()).build(path="model")
    assert trace_loss(again, spec, "input").read == spec.fields.keys()


def test_values_that_an_objective_has_no_place_for_are_refused(tmp_path):
    small = Preference.Config(policy=lm(vocab_size=10), reference=lm(vocab_size=10))
    with pytest.raises(ConfigError) as e:
        trainer("preference", tmp_path, model=small).build()
    assert str(e.value) == (
        "model.policy.vocab_size is 10, but 'tokens' of input (Pairs) has values below 11. Set it to at least that."
    )


def test_the_pairs_of_a_row_stay_together():
    model, params, batch, _ = made("preference")
    swapped = {name: values[:, ::-1] for name, values in batch.items()}
    found = [call(model, params, each, method="loss")[0] for each in (batch, swapped)]
    right = [float(each.metrics["right"][0]) for each in found]
    assert sum(right) == 4
    assert not np.isclose(found[0].sum, found[1].sum)
