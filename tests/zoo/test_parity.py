# SPDX-License-Identifier: Apache-2.0
"""Published models of every family compute here what they compute in transformers, as golden files recorded it.

`make parity` compares with transformers itself, on random models.
"""

from pathlib import Path

import pytest

from dovetail.zoo.hf import families
from parity import ours

GOLDEN = Path(__file__).parent / "parity"
FAMILIES = sorted(file.stem for file in GOLDEN.glob("*.npz"))
PLAIN, ODD, OLD = "0", "2", "3"  # As published ones are; with odd shapes; with the config of transformers 4.
# Those whose tables have much in common with that of another.
ALIKE = ("bamba", "deepseek_v2", "gemma", "granite", "mistral", "mixtral", "olmo2", "olmoe", "qwen2", "smollm3")

# One with each kind of layer: those that `make test` has.
USUAL = ("gemma3_text", "gpt2", "gpt_oss", "llama", "mamba2", "qwen3_next")


def check(family: str, number: str, directory: Path) -> None:
    case = ours.cases(GOLDEN / f"{family}.npz")[number]
    ours.write_case(directory, case)
    found = ours.compare(ours.load(directory), directory, case)
    assert found.logits < 1e-4
    assert found.loss < 1e-4
    assert len(found.gradients) >= 3
    assert max(found.gradients.values()) < 1e-3, found.gradients  # Rounding in long chains is 3e-4; most are 1e-5.
    assert found.greedy is not False


def test_there_are_golden_files_of_every_family():
    assert sorted(family.model_type for family in families()) == FAMILIES


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=[] if family in USUAL else pytest.mark.long)
        for family in FAMILIES
        if family not in ALIKE
    ],
)
def test_odd_shapes_agree(family, tmp_path):
    check(family, ODD, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", ALIKE)
def test_odd_shapes_agree_of_families_that_are_alike(family, tmp_path):
    check(family, ODD, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [PLAIN, OLD])
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_models_and_old_configs_agree(family, number, tmp_path):
    check(family, number, tmp_path)
