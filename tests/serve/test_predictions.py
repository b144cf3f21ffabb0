# SPDX-License-Identifier: Apache-2.0
"""A model's own predictions of further tokens are guesses: they are those of training, and change no answer."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, override
from dovetail.models import MultiTokenPrediction
from dovetail.module import call
from dovetail.nn import Attention, Block, GatedFeedForward
from dovetail.serve import Draw, Engine, ModelDevice, Request, ServedModel
from dovetail.train import Program, Trained
from dovetail.zoo import recipe
from support.models import random_params, random_values
from support.served import SMALL, Reference, check_answer, prompts, trained

VOCAB, OUTPUT, LENGTH = 256, 22, 48
GREEDY = Draw(temperature=0.0)
PREDICTED = SMALL.set(slots=2, rows=(2,), chunks=(8,), tokens=72, drafts=3, drafter="predictions")
BLOCK = Block.Config(mixer=Attention.Config(num_heads=4), ffn=GatedFeedForward.Config(hidden_dim=48))
OTHER_BLOCKS = {  # Of models that have none themselves.
    "llama3-tiny": BLOCK,
    "gemma3-tiny": override(BLOCK, ["mixer.window=9"]),
}


def predicting(name, count):
    """A small model with predictions."""
    cfg = recipe(name)
    block = OTHER_BLOCKS.get(name) or cfg.model.stack.layers[-1].layer
    model = cfg.model.set(predictions=(MultiTokenPrediction.Config(block=block),) * count)
    return cfg.set(model=model)


@functools.cache
def model_of(name, count):
    program = Program(predicting(name, count), trains=False)
    return Trained(program, random_values(program.model), 0)


@functools.cache
def device_of(name, count):
    """A device; what a busy machine measures of its steps is not what is tested."""
    device = ModelDevice(PREDICTED, model_of(name, count))
    device.shape = dataclasses.replace(device.shape, draft_costs=())
    return device


class Noted:
    """Notes what is guessed, and what for."""

    def __init__(self, monkeypatch, drafter):
        self.found, self._before = [], drafter.before
        monkeypatch.setattr(drafter, "before", self.before)

    def before(self, rows, on):
        ids = self._before(rows, on)
        if rows.verifies:
            for row, start, count in zip(np.asarray(ids), rows.start, rows.count, strict=True):
                self.found.append((int(start), row[: int(count)].tolist()))
        return ids


class InTraining:
    """What predictions say in training, of one row."""

    def __init__(self, model):
        built = model.program.cfg.model.build()

        def run(params, ids):
            hidden, _ = call(built, params, ids, method="hidden")
            nothing = jnp.zeros((1, len(built.predictions), hidden.shape[-1]))
            found, _ = call(built, params, ids, hidden, nothing, method="predict")
            return jnp.argmax(call(built, params, found[0], method="head_logits")[0], axis=-1)

        self._params, self._run = model.params, jax.jit(run)

    def says(self, tokens):
        """Returns the most likely token by each prediction, which is given these."""
        ids = np.zeros((1, LENGTH), np.int32)
        ids[0, : len(tokens)] = tokens
        return np.asarray(self._run(self._params, ids))[len(tokens) - 1]


@pytest.mark.long
def test_the_first_guess_is_what_the_first_prediction_says_in_training(monkeypatch):
    model, device = model_of("deepseek-v3-tiny", 2), device_of("deepseek-v3-tiny", 2)
    noted, training = Noted(monkeypatch, device._drafter), InTraining(model)
    with Engine.Config(prefix_cache=False).build(device=device) as engine:
        request = Request(tokens=tuple(range(3, 20)), max_tokens=17, draw=GREEDY)
        answer = engine.submit(request).result(120)
    tokens = [*request.tokens, *(token.id for token in answer.tokens)]
    assert len(noted.found) >= 2
    for start, ids in noted.found:
        if ids:
            assert ids[0] == tokens[start]
            assert ids[1] == training.says(tokens[: start + 1])[0]
        if len(ids) > 2:
            assert ids[2] == training.says([*tokens[: start + 1], ids[1]])[1]


@pytest.mark.parametrize(
    "name, count",
    [
        pytest.param("deepseek-v3-tiny", 2, marks=pytest.mark.long),
        pytest.param("gemma3-tiny", 1, marks=pytest.mark.slow),
    ],
)
def test_answers_are_those_without_guesses(name, count):
    device, model = device_of(name, count), model_of(name, count)
    rng, wanted = np.random.default_rng(count), list[Request]()
    for i, tokens in enumerate(prompts(rng, 7, VOCAB, LENGTH - OUTPUT)):
        how = Draw(temperature=1.3, top_p=0.9, frequency_penalty=0.5, seed=i) if i % 3 else GREEDY
        wanted.append(Request(tokens=tokens, max_tokens=int(rng.integers(11, OUTPUT)), draw=how, logprobs=2))
    shape = device.shape
    device.shape = dataclasses.replace(shape, drafts=0)
    with Engine.Config(prefix_cache=False).build(device=device) as engine:
        without = [engine.submit(request).result(120) for request in wanted]
        assert engine.stats().drafted_tokens == 0
    device.shape = shape
    with Engine.Config(chunk_budget=16).build(device=device) as engine:
        streams = [engine.submit(request) for request in wanted]
        answers = [stream.result(120) for stream in streams]
        stats = engine.stats()
    assert stats.drafted_tokens > 10
    assert all(each.used == 0 for each in stats.pages.values()), "no page is left behind"
    reference = Reference(model, LENGTH)
    for request, got, want in zip(wanted, answers, without, strict=True):
        assert [token.id for token in got.tokens] == [token.id for token in want.tokens]
        got_probs, want_probs = ([token.logprob for token in each.tokens] for each in (got, want))
        np.testing.assert_allclose(got_probs, want_probs, atol=1e-5)
        if request.draw.is_plain:
            check_answer(reference, request, got)


def chain(params):
    """Parameters with which a token says the next one, and predictions go on in the same way."""

    def change(path, x):
        name = jax.tree_util.keystr(path)
        if "'merge'" in name:
            return jnp.stack([jnp.eye(x.shape[-1]), jnp.zeros(x.shape[1:])])
        is_out = ("'stack'" in name or "'block'" in name) and ("'out'" in name or "'down'" in name)
        return jnp.zeros_like(x) if is_out else jnp.ones_like(x) if "norm'" in name else x

    return jax.tree_util.tree_map_with_path(change, params)


def test_predictions_that_say_what_the_model_says_always_hold():
    model = model_of("llama3-tiny", 1)
    device = ModelDevice(PREDICTED, Trained(model.program, chain(model.params), 0))
    device.shape = dataclasses.replace(device.shape, draft_costs=())
    with Engine.Config().build(device=device) as engine:
        for draw in (GREEDY, GREEDY, Draw(temperature=0.0, presence_penalty=0.01)):
            before = engine.stats()
            engine.submit(Request(tokens=tuple(range(9)), max_tokens=17, draw=draw)).result(60)
            after = engine.stats()
            accepted = after.accepted_tokens - before.accepted_tokens
            assert accepted == after.drafted_tokens - before.drafted_tokens > 8
            assert after.steps - before.steps < 10


def test_their_state_is_counted_among_that_of_a_page():
    cfg = predicting("llama3-tiny", 1)
    with_them, without = (ServedModel(cfg, serving) for serving in (PREDICTED, PREDICTED.set(drafts=0)))
    entry = 2 * 4 * 8 * 4 + 4  # Of a token: key and value of 4 heads of dim 8, and whether it counts.
    assert with_them.page_bytes["pages"] == without.page_bytes["pages"] + PREDICTED.page * entry
    assert not any("predictions" in path for path in jax.eval_shape(without.make_state))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match=r'(?s)drafter is "predictions", but .* predicts the next token alone'):
        ModelDevice(PREDICTED, trained("llama3-tiny"))


def test_a_prediction_reads_what_it_reads_in_training():
    cfg = predicting("llama3-tiny", 2).model
    model = cfg.build()
    params = random_params(model)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, VOCAB, (2, 9)), jnp.int32)
    weights = jnp.zeros(ids.shape).at[:, 3].set(1.0)  # Of the target after the token at place 3: that at place 4.

    def loss(ahead):
        """That of the last target alone, `ahead` places further than the next token of place 3 - ahead."""
        batch = {"tokens": ids, "targets": jnp.roll(ids, -1, axis=1), "weights": weights}
        _, collected = call(model, params, batch, method="loss")
        return collected.losses[f"predictions[{ahead - 1}]"] * 2 / cfg.prediction_weight

    hidden, _ = call(model, params, ids, method="hidden")
    found, _ = call(model, params, ids, hidden, jnp.zeros((2, 2, hidden.shape[-1])), method="predict")
    logits, _ = call(model, params, found, method="head_logits")
    for ahead in (1, 2):
        said = jax.nn.log_softmax(logits[:, 3, ahead - 1], axis=-1)  # Given the token at place 3, of that at place 4.
        want = -jnp.mean(said[jnp.arange(2), ids[:, 4]])
        np.testing.assert_allclose(loss(ahead), want, rtol=1e-5)
