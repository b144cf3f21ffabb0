# SPDX-License-Identifier: Apache-2.0
"""An engine answers as the model does without it: for every kind of layer, however requests come, on any mesh."""

import time

import numpy as np
import pytest

from dovetail.parallel import Mesh
from dovetail.serve import Draw, Engine, ModelDevice, Request
from dovetail.zoo import RECIPES
from support.served import SMALL, Reference, check_answer, prompts, trained

# Of each kind of state one: keys and values; with windows, soft caps, sinks; latent; recurrent, with experts.
DEFAULT = ["llama3-tiny", "gemma3-tiny", "gpt-oss-tiny", "deepseek-v3-tiny", "hybrid-tiny", "qwen3-next-tiny"]
OFTEN = ("llama3-tiny", "gemma3-tiny", "qwen3-next-tiny")
TINY = [name for name in RECIPES if name.endswith("-tiny")]
VOCAB, OUTPUT, LENGTH = 256, 10, 48


def requests(seed: int, count: int) -> list[Request]:
    """Returns requests that are drawn in all ways, every third one greedily."""
    rng = np.random.default_rng(seed)
    made: list[Request] = []
    for i, tokens in enumerate(prompts(rng, count, VOCAB, LENGTH - OUTPUT)):
        how = Draw(temperature=0.0)
        if i % 3:
            how = Draw(
                temperature=float(rng.uniform(0.3, 2.0)),
                top_k=int(rng.integers(0, 20)),
                top_p=float(rng.uniform(0.5, 1.0)),
                repetition_penalty=float(rng.choice([1.0, 1.3])),
                frequency_penalty=float(rng.choice([0.0, 0.5])),
                seed=int(rng.integers(2**32)),
            )
        new = int(rng.integers(1, OUTPUT))
        made.append(Request(tokens=tokens, max_tokens=new, draw=how, logprobs=int(rng.integers(0, 4))))
    return made


def check_engine(name: str, seed: int, mesh: Mesh | None = None, count: int = 9) -> None:
    """Answers requests all at once, with too few pages for them, some of them given up; and then one at a time."""
    print(f"{name}: seed {seed}")
    rng, model, wanted = np.random.default_rng(seed), trained(name, mesh), requests(seed, count)
    # Pages for three sequences of up to 48 tokens: some must wait, or be computed again.
    device = ModelDevice(SMALL.set(tokens=64), model)
    with Engine.Config(chunk_budget=int(rng.integers(4, 30))).build(device=device) as engine:
        streams = []
        for request in wanted:
            streams.append(engine.submit(request))
            if rng.random() < 0.3:
                given_up = engine.submit(request)
                time.sleep(0.002)
                given_up.cancel()
        answers = [stream.result(120) for stream in streams]
        assert engine.drain(60)
        usage = engine.stats().pages
        assert all(each.used == 0 for each in usage.values()), "no page is left behind"
    with Engine.Config(prefix_cache=False).build(device=device) as engine:
        alone = [engine.submit(request).result(120) for request in wanted]
    reference = Reference(model, LENGTH)
    for request, together, single in zip(wanted, answers, alone, strict=True):
        assert [token.id for token in together.tokens] == [token.id for token in single.tokens]
        assert together.finish == single.finish == "length"
        np.testing.assert_allclose(
            [token.logprob for token in together.tokens], [token.logprob for token in single.tokens], atol=1e-5
        )
        if request.draw.is_plain:
            check_answer(reference, request, together)


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.long) for name in DEFAULT]
)
def test_answers_are_those_of_one_request_at_a_time_and_of_the_model_without_state(name):
    check_engine(name, seed=len(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TINY if name not in DEFAULT])
def test_answers_of_every_family_are_those_of_one_request_at_a_time(name):
    check_engine(name, seed=len(name))


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(Mesh(tensor=2), id="2 devices"),
        pytest.param(Mesh(data=2, tensor=4), id="8 devices", marks=pytest.mark.long),
    ],
)
def test_answers_on_a_mesh_are_those_on_one_device(mesh):
    check_engine("llama3-tiny", 3, mesh, count=6)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [Mesh(tensor=2), Mesh(data=2, fsdp=2, tensor=2)], ids=["2 devices", "8 devices"])
@pytest.mark.parametrize("name", [name for name in DEFAULT if name != "llama3-tiny"])
def test_answers_of_every_kind_on_a_mesh_are_those_on_one_device(name, mesh):
    check_engine(name, 3, mesh, count=6)
