# SPDX-License-Identifier: Apache-2.0
"""What a config may ask of the compiler; that programs are right is what the tests of the trainer show."""

import pytest

from dovetail.config import ConfigError
from dovetail.train._program import Program
from support.runs import tiny


@pytest.mark.parametrize(
    "name", ["xla_dump_to", "xla_gpu_kernel_cache_file", "xla_gpu_load_autotune_results_from", "xla_gpu_cuda_data_dir"]
)
def test_a_config_cannot_make_the_compiler_use_files(name, tmp_path):
    cfg = tiny(tmp_path).set(compiler_options={"cpu": {name: str(tmp_path / "here")}})
    with pytest.raises(ConfigError, match=f"(?s){name} makes the compiler read or write files.*XLA_FLAGS=--{name}"):
        Program(cfg).traced()
    assert not (tmp_path / "here").exists()


def test_other_options_reach_the_compiler(tmp_path):
    cfg = tiny(tmp_path).set(compiler_options={"cpu": {"xla_cpu_enable_fast_math": False}, "tpu": {"xla_no_such": 1}})
    Program(cfg).traced()
    with pytest.raises(Exception, match="xla_no_such"):
        Program(cfg.set(compiler_options={"cpu": {"xla_no_such": 1}})).traced().lower().compile()
