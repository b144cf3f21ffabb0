# SPDX-License-Identifier: Apache-2.0
"""Whether a small model with a feature trains: a step on two meshes, and its checkpoint."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dovetail.checkpoint import Checkpointer
from dovetail.data import ByteTokenizer, ShippedCorpus, TextDataset, TextInput
from dovetail.models import CausalLM
from dovetail.optim import ConstantSchedule, Learner
from dovetail.parallel import parse_mesh
from dovetail.train import JsonLines, Trainer

MESHES = ("data=4", "fsdp=2,tensor=2")
_TOLERANCE = 1e-4  # Of the loss and of the norm of all gradients: sums in another order, in float32.


def training_problems(cfg: CausalLM.Config) -> Iterator[str]:
    """Yields what is wrong with training a model of this config."""
    found: list[dict[str, float]] = []
    for mesh in MESHES:
        with tempfile.TemporaryDirectory() as directory:
            state = _trainer(cfg, mesh, directory).build().run()
            lines = (Path(directory) / "metrics.jsonl").read_text("utf-8").splitlines()
            found.append(json.loads(lines[0]))
            checkpoints: Any = Checkpointer.Config(directory=f"{directory}/checkpoints").build()
            if not _same(checkpoints.restore(state).state, state):
                yield f"on {mesh}, what was restored is not what was saved"
    yield from differences(found)


def differences(found: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Yields where the metrics of the two meshes are not the same."""
    for name in ("loss", "grad_norm"):
        here, there = (metrics[name] for metrics in found)
        if not abs(here - there) <= _TOLERANCE * abs(here):
            yield f"{name} is {here} on {MESHES[0]}, but {there} on {MESHES[1]}"


def _trainer(cfg: CausalLM.Config, mesh: str, directory: str) -> Trainer.Config:
    return Trainer.Config(
        model=cfg,
        learner=Learner.Config(schedule=ConstantSchedule.Config(peak=1e-3)),
        input=TextInput.Config(
            batch_size=4,
            seq_len=16,
            tokenizer=ByteTokenizer.Config(),
            dataset=TextDataset.Config(source=ShippedCorpus.Config()),
        ),
        mesh=parse_mesh(mesh),
        steps=1,
        log_every=1,
        save_every=1,
        directory=directory,
        observers=(JsonLines.Config(),),
    )


def _same(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(one), np.asarray(other)) for one, other in pairs)
