# SPDX-License-Identifier: Apache-2.0
"""A trained model, loaded from the directory of its run."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.checkpoint import load_config
from dovetail.config import ConfigError
from dovetail.models import Sampling
from dovetail.train import eval_step, load_trained
from dovetail.train._trained import continued, with_stop


def test_the_moving_average_is_what_is_published(unbroken):
    cfg, state = unbroken
    trained = load_trained(cfg)
    assert trained.step == 6
    jax.tree.map(np.testing.assert_array_equal, trained.params, state.learner.ema)
    plain = load_trained(cfg.set_in("learner.ema", None))
    jax.tree.map(np.testing.assert_array_equal, plain.params, state.params)
    assert not np.allclose(trained.params["embedding"]["table"], plain.params["embedding"]["table"])


def test_neither_the_data_nor_the_file_of_the_tokenizer_is_needed(unbroken):
    cfg, _ = unbroken
    files = load_config(str(Path(cfg.directory) / "checkpoints")).files
    elsewhere = cfg.set_in("input.dataset.source.files", ["gone.txt"])
    text = load_trained(elsewhere, files=files).sample("It was", seed=0, max_new=3, sampling=Sampling())
    assert text.startswith("It was")
    again = load_trained(elsewhere).sample("It was", seed=0, max_new=3, sampling=Sampling())
    assert again == text


def test_evaluation_is_the_mean_over_all_tokens(unbroken):
    cfg, _ = unbroken
    trained, data = load_trained(cfg), cfg.eval_input.build()
    values = trained.evaluate(data)
    step = jax.jit(eval_step(trained.model, dtype=None))
    sums = np.sum([jax.device_get(step(trained.params, batch)) for batch in data], axis=0)
    np.testing.assert_allclose(values["eval/loss"], sums[0] / sums[1], rtol=1e-6)
    np.testing.assert_allclose(values["eval/accuracy"], sums[2] / sums[1], rtol=1e-6)


def test_an_empty_prompt_is_refused(unbroken):
    with pytest.raises(ConfigError, match="the prompt is empty"):
        load_trained(unbroken[0]).sample("", seed=0, max_new=3, sampling=Sampling())


def test_words_that_the_tokenizer_does_not_have_are_left_out(unbroken):
    cfg, _ = unbroken
    trained = load_trained(cfg)

    def draw(params, prompts, lengths, key):
        return jnp.array([[ord("s"), trained.tokenizer.vocab_size, ord("o")]])

    assert continued(draw, trained.params, trained.tokenizer, "It was ", 0, Sampling()) == "It was so"


def test_text_ends_with_the_end_of_text_token_unless_another_is_named(unbroken):
    trained = load_trained(unbroken[0])
    eos = trained.tokenizer.eos_id
    assert with_stop(Sampling(), trained.tokenizer).stop == (eos,)

    def draw(params, prompts, lengths, key):
        return jnp.array([[ord("s"), ord("o"), eos, ord("x"), ord("y")]])

    def text(sampling):
        return continued(draw, trained.params, trained.tokenizer, "It was ", 0, sampling)

    assert text(Sampling()) == "It was so"
    assert text(Sampling(stop=(ord("x"),))) == "It was sox"
    assert text(Sampling(stop=())) == "It was soxy"


def test_generation_stops_at_a_stop_token(unbroken):
    trained = load_trained(unbroken[0])
    any_word = Sampling(stop=tuple(range(260)))
    assert trained.timed_sample("It was", seed=0, max_new=3, sampling=any_word).tokens == 1
    assert trained.timed_sample("It was", seed=0, max_new=3, sampling=Sampling(stop=())).tokens == 3
