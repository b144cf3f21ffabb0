# SPDX-License-Identifier: Apache-2.0
"""From JAX's names to config paths."""

import pytest

from dovetail.aot import config_path, is_kept

_TREE = {
    "stack": {"layer": {"ffn": {"up": {"weight": 0}}, "mixer": {"out": {"weight": 0}}}},
    "predictions[0]": {"norm": {}},
}
_STEP = "jit(step)/transpose(jvp(model))/stack/while/body/closed_call/checkpoint/rematted_computation/layer"


@pytest.mark.parametrize(
    "names,path",
    [
        ([f"{_STEP}/ffn/up/dot_general"], "model.stack.layer.ffn.up"),
        ([f"{_STEP}/ffn/mul"], "model.stack.layer.ffn"),
        (["jit(step)/jvp(model)/stack/while"], "model.stack"),
        (["jit(step)/jvp(model)/predictions[0]/norm/mul"], "model.predictions[0].norm"),
        (["jit(step)/jvp(model)/stack/while", f"{_STEP}/mixer/out/dot_general"], "model.stack.layer.mixer.out"),
        (["state.params['stack']['layer']['ffn']['up']['weight']"], "model.stack.layer.ffn.up"),
        (["state.learner.optimizer.mu['stack']"], "learner"),
        (["jit(step)/learner/mul"], "learner"),
        (["jit(step)/add"], ""),
        ([], ""),
    ],
)
def test_names_lead_to_the_longest_path(names, path):
    assert config_path(names, _TREE) == path


def test_what_the_forward_pass_made_is_kept():
    assert is_kept(["jit(step)/jvp(model)/stack/while"])
    assert not is_kept([f"{_STEP}/ffn/up/dot_general"])
    assert not is_kept(["jit(step)/learner/mul"])
