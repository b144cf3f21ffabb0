# SPDX-License-Identifier: Apache-2.0
"""Which mesh rule is taken, and rules of a recipe's own."""

import pytest

from dovetail.config import ConfigError, diff
from dovetail.hardware import Changes, hardware, rule_for
from dovetail.plan import MESH_RULES, on_hardware
from dovetail.zoo import recipe


def test_a_rule_of_the_recipe_wins_and_may_build_on_another():
    (base,) = (rule for rule in MESH_RULES if rule.hardware == "tpu-*")
    own = Changes.Config(hardware="tpu-v5p-*", changes=("remat=full", "mesh.fsdp=64", "mesh.data=4"), base=base)
    cfg = recipe("llama2-7b")
    usual, changed = on_hardware(cfg, "tpu-v5p-512"), on_hardware(cfg.set(mesh_rules=(own,)), "tpu-v5p-512")
    assert (changed.remat, changed.mesh.fsdp, changed.mesh.data) == ("full", 64, 4)
    assert {each.path.partition(".")[0].partition("[")[0] for each in diff(usual, changed)} == {
        "remat",
        "mesh",
        "mesh_rules",
    }
    # Elsewhere it does not fit, and the usual rule applies.
    assert on_hardware(cfg.set(mesh_rules=(own,)), "gpu-h100-256").mesh == on_hardware(cfg, "gpu-h100-256").mesh


def test_hardware_without_a_rule_is_an_error_that_lists_the_patterns():
    with pytest.raises(ConfigError) as e:
        rule_for(MESH_RULES[:1], hardware("gpu-h100-8"))
    assert str(e.value) == (
        "no mesh rule fits 'gpu-h100-8'. There are rules for: tpu-*.\n  Add one for it to mesh_rules in the recipe."
    )
