# SPDX-License-Identifier: Apache-2.0
"""Native kernels in a server: where they are used, that no schedule changes a bit, and what if there are none."""

from typing import Any

import jax
import numpy as np
import pytest

from dovetail.ops import native
from dovetail.parallel import Mesh
from dovetail.serve import Draw, Engine, ModelDevice, Request, ServedModel
from dovetail.serve._compiled import placed
from dovetail.serve._native import packs_weights
from dovetail.train import Program, Trained
from dovetail.zoo import recipe
from support.models import random_values
from support.served import SMALL, prompts, trained

HERE = pytest.mark.skipif(bool(native().reason), reason=native().reason)
REASON = "there is no C++ compiler"


def wide(**changes: Any) -> Trained:
    """Returns a dense model whose heads fill vectors, so that all of it is native."""
    cfg = recipe("llama3-tiny").set_in("model.stack.layer.mixer.head_dim", native().width)
    for path, value in changes.items():
        cfg = cfg.set_in(path.replace("__", "."), value)
    program = Program(cfg, trains=False)
    return Trained(program, random_values(program.model), 0)


def answers(engine: Engine, wanted: list[Request]) -> list[list[tuple[int, float | None]]]:
    streams = [engine.submit(request) for request in wanted]
    return [[(token.id, token.logprob) for token in stream.result(120).tokens] for stream in streams]


@HERE
def test_answers_have_the_same_bits_together_as_alone_and_after_a_swap():
    model = wide()
    device = ModelDevice(SMALL.set(tokens=64), model)  # Too few pages: some are computed again, in other chunks.
    assert {use.kernel for use in device.kernels} == {"PackedProduct", "NativePagedAttention"}
    assert not any(use.refused for use in device.kernels)
    rng = np.random.default_rng(2)
    wanted = [
        Request(tokens=tokens, max_tokens=9, draw=Draw(temperature=0.0), logprobs=0)
        for tokens in prompts(rng, 7, 256, 36)
    ]
    with Engine.Config(chunk_budget=7).build(device=device) as engine:
        together = answers(engine, wanted)
        alone = [answers(engine, [request])[0] for request in wanted]
        assert engine.stats().preemptions > 0
        engine.swap(jax.tree.map(lambda x: -x, model.params))
        assert answers(engine, wanted) != together
        engine.swap(model.params)
        again = answers(engine, wanted)
    assert together == alone == again


@HERE
def test_weights_are_packed_where_they_are_multiplied_and_nowhere_else():
    tied, untied = wide(model__head=None), trained("deepseek-v3-tiny")
    for model in (tied, untied):
        served = ServedModel(model.program.cfg, SMALL)
        assert served.packs
        params = placed(served, model.params)
        like = jax.tree.map(lambda x: (x.shape, x.dtype), served.params)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == like
        embedding = set(params["embedding"])
        assert embedding == ({"panels"} if model is tied else {"table"})
        layer = params["stack"]["layers[0]"]["mixer"]
        assert set(layer["query"]) == {"panels"}
        if model is untied:  # Its matrix is asked for.
            assert set(layer["key_up"]) == {"weight"}


def test_without_kernels_the_compiler_computes_and_the_reason_is_said(monkeypatch):
    none = native()._replace(reason=REASON)
    monkeypatch.setattr("dovetail.ops.kernels._native.native", lambda: none)
    device = ModelDevice(SMALL, wide() if native().width else trained("llama3-tiny"))
    said = {use.refused for use in device.kernels}
    assert (("NativeKernels", REASON),) in said
    assert any(("NativePagedAttention", REASON) in refused for refused in said)
    with Engine.Config().build(device=device) as engine:
        assert (
            len(answers(engine, [Request(tokens=(1, 2, 3), max_tokens=4, draw=Draw(temperature=0.0), logprobs=0)])[0])
            == 4
        )


@HERE
def test_a_mesh_and_other_dtypes_are_left_to_the_compiler():
    cfg = recipe("llama3-tiny")
    found = [
        packs_weights(Program(each, trains=False)).reason
        for each in (cfg, cfg.set(mesh=Mesh(tensor=2)), cfg.set(compute_dtype="bfloat16"))
    ]
    assert found == ["", "they are for one device", "they compute in float32, this is bfloat16"]
