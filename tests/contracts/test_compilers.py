# SPDX-License-Identifier: Apache-2.0
"""Every family trains on TPUs and on NVIDIA GPUs: the real compilers make its step, in a process of their own.

One small recipe of each family; on each change, by `.ci/run`, one of each structure. What comes out is looked at: does
it fit, which kernels compute it, and are the collectives those that the mesh asks for.
"""

import json
import subprocess
import sys

import pytest

from dovetail.zoo import RECIPES
from support import compilers

# The smallest of each family, and the TPUs in turn.
FAMILIES = {entry.family: name for name, entry in RECIPES.items() if entry.recipe != "pretrain"}
TPUS = ("tpu-v5e-8", "tpu-v5p-16", "tpu-v6e-8", "tpu-v4-16")
# Dense layers in a loop, latent attention with experts, and a pattern of layers with states.
# The first is in `make test`; the others take a compiler up to half a minute each, and `make long` has them.
STRUCTURES = ("llama3-tiny", "deepseek-v3-tiny", "hybrid-tiny")

_CODE = """
import json, sys
from dovetail.config import override
from dovetail.hardware import hardware
from dovetail.plan import compile_step, lower_step, on_hardware
from dovetail.zoo import recipe

changes = ["input.seq_len=128"]
cfg = override(on_hardware(override(recipe({name!r}), changes), {on!r}), changes)
print(json.dumps(compile_step(lower_step(cfg, hardware({on!r})))._asdict()))
"""


def _report(name, on, platform):
    return json.loads(compilers.run(platform, _CODE.format(name=name, on=on)).splitlines()[-1])


def _check(report):
    assert report["fits"]
    assert report["hardware_flops"] > 0.9 * report["model_flops"] > 0
    assert {each["axis"] for each in report["collectives"]} <= {*report["mesh"], "+".join(report["mesh"])}
    gathers = [each for each in report["collectives"] if each["kind"] == "all-gather" and each["axis"] == "fsdp"]
    assert bool(gathers) == ("fsdp" in report["mesh"])


def test_every_family_has_a_small_recipe():
    assert set(FAMILIES) == {entry.family for entry in RECIPES.values()}


def _case(name, *more):
    mark = pytest.mark.long if name in STRUCTURES else pytest.mark.slow
    return pytest.param(name, *more, marks=[] if name == STRUCTURES[0] else mark)


@pytest.mark.parametrize("name, on", [_case(name, TPUS[i % len(TPUS)]) for i, name in enumerate(FAMILIES.values())])
def test_the_compiler_for_tpus_makes_its_step(name, on):
    report = _report(name, on, "tpu")
    _check(report)
    attention = [each for each in report["kernels"] if "mixer.kernel" in each["path"]]
    assert all(each["kernel"] == "SplashAttention" or each["refused"] for each in attention)


@pytest.mark.parametrize("name", [_case(name) for name in FAMILIES.values()])
def test_the_compiler_for_gpus_makes_its_step(name):
    _check(_report(name, "gpu-h100-8", "cuda"))


_GATHER = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from dovetail.aot import compile_for, described_devices
from dovetail.hardware import hardware
from dovetail.parallel import Mesh

found = hardware({on!r})
mesh = Mesh(fsdp=found.num_devices).on(described_devices(found))
given = jax.ShapeDtypeStruct((8192, 4096), jnp.bfloat16, sharding=NamedSharding(mesh, P("fsdp")))
step = jax.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh, P()))
print(compile_for(step.lower(given)).text)
"""


@pytest.mark.slow
@pytest.mark.parametrize("on", ["tpu-v5p-512", "tpu-v5p-1024"])
def test_a_gather_over_a_torus_stays_one(on):
    """Without wrap-around links, or with devices in another order, the compiler makes an all-reduce of it."""
    text = compilers.run("tpu", _GATHER.format(on=on))
    assert " all-gather(" in text
    assert " all-reduce(" not in text


@pytest.mark.slow
def test_what_does_not_fit_exits_3_and_names_config_paths(tmp_path):
    command = [sys.executable, "-m", "dovetail.cli", "compile", "qwen3-0.6b", "--on", "tpu-v5e-1", "--json"]
    changes = ["input.batch_size=1", "remat=save_all", "num_microbatches=1"]
    environ = compilers.environment("tpu") | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([*command, *changes], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert not report["fits"]
    assert report["hbm_per_chip_gib"] > report["hbm_limit_gib"]
    largest = list(report["hbm_by_path"])[:3]
    assert any(path.startswith("model.stack.layer.") for path in largest)
    assert report["suggestions"][-1]["fits"]
    assert report["suggestions"][-1]["changes"] == ["remat=save_qkvo"]
    again = subprocess.run([*command, *changes], env=environ, capture_output=True, text=True, check=False)
    assert json.loads(again.stdout) == report | {"cached": True}
