# SPDX-License-Identifier: Apache-2.0
"""What programs make of the layers' results: embeddings of prompts are those of the model, however they are read."""

import jax
import numpy as np
import pytest

from dovetail.module import call
from dovetail.serve import Draw, Engine, ModelDevice, Request, RequestError
from support.fake_device import FULL
from support.served import SMALL, prompts, trained
from support.stepped import Stepped


def test_embeddings_of_prompts_in_chunks_all_at_once_are_those_of_the_whole_model():
    model = trained("llama3-tiny")
    device = ModelDevice(SMALL.set(tokens=64, embed="mean"), model)
    built = model.program.cfg.model.build()
    hidden = jax.jit(lambda ids: call(built, model.params, ids, method="hidden")[0][0])
    wanted = prompts(np.random.default_rng(0), 6, 256, 40)
    with Engine.Config(chunk_budget=8).build(device=device) as engine:
        streams = [
            engine.submit(Request(tokens=tokens, max_tokens=number % 2 * 3, pooling=how, draw=Draw(seed=number)))
            for number, tokens in enumerate(wanted)
            for how in ("last", "mean")
        ]
        for number, stream in enumerate(streams):
            padded = np.zeros((1, 48), np.int32)
            tokens, found = stream.request.tokens, stream.result(60)
            padded[0, : len(tokens)] = tokens
            all_of_them = np.asarray(hidden(padded), np.float64)[: len(tokens)]
            want = all_of_them.mean(axis=0) if number % 2 else all_of_them[-1]
            np.testing.assert_allclose(found.embedding, want / np.linalg.norm(want), atol=1e-5)
            assert len(found.tokens) == stream.request.max_tokens
        plain = engine.submit(Request(tokens=(1, 2), max_tokens=1)).result(60)
        assert plain.embedding is None


def test_a_model_that_is_not_served_for_embeddings_says_so():
    with pytest.raises(RequestError, match="pooling: this model is not served for embeddings"):
        Stepped(FULL).submit([1], 0, pooling="mean")
