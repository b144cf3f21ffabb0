# SPDX-License-Identifier: Apache-2.0
"""A model in few bits answers behind an engine as it does without one, whatever its layers are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.nn import quantised_params
from dovetail.ops import native
from dovetail.parallel import Mesh
from dovetail.serve import Draw, Engine, ModelDevice, Request, Sampling, ServedModel, generate, quantised
from dovetail.train import Program, Trained
from support.served import SMALL, prompts, trained

SERVING = SMALL.set(tokens=96, chunks=(12,), slower=True)
# Of each kind of state and of weights one: heads, with windows and soft caps; latent, with experts; recurrent.
DEFAULT = ["gemma3-tiny", "deepseek-v3-tiny", "qwen3-next-tiny"]
VOCAB, OUTPUT = 256, 6


def in_few_bits(run: Trained, weights, kv) -> Trained:
    """Returns the same run with the model that is served: its config, and parameters that are rounded."""
    cfg = run.program.cfg
    program = Program(cfg.set(model=quantised(weights, kv)(cfg.model)), trains=False)
    return Trained(program, quantised_params(program.model, run.params), run.step)


def answers(device, wanted):
    with Engine.Config(chunk_budget=9).build(device=device) as engine:
        streams = [engine.submit(request) for request in wanted]
        return [[token.id for token in stream.result(120).tokens] for stream in streams]


def alone(run, wanted):
    """Returns what the model says without an engine: with caches of its own, which are not in pages."""
    width = max(len(request.tokens) for request in wanted)
    ids = np.zeros((len(wanted), width), np.int32)
    for row, request in zip(ids, wanted, strict=True):
        row[: len(request.tokens)] = request.tokens
    lengths = jnp.asarray([len(request.tokens) for request in wanted])
    options = {"key": jax.random.key(0), "max_new": OUTPUT, "sampling": Sampling(temperature=0.0)}
    run_all = jax.jit(lambda params, ids: generate(run.program.model, params, ids, lengths, **options))
    return np.asarray(run_all(run.params, jnp.asarray(ids))).tolist()


def requests(seed, count):
    found = prompts(np.random.default_rng(seed), count, VOCAB, 30)
    return [Request(tokens=tokens, max_tokens=OUTPUT, draw=Draw(temperature=0.0)) for tokens in found]


@pytest.mark.parametrize(
    "name, weights, kv",
    [
        ("llama3-tiny", "int4", None),
        *(pytest.param(name, "int8", "int8", marks=pytest.mark.long) for name in DEFAULT),
    ],
)
def test_greedy_answers_are_those_of_the_same_model_without_an_engine(name, weights, kv):
    run, wanted = trained(name), requests(len(name), 5)
    device = ModelDevice(SERVING.set(weights=weights, kv=kv, apart=name != "gemma3-tiny"), run)
    assert answers(device, wanted) == alone(in_few_bits(run, weights, kv), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("name", ["llama3-tiny", "mixtral-tiny", "gpt-oss-tiny", "hybrid-tiny", "deepseek-v3-tiny"])
def test_greedy_answers_of_more_models_are_those_without_an_engine(name, weights, apart):
    run, wanted = trained(name), requests(len(name), 5)
    device = ModelDevice(SERVING.set(weights=weights, kv="int8", apart=apart), run)
    assert answers(device, wanted) == alone(in_few_bits(run, weights, "int8"), wanted)


@pytest.mark.long
def test_answers_on_a_mesh_are_those_on_one_device():
    wanted, few = requests(3, 3), SERVING.set(weights="int8", kv="int8")
    assert answers(ModelDevice(few, trained("llama3-tiny", Mesh(tensor=2))), wanted) == alone(
        in_few_bits(trained("llama3-tiny"), "int8", "int8"), wanted
    )


def test_new_parameters_are_rounded_as_the_first_ones_were():
    run, wanted = trained("llama3-tiny"), requests(5, 2)
    other = Trained(run.program, jax.tree.map(lambda x: x + 0.1, run.params), 1)
    device = ModelDevice(SERVING.set(weights="int8"), run)
    device.swap(other.params)
    assert answers(device, wanted) == alone(in_few_bits(other, "int8", None), wanted)


def test_it_reports_what_it_changed_and_leaves_head_embedding_and_router():
    cfg: Any = trained("deepseek-v3-tiny").program.cfg.model
    report = quantised("int8", "int8").report(cfg)
    ends = {change.path.rpartition(".")[2] for change in report.changes}
    assert {"query", "kv_down", "key_up", "value_up", "up", "down", "cache"} <= ends
    assert all(change.path.startswith("stack") for change in report.changes)
    assert (report.config.head, report.config.embedding) == (cfg.head, cfg.embedding)
    assert quantised(None, "int8")(report.config) == report.config, "what is in 8 bits already stays"


def test_four_times_as_many_tokens_fit_as_in_float32():
    cfg = trained("llama3-tiny").program.cfg
    big = cfg.set(model=cfg.model.set_in("stack.layer.mixer.head_dim", 128))
    serving = SERVING.set(tokens=None, slots=64, max_length=512)
    room = {kv: ServedModel(big, serving.set(kv=kv), room=4 * 2**20) for kv in (None, "int8")}
    tokens = {kv: sum(group.pages - 1 for group in model.shape.groups) * serving.page for kv, model in room.items()}
    assert tokens["int8"] / tokens[None] > 3.8, "besides values, pages hold the documents of tokens"


SLOWER = [
    ("int8", "mixtral-tiny", "each row has a matrix of its own"),
    ("int4", "llama3-tiny", "for int4"),
    ("int8", "llama3-tiny", "not native"),
]


@pytest.mark.parametrize("weights, name, why", SLOWER)
def test_weights_that_are_slower_on_this_platform_are_refused_with_the_reason(weights, name, why, monkeypatch):
    cfg = trained(name).program.cfg
    if why == "not native":
        none = native()._replace(reason="there is no compiler")
        monkeypatch.setattr("dovetail.ops.kernels._native.native", lambda: none)
    elif native().reason:
        pytest.skip(native().reason)
    with pytest.raises(
        ConfigError, match=rf"(?s)weights='{weights}'.*times as long.*SmolLM2.*{why}.*slower=true.*kv=\"int8\""
    ):
        ServedModel(cfg, SERVING.set(weights=weights, slower=False))
    ServedModel(cfg, SERVING.set(kv="int8", slower=False))


def test_bfloat16_is_kept_by_native_kernels_alone(monkeypatch):
    if not native().reason:
        served = ServedModel(trained("llama3-tiny").program.cfg, SERVING.set(weights="bfloat16", slower=False))
        assert served.params["head"]["panels"].dtype == jnp.bfloat16
    none = native()._replace(reason="there is no compiler")
    monkeypatch.setattr("dovetail.ops.kernels._native.native", lambda: none)
    with pytest.raises(ConfigError, match=r"weights='bfloat16' is for native kernels.*there is no compiler"):
        ServedModel(trained("llama3-tiny").program.cfg, SERVING.set(weights="bfloat16"))


def test_what_there_is_nothing_of_is_refused():
    with pytest.raises(ConfigError, match=r"0 nodes replaced: no Cache.Config in this tree"):
        ServedModel(trained("mamba2-tiny").program.cfg, SERVING.set(kv="int8"))
