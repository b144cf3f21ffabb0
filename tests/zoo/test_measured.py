# SPDX-License-Identifier: Apache-2.0
"""Tables of measured steps: names, layouts and batches of others, and what is assumed."""

import math

import pytest

from dovetail.config import ConfigError
from dovetail.module import specs
from dovetail.parallel import flat_specs
from dovetail.plan import rebuilt
from dovetail.zoo import model
from dovetail.zoo.families import measured_model
from dovetail.zoo.measured import read_measured, rebuild

ROW = {
    "system": "Megatron-Bridge",
    "model": "LLAMA3_70B",
    "hw": "DGX-GB200",
    "chips": "64",
    "precision": "MXFP8",
    "seq": "8192",
    "gbs": "256",
    "parallelism": "tp2 pp4 cp1 vp5 epn/a mbs1 fsdp0",
    "remat": "",
    "step_s": "9.07",
    "source": "performance-summary-archive.md 26.02 NeMo Container",
}


@pytest.mark.parametrize(
    "name, known",
    [
        ("LLAMA3_70B", "llama3-70b"),
        ("LLAMA3.1_405B", "llama3.1-405b"),
        ("Fuji-7B v2 (Llama2-7B)", "llama2-7b"),
        ("Qwen3_30B_a3B", "qwen3-30b-a3b"),
        ("Qwen3 MoE 30B", "qwen3-30b-a3b"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("DeepSeekV3 (w/o MTP)", "deepseek-v3"),
        ("Llama3 70B 2-node", "llama3-70b"),
        ("Qwen2.5 32B", "qwen2.5-32b"),
        ("Gemma3-12B", "gemma3-12b"),
        ("Mixtral-8x7B", "mixtral-8x7b"),
    ],
)
def test_names_of_others_are_recipes_of_the_zoo(name, known):
    assert measured_model(name) == model(known)


@pytest.mark.parametrize(
    "name, billions",
    [
        ("Nemotron_3_Nano", 31.6),
        ("Nemotron_3_Super", 120.6),
        ("Kimi_K2", 1026),
        ("gemma4-31b", 30.2),
        ("Llama4-Scout-17B-16E", 108),
        ("default-32B (emb8192,L32,h64x128,mlp28672,vocab32000)", 31.7),
        ("GPT-177B (L96,h12288,heads96,vocab131072)", 177),
    ],
)
def test_shapes_that_are_not_in_the_zoo_have_the_parameters_that_are_published(name, billions):
    tree = specs(measured_model(name).set(predictions=()).build(path="model"))  # As they are published.
    found = sum(math.prod(spec.shape) for _, spec in flat_specs(tree, ""))
    assert found / 1e9 == pytest.approx(billions, rel=1e-2)


def test_a_layout_as_megatron_writes_it_is_read():
    found = rebuilt(rebuild(ROW))
    sizes = {axis: size for axis, size in found.run.sizes.items() if size > 1}
    assert sizes == {"pipeline": 4, "data": 8, "tensor": 2}
    assert (found.run.microbatches, found.run.rounds, found.run.bits) == (32, 5, 8)
    assert found.measured.year == pytest.approx(2026 + 1.5 / 12)
    assert found.measured.precision == "mxfp8"
    assert any("computed again" in each for each in found.assumptions)


@pytest.mark.parametrize(
    "text, sizes",
    [
        ("fsdp=32,tp=8", {"fsdp": 8, "tensor": 8}),
        ("dp=4,fsdp=16", {"data": 4, "fsdp": 16}),
        ("tp=4,fsdp=rest", {"fsdp": 16, "tensor": 4}),
        ("ici_fsdp_parallelism=1 ici_fsdp_transpose_parallelism=-1", {"fsdp": 64}),
        ("dp only", {"data": 64}),
    ],
)
def test_layouts_of_other_systems_are_read(text, sizes):
    found = rebuilt(rebuild({**ROW, "system": "MaxText", "parallelism": text, "precision": "bf16", "remat": "full"}))
    assert {axis: size for axis, size in found.run.sizes.items() if size > 1} == sizes


def test_a_row_without_a_layout_gets_the_fastest_that_fits_and_says_so():
    found = rebuilt(rebuild({**ROW, "system": "MaxText", "parallelism": "see recipe", "precision": "bf16"}))
    assert found.assumed_mesh
    assert math.prod(found.run.sizes.values()) == 64
    assert any("the mesh is not given" in each for each in found.assumptions)


def test_a_row_that_reports_two_thirds_of_the_operations_trained_adapters():
    row = {**ROW, "system": "Automodel", "model": "Llama3 8B", "hw": "DGX-H100", "chips": "1", "gbs": "32"}
    row |= {"seq": "4096", "precision": "bf16", "parallelism": "tp1 mbs2 ga16", "step_s": "10.51"}
    full, adapted = ({**row, "tflops_per_chip": flops} for flops in ("600", "402"))
    assert not any("adapters" in each for each in rebuilt(rebuild(full)).assumptions)
    assert any("adapters" in each for each in rebuilt(rebuild(adapted)).assumptions)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"precision": "ternary"}, "the precision 'ternary' is not known"),
        ({"chips": ""}, "the number of chips is missing"),
        ({"gbs": "", "tok_s_chip": ""}, "there is no size of the batch, nor tokens per second"),
        ({"step_s": ""}, "there is neither a time of the step nor tokens per second"),
        ({"step_s": "soon"}, "step_s is 'soon', expected a number"),
    ],
)
def test_a_row_that_cannot_be_rebuilt_says_why(change, message):
    with pytest.raises(ConfigError, match=message):
        rebuild({**ROW, **change})


def test_a_table_without_its_columns_is_refused(tmp_path):
    file = tmp_path / "steps.csv"
    file.write_text("system,model\na,b\n")
    with pytest.raises(ConfigError, match="the columns hw, chips, precision, seq, gbs, parallelism, remat, step_s are"):
        read_measured(str(file))
