# SPDX-License-Identifier: Apache-2.0
"""Text from a trained model, loaded from the directory of its run."""

from pathlib import Path

import numpy as np
import pytest

from dovetail.checkpoint import load_config
from dovetail.config import ConfigError
from dovetail.data import ByteTokenizer
from dovetail.serve import Sampling, Writer, tokenizer_of
from dovetail.serve._writer import new_tokens, text_of, with_stop
from dovetail.train import load_trained
from support.runs import tiny

TOKENIZER = ByteTokenizer.Config().build()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The config of a run of one step."""
    cfg = tiny(tmp_path_factory.mktemp("run"), steps=1, evaluators={})
    cfg.build().run()
    return cfg


def written(cfg, prompt="It was", tokens=3, sampling=None, files=None):
    trained = load_trained(cfg)
    writer = Writer(trained.program, tokenizer_of(cfg, files), tokens, sampling or Sampling())
    return writer.write(trained.params, prompt, seed=0)


def test_neither_the_data_nor_the_file_of_the_tokenizer_is_needed(run):
    files = load_config(str(Path(run.directory) / "checkpoints")).files
    elsewhere = run.set_in("input.dataset.source.files", ["gone.txt"])
    text = written(elsewhere, files=files).text
    assert text.startswith("It was")
    assert written(elsewhere).text == text


def test_an_empty_prompt_is_refused(run):
    with pytest.raises(ConfigError, match="the prompt is empty"):
        written(run, "")


def test_words_that_the_tokenizer_does_not_have_are_left_out():
    ids = TOKENIZER.encode("It was ")[None]
    assert text_of(TOKENIZER, ids, [ord("s"), TOKENIZER.vocab_size, ord("o")]) == "It was so"


def test_text_ends_with_the_end_of_text_token_unless_another_is_named():
    eos = TOKENIZER.eos_id
    assert with_stop(Sampling(), TOKENIZER).stop == (eos,)
    drawn = np.array([[ord("s"), ord("o"), eos, ord("x"), ord("y")]])

    def text(sampling):
        ids = TOKENIZER.encode("It was ")[None]
        return text_of(TOKENIZER, ids, new_tokens(drawn, with_stop(sampling, TOKENIZER)))

    assert text(Sampling()) == "It was so"
    assert text(Sampling(stop=(ord("x"),))) == "It was sox"
    assert text(Sampling(stop=())) == "It was soxy"


def test_generation_stops_at_a_stop_token(run):
    assert written(run, sampling=Sampling(stop=tuple(range(260)))).tokens == 1
    assert written(run, sampling=Sampling(stop=())).tokens == 3
