# SPDX-License-Identifier: Apache-2.0
"""A flipped bit anywhere is found by the next check, and the device that flipped it is named."""

import functools
import os
import random
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from dovetail.checkpoint import Checkpointer
from dovetail.cli._main import _code_of
from dovetail.config import ConfigError, to_json
from dovetail.parallel import parse_mesh
from dovetail.train import HardwareCheck, HardwareError, Trainer, TrainingError
from dovetail.train._devices import GlobalBatches
from dovetail.train._hardware_check import Checker
from support.bit_flips import NONE, FlippedStep, flipped, flipped_on_host
from support.poisoned import Poisoned, poisoned_run

EVERY = HardwareCheck(every=1)


def small(directory: Path, mesh: str = "data=4,fsdp=2", **fields) -> Trainer.Config:
    """A run without any rule for spikes, checked at each step."""
    return poisoned_run(directory, mesh=parse_mesh(mesh), hardware_check=EVERY, **fields).set(spikes=None)


class Rig:
    """A program, its state before the first step and its checked step, for faults in any of it."""

    def __init__(self, directory: Path, monkeypatch) -> None:
        trainer = small(directory).build()
        self.program, self.input, self.checker = trainer._program, trainer.input, trainer._checker
        start = self.program.devices.jit(self.program.init, out_shardings=self.program.shardings)
        self.state = start(jax.random.key(0))
        self.compiled = FlippedStep(self.program, self.state, monkeypatch)
        self.batch = next(self.program.devices.batches(self.input))
        self.devices = self.program.devices.all

    def step(self, state=None, flips=()):
        self.compiled.flips = list(flips)
        kept = jax.tree.map(lambda x: x.copy(), self.state if state is None else state)
        return self.checker.step(self.compiled, kept, self.batch, 1)

    def flipped(self, leaf: int, *where: int):
        leaves, structure = jax.tree.flatten(self.state)
        leaves[leaf] = flipped(leaves[leaf], *where)
        return jax.tree.unflatten(structure, leaves)


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Rig(tmp_path_factory.mktemp("rig"), monkeypatch)


def named(error: HardwareError) -> set[str]:
    return set(re.findall(r"on device (\S+) \(process 0, host ", str(error)))


def test_a_step_without_faults_passes_and_is_the_step(rig):
    made, _ = rig.step()
    for _ in range(4):
        made, _ = rig.step()
        assert int(made.step) == 1
    want, *_ = rig.compiled(jax.tree.map(lambda x: x.copy(), rig.state), rig.batch)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(made), jax.device_get(want))


def fault(rig: Rig, rng: random.Random):
    """Makes a random fault; returns what it is, the device, and what checks the step with it."""
    kind = rng.choice(["state", "one execution", "gradients", "batch"])
    leaves, device, bit = jax.tree.leaves(rig.state), rng.randrange(8), rng.randrange(32)
    if kind == "batch":
        field = rng.choice(["image", "caption"])
        return (
            (kind, field, device, bit),
            device,
            functools.partial(read_flipped, rig, field, device, bit, rng.random()),
        )
    if kind == "gradients":
        leaf = rng.randrange(len(jax.tree.leaves(rig.state.params)))
        flip = (leaf, device, rng.randrange(1000), bit)
        flips = [flip] if rng.random() < 0.5 else [NONE, flip]
        return (kind, flips), device, lambda: rig.step(flips=flips)
    leaf, element = rng.randrange(len(leaves)), rng.randrange(1000)
    broken = rig.flipped(leaf, device, element, bit)
    if kind == "state":
        return (kind, leaf, device, element, bit), device, lambda: rig.step(broken)
    # What one of the two executions has read wrongly: the copy.
    return (kind, leaf, device, element, bit), device, lambda: one_execution(rig, broken)


def one_execution(rig: Rig, broken):
    compiled, calls = rig.compiled, iter([rig.state, broken])

    def step(state, batch):
        return compiled(jax.tree.map(lambda x: x.copy(), next(calls)), batch)

    return rig.checker.step(step, jax.tree.map(lambda x: x.copy(), rig.state), rig.batch, 1)[0]


def read_flipped(rig: Rig, field: str, device: int, bit: int, where: float) -> None:
    batches = rig.program.devices.batches(rig.input)
    placed = batches._placed

    def flipping(values, sharding):
        array = placed(values, sharding)
        is_it = values.shape[1:] == rig.program.batches[0].fields[field].shape[1:]
        return flipped(array, device, int(where * 1000), bit) if is_it else array

    batches._placed = flipping
    rig.checker.batch(batches, 1)


def check_random_faults(rig: Rig, seed: int, count: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    right, _ = rig.step()
    for _ in range(count):
        what, device, check = fault(rig, rng)
        try:
            made = check()
        except HardwareError as e:
            found, process = named(e), e.process
        else:  # A bit of a moment, say, that rounding takes away: nothing is wrong then.
            assert what[0] == "one execution", f"not caught: {what}"
            jax.tree.map(np.testing.assert_array_equal, jax.device_get(made), jax.device_get(right))
            continue
        assert process == 0
        if what[0] == "one execution":  # The sum of gradients may have spread it, before anybody could look.
            assert str(rig.devices[device]) in found, what
        else:
            assert found == {str(rig.devices[device])}, what


def test_random_flips_are_caught_and_their_device_is_named(rig):
    check_random_faults(rig, seed=1, count=8)


PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[2])
import jax
from dovetail.cli import _main
from dovetail.config import from_json
from dovetail.hardware import start_devices
from dovetail.train import Trainer
from support.bit_flips import flipped

cfg = from_json(sys.argv[1], allow={"support.poisoned", "support.objectives"})
start_devices(cfg.mesh, os.environ)
make = Trainer._make_step

def make_and_flip(self, run, *rest):
    make(self, run, *rest)
    if run.step == 3 and jax.process_index() == 2:
        leaves, structure = jax.tree.flatten(run.state)
        leaves[2] = flipped(leaves[2], 0, 1, 3)
        run.state = jax.tree.unflatten(structure, leaves)

Trainer._make_step = make_and_flip
try:
    cfg.build().run()
except Exception as e:
    print(e, file=sys.stderr)
    _main._ended(_main._code_of(e), alone=False)
"""


@pytest.mark.slow
def test_of_three_processes_the_one_to_blame_ends_as_a_bad_host(tmp_path):
    cfg = small(tmp_path, mesh="data=3").set_in("input.batch_size", 9)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    shared = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    shared |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "3"}
    command = [sys.executable, "-c", PROGRAM, to_json(cfg), str(Path(__file__).parents[1])]
    processes = [
        subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env={**shared, "JAX_PROCESS_ID": str(rank)})
        for rank in range(3)
    ]
    try:
        said = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [1, 1, 86], said
    assert all("Process 2 is to blame, on host " in text for text in said), said


@pytest.mark.slow
def test_many_random_flips_are_caught_and_their_device_is_named(rig):
    check_random_faults(rig, seed=random.randrange(10**6), count=30)


def test_of_two_replicas_both_are_named(tmp_path, monkeypatch):
    trainer = small(tmp_path, mesh="data=2").build()
    program = trainer._program
    state = program.devices.jit(program.init, out_shardings=program.shardings)(jax.random.key(0))
    leaves, structure = jax.tree.flatten(state)
    leaves[1] = flipped(leaves[1], 1, 3, 30)
    with pytest.raises(HardwareError, match=r"differs from its replicas\n.*differs from its replicas\n") as e:
        trainer._checker.replicas(jax.tree.unflatten(structure, leaves), 7)
    assert len(named(e.value)) == 2
    assert str(e.value).startswith("hardware check of step 7: what should be equal bit for bit is not:\n  params.")


def test_a_wrong_state_is_not_saved_and_the_run_goes_on_from_the_newest_checkpoint(tmp_path, monkeypatch):
    cfg = small(tmp_path, mesh="data=8").set(hardware_check=HardwareCheck(every=1000))
    make = Trainer._make_step

    def make_and_flip(self, run, *rest):
        make(self, run, *rest)
        if run.step == 7:
            leaves, structure = jax.tree.flatten(run.state)
            leaves[2] = flipped(leaves[2], 5, 1, 3)
            run.state = jax.tree.unflatten(structure, leaves)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_make_step", make_and_flip)
        with pytest.raises(HardwareError) as e:
            cfg.build().run()
    assert named(e.value) == {str(jax.devices()[5])}
    assert "Process 0 is to blame, on host " in str(e.value)
    assert Checkpointer.Config(directory=f"{cfg.directory}/checkpoints").build().steps() == [4]
    found, want = cfg.build().run(), small(tmp_path / "other", mesh="data=8").set(hardware_check=None).build().run()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(want))


@pytest.mark.parametrize("mesh, keep", [("data=1", "device"), ("data=2,fsdp=4", "host")])
def test_a_checked_run_is_the_run(mesh, keep, tmp_path):
    cfg = small(tmp_path, mesh=mesh, steps=6)
    checked = cfg.set(hardware_check=HardwareCheck(every=2, keep=keep)).build().run()
    want = cfg.set(directory=str(tmp_path / "other"), hardware_check=None).build().run()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(checked), jax.device_get(want))


def test_a_batch_that_was_flipped_on_the_host_is_found_on_one_device(tmp_path, monkeypatch):
    trainer = small(tmp_path, mesh="data=1").build()
    batches = trainer._devices.batches(trainer.input)
    following, rows = GlobalBatches.__next__, batches.read_twice
    monkeypatch.setattr(
        GlobalBatches,
        "__next__",
        lambda self: {**(batch := following(self)), "image": flipped_on_host(batch["image"], 5, 1)},
    )
    assert rows().wrong[0][0] == "image"
    with pytest.raises(HardwareError, match=r"step 2.*\n  the field 'image' of the batch on device .* both times\n"):
        trainer._checker.batch(batches, 2)


def test_an_input_that_gives_other_batches_each_time_is_not_taken_for_bad_hardware(tmp_path, monkeypatch):
    trainer = small(tmp_path, mesh="data=1").build()
    rng = np.random.default_rng(0)
    monkeypatch.setattr(
        Poisoned, "row", lambda self, n: {"image": rng.normal(size=(4, 4, 3)), "caption": np.zeros(5), "weight": 1}
    )
    with pytest.raises(TrainingError, match=r"the input gave three different batches for one position") as e:
        trainer._checker.batch(trainer._devices.batches(trainer.input), 2)
    assert not isinstance(e.value, HardwareError)


def test_a_state_that_does_not_fit_twice_is_refused(rig):
    with pytest.raises(ConfigError, match=r"(?s)^hardware_check: the step takes .* GB on each device.*keep=host"):
        rig.checker.check_room(rig.compiled._compiled, rig.state, limit=1000)
    rig.checker.check_room(rig.compiled._compiled, rig.state, limit=10**10)
    Checker(HardwareCheck(keep="host"), rig.program.devices).check_room(rig.compiled._compiled, rig.state, limit=1000)


def test_only_the_process_to_blame_ends_as_a_bad_host():
    codes = [_code_of(HardwareError("it", process)) for process in (0, 1, None)]
    assert codes == [86, 1, 1]
    assert _code_of(TrainingError("it")) == 2


def test_without_a_check_the_step_sums_nothing(tmp_path):
    cfg = small(tmp_path)
    assert len(cfg.build()._program.traced().out_info) == 3
    assert len(cfg.set(hardware_check=None).build()._program.traced().out_info) == 2
