# SPDX-License-Identifier: Apache-2.0
"""Steps of format 1, written by Orbax, are read, and their damage is found."""

import zipfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from checkpoint.helpers import abstract, assert_identical, config_in, files_of, flip, save_steps, small_state
from dovetail.checkpoint import CorruptionError, load_config

# Made by the last version that wrote format 1.
SAVED = Path(__file__).parents[1] / "data/checkpoint_format_1.zip"


def state():
    small = {"bits": jnp.asarray(np.arange(8).astype(jnp.uint4)), "none": jnp.zeros((0, 4))}
    return small_state(7) | small


@pytest.fixture
def old(tmp_path):
    with zipfile.ZipFile(SAVED) as files:
        files.extractall(tmp_path)
    return tmp_path


def test_a_step_of_format_1_is_restored_and_saving_goes_on_after_it(old):
    checkpointer = config_in(old).build()
    restored = checkpointer.restore(abstract(state()))
    assert (restored.step, restored.data_state) == (7, {"next": 7})
    assert_identical(restored.state, state())
    part = {"params.ffn.weight": abstract(state())["params"]["ffn"]["weight"]}
    assert_identical(checkpointer.restore_parts(part).state["params.ffn.weight"], state()["params"]["ffn"]["weight"])
    assert load_config(str(old)).files == {"vocab": b"a b c"}
    assert save_steps(old, 8).steps() == [7, 8]


def test_damage_to_a_step_of_format_1_is_found_and_its_file_named(old):
    checkpointer, wanted = config_in(old).build(), abstract(state())
    step = old / "step_7"
    for file in files_of(step):
        if good := file.read_bytes():
            flip(file, len(good) * 4)
            with pytest.raises(CorruptionError) as e:
                checkpointer.restore(wanted)
            assert f"\n  {file.relative_to(step).as_posix()}: " in str(e.value)
            file.write_bytes(good)
    (step / "arrays/more").symlink_to("/dev/zero")
    with pytest.raises(CorruptionError, match=r"arrays/more: is a symbolic link, expected a regular file\."):
        checkpointer.restore(wanted)
