# SPDX-License-Identifier: Apache-2.0
"""What serving takes, held against what can be counted by hand; and the real compilers, where they are installed."""

import functools
import json
import math

import pytest

from dovetail.hardware import hardware
from dovetail.parallel import Mesh
from dovetail.plan import compiled_serving, on_hardware, serving_mesh
from dovetail.serve import Serving
from dovetail.zoo import recipe
from support import compilers

SERVING, ON = Serving(slots=4, page=4, max_length=32, chunks=(8,)), "cpu-2"


def report_on(cfg):
    cfg = on_hardware(cfg, ON)
    return compiled_serving(cfg.set(mesh=serving_mesh(cfg, hardware(ON))), SERVING, hardware(ON))


@functools.cache
def dense():
    return report_on(recipe("llama3-tiny"))


def test_bytes_and_operations_of_a_dense_model_are_those_of_its_matrices():
    found = dense()
    model = recipe("llama3-tiny").model
    attention, layers = model.stack.layer.mixer, model.stack.num_layers
    dim = attention.head_dim or model.dim // attention.num_heads
    heads, key_heads = attention.num_heads, attention.num_kv_heads
    table = model.vocab_size * model.dim
    decode, prefill = found.steps
    assert (decode.what, decode.rows, decode.tokens, decode.context) == ("decode", 4, 1, 32)
    assert (prefill.what, prefill.rows, prefill.tokens, prefill.context) == ("prefill", 1, 8, 16)
    assert found.mesh == {"tensor": 2}
    # Two devices, float32. Of the table, a row for each token; and norms are on every device.
    norms = (2 * layers + 1) * model.dim
    looked_up = (found.parameters - table - norms) / 2 + norms + 4 * model.dim / 2
    assert decode.weight_bytes == pytest.approx(4 * looked_up)
    # Keys and values that a step sees, and those that it adds.
    each = layers * 2 * key_heads * dim * 4 / 2
    assert decode.state_bytes == pytest.approx(4 * (32 + 1) * each)
    assert found.token_bytes == pytest.approx(each)
    products = found.parameters - table - norms
    assert decode.flops == 4 * (2 * products + 4 * layers * heads * dim * 32)
    products_and_head = 2 * 8 * (products - table) + 2 * table
    assert prefill.flops == products_and_head + 8 * 4 * layers * heads * dim * 16


def test_a_window_and_state_by_row_count_as_far_as_they_reach():
    pattern = tuple(recipe("hybrid-tiny").model.stack.layer[:2])  # With states, then attention.
    few = recipe("hybrid-tiny").set_in("model.stack.layer", pattern).set_in("model.stack.num_layers", 2)
    windowed, hybrid = report_on(recipe("mistral-tiny")), report_on(few)
    window = recipe("mistral-tiny").model.stack.layer.mixer.window
    assert window is not None
    assert window < 32
    assert windowed.steps[0].state_bytes == pytest.approx(4 * (window + 1) * windowed.token_bytes, rel=0.01)
    assert not windowed.row_bytes
    assert hybrid.steps[0].state_bytes == pytest.approx(4 * (33 * hybrid.token_bytes + 2 * hybrid.row_bytes))


def test_an_unknown_speed_gives_no_time():
    found = dense()
    assert (found.ms_per_token, found.ms_to_first_token, found.room_gib) == (None, None, None)
    assert found.fits


def test_layers_are_split_over_as_many_devices_as_divide_them():
    def mesh(name, on):
        cfg = recipe(name)
        return {axis: size for axis, size in serving_mesh(cfg, hardware(on)).sizes.items() if size > 1}

    assert mesh("llama2-7b", "tpu-v5p-8") == {"tensor": 4}
    assert mesh("llama3.1-8b", "tpu-v5e-64") == {"data": 2, "tensor": 32}
    assert mesh("llama3.1-8b", "tpu-v5e-1") == {}
    # A group of GPUs with fast links between them has eight; all else is on the network.
    assert mesh("llama3.1-8b", "gpu-h100-16") == {"data": 2, "tensor": 8}


def test_without_hardware_it_is_for_the_devices_of_the_run_which_split_layers_instead():
    cfg = recipe("llama3-tiny")
    assert serving_mesh(cfg.set(mesh=Mesh(data=2, fsdp=2))).text() == "tensor=4"
    assert serving_mesh(cfg) == cfg.mesh


_CODE = """
import json, sys
from dovetail.config import override
from dovetail.hardware import hardware
from dovetail.parallel import Mesh
from dovetail.plan import compiled_serving, on_hardware, serving_mesh
from dovetail.serve import Serving
from dovetail.zoo import recipe

name, on, changes, sizes = json.loads(sys.argv[1])
cfg = on_hardware(override(recipe(name), changes), on)
sizes["chunks"] = tuple(sizes["chunks"])
found = compiled_serving(cfg.set(mesh=serving_mesh(cfg, hardware(on))), Serving(**sizes), hardware(on))
print(json.dumps({**found._asdict(), "steps": [step._asdict() for step in found.steps]}))
"""


def report_of(platform, name, on, changes, **sizes):
    given = json.dumps([name, on, changes, {"chunks": [64], "max_length": 256, **sizes}])
    return json.loads(compilers.run(platform, _CODE, given).splitlines()[-1])


@pytest.mark.long
def test_a_large_layer_on_tpus_is_read_at_the_speed_of_memory_by_the_ragged_kernel():
    found = report_of("tpu", "llama2-7b", "tpu-v5p-8", ["model.stack.num_layers=1"], page=64)
    decode, prefill = found["steps"]
    assert found["fits"]
    assert {each["kernel"] for each in found["kernels"]} == {"RaggedPagedAttention"}
    chip = hardware("tpu-v5p-8").chip
    moved = decode["weight_bytes"] + decode["state_bytes"]
    assert math.isclose(found["ms_per_token"], moved / chip.hbm_bandwidth * 1e3)
    assert math.isclose(prefill["compute_ms"], prefill["flops"] / (4 * chip.peak["bfloat16"]) * 1e3)
    # One sum after attention, one after the feed-forward layer, and one of the embedding.
    assert next((each["kind"], each["count"]) for each in decode["collectives"]) == ("all-reduce", 3)
    held = found["weights_gib"] + found["state_gib"]
    assert 0.98 * held < decode["hbm_per_chip_gib"] < 1.1 * held


@pytest.mark.parametrize(
    "name",
    ["llama3-tiny", *(pytest.param(name, marks=pytest.mark.slow) for name in ("deepseek-v3-tiny", "hybrid-tiny"))],
)
def test_every_structure_is_served_on_gpus(name):
    found = report_of("cuda", name, "gpu-h100-2", [], max_length=64, chunks=[16])
    assert found["fits"]
    assert found["ms_per_token"] > 0
    assert {each["kernel"] for each in found["kernels"] if "mixer.kernel" in each["path"]} == {"PagedAttention"}


def test_what_has_no_room_is_said_and_not_compiled():
    """7 billion parameters in 16 bits are 12.6 GiB, of 15.8 that the chip has."""
    found = report_of("tpu", "llama2-7b", "tpu-v5e-1", ["input.batch_size=8"], max_length=4096)
    assert not found["fits"]
    assert found["steps"] == []
    assert found["reason"].startswith("a sequence of 4,096 tokens needs 2.15 GB of state, and there is room for 1.")
