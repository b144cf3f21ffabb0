# SPDX-License-Identifier: Apache-2.0
"""Runs of two processes under a real supervisor that fail and go on from what agents hold in memory."""

import asyncio
from pathlib import Path

import pytest

from dovetail.blobs import MEMORY, TOKEN, Client
from dovetail.checkpoint import Checkpointer
from dovetail.optim import ConstantSchedule, Learner
from dovetail.parallel import Mesh
from dovetail.train import Terminal, Trainer
from support.kept import change
from support.launched import Launched
from support.runs import tiny

STEPS, EVERY = 12, 3
LOST = r"Steps lost: at least [123]\."


def config(directory: Path) -> Trainer.Config:
    learner = Learner.Config(schedule=ConstantSchedule.Config(peak=1e-2))
    less = {"evaluators": {}, "observers": (Terminal.Config(),), "num_microbatches": 1, "learner": learner}
    cfg = tiny(directory, STEPS, mesh=Mesh(fsdp=2), save_every=100, **less)
    return cfg.set_in("tiers.memory_every", EVERY)


def last_step(cfg: Trainer.Config) -> dict[str, str]:
    """The fingerprints of all that is in the last checkpoint."""
    directory = str(Path(cfg.directory) / "checkpoints")
    leaves = Checkpointer.Config(directory=directory).build().leaves(STEPS)
    return {path: leaf.fingerprint for path, leaf in leaves.items()}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> dict[str, str]:
    cfg = config(tmp_path_factory.mktemp("unbroken"))
    cfg.build().run()
    return last_step(cfg)


@pytest.mark.long
def test_a_sharded_run_whose_host_is_lost_goes_on_from_the_copy_of_its_neighbour(unbroken, tmp_path):
    async def lose_a_host(launched: Launched) -> None:
        _, file = await launched.told(start=1, rank=1)
        await launched.lose("0")  # Its process is killed, and its memory is gone.
        file.unlink()
        launched.come("0")

    cfg = config(tmp_path)
    launched = Launched(cfg, 2, faults=[{"start": 1, "rank": 1, "step": 8, "do": "tell"}])
    assert launched.run(lose_a_host) == 0, launched.said
    assert launched.matches(rf"Going on after step 6, from the memory of host 1\. {LOST}"), launched.said
    assert last_step(cfg) == unbroken


@pytest.mark.slow
def test_a_killed_process_then_a_lost_host_then_changed_memory_cost_a_few_steps_each(unbroken, tmp_path):
    async def meddle(launched: Launched) -> None:
        _, file = await launched.told(start=2, rank=1)
        await launched.lose("0")
        file.unlink()
        launched.come("0")
        for rank in range(2):
            environment, file = await launched.told(start=3, rank=rank)
            client = Client(environment[MEMORY], environment[TOKEN])
            await asyncio.to_thread(change, client, 9)
        await launched.lose("1")
        for each in launched.directory.glob("told.3.*"):
            each.unlink()
        launched.come("1")

    cfg = config(tmp_path)
    faults = [
        {"start": 1, "rank": 1, "step": 8, "do": "kill"},
        {"start": 2, "rank": 1, "step": 8, "do": "tell"},
        *({"start": 3, "rank": rank, "step": 11, "do": "tell"} for rank in range(2)),
    ]
    launched = Launched(cfg, 2, faults=faults)
    assert launched.run(meddle) == 0, launched.said
    assert launched.matches(r"Going on after step 6, from the memory of hosts 0 and 1\."), launched.said
    assert launched.matches(rf"Going on after step 6, from the memory of host 1\. {LOST}"), launched.said
    assert launched.matches(r"step 9 in the memory of host 0 is passed over: part 0 cannot be had"), launched.said
    assert last_step(cfg) == unbroken
