# SPDX-License-Identifier: Apache-2.0
"""Batches of several shapes: each has a step of its own, all of them compiled at the start."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from dovetail.data import BatchIterator, BatchSpec, DataError, Field, Input
from dovetail.models import CausalLM
from dovetail.parallel import parse_mesh
from dovetail.train import Program, Trainer, batch_shape, largest, size_of
from support.models import lm
from support.runs import tiny


class Buckets(Input):
    """Long rows and short ones in turn, as many of them as make the same number of tokens."""

    class Config(Input.Config):
        lengths: tuple[int, ...] = (8, 4)
        given: tuple[int, ...] = (8, 4)

        def batch_specs(self):
            return tuple(_spec(self.batch_size * max(self.lengths) // length, length) for length in self.lengths)

    @property
    def is_endless(self) -> bool:
        return True

    def iterator(self, *, shard_index: int = 0, shard_count: int = 1) -> BatchIterator:
        start = functools.partial(self._start, shard_index, shard_count)
        return BatchIterator(start, streams=range(1), about={"input": repr(self.cfg)}, ahead=0)

    def _start(self, shard, count, states):
        return [self._batches(shard, count, states.get("0", {"step": 0})["step"])]

    def _batches(self, shard, count, step):
        while True:
            length = self.cfg.given[step % len(self.cfg.given)]
            rows = self.cfg.batch_size * max(self.cfg.lengths) // length
            ids = np.random.default_rng(step).integers(0, 11, (rows, length + 1), np.int32)
            part = slice(shard * rows // count, (shard + 1) * rows // count)
            weights = np.ones((rows, length), np.float32)
            batch = {"tokens": ids[part, :-1], "targets": ids[part, 1:], "weights": weights[part]}
            step += 1
            yield batch, {"0": {"step": step}}


def _spec(rows: int, length: int) -> BatchSpec:
    dtypes: Mapping[str, str] = {"tokens": "int32", "targets": "int32", "weights": "float32"}
    fields = {name: Field((rows, length), dtype, ("batch", "seq")) for name, dtype in dtypes.items()}
    return BatchSpec(fields, "token", rows * length, counted="weights")


def run(directory: Path, mesh: str = "data=1", **fields) -> Trainer.Config:
    model: CausalLM.Config = lm()
    cfg = tiny(directory, model=model, input=Buckets.Config(batch_size=2).set(**fields), evaluators={}, steps=4)
    return cfg.set(num_microbatches=1, mesh=parse_mesh(mesh), directory=str(directory / mesh))


def test_a_mesh_must_divide_all_shapes():
    specs = Buckets.Config(batch_size=2, lengths=(12, 8)).batch_specs()
    assert [(spec.rows, spec.num_units) for spec in specs] == [(2, 24), (3, 24)]
    assert batch_shape(specs, 3) == (1, {"seq": 4}, 3)
    assert largest(Buckets.Config(batch_size=2, lengths=(5, 8)).batch_specs()).lengths() == {"seq": 8}


@pytest.mark.long
def test_each_shape_has_its_step_which_is_compiled_before_the_second(tmp_path, monkeypatch):
    compiled = []
    real = Program.compiled
    monkeypatch.setattr(Program, "compiled", lambda *args: compiled.append(args[2].rows) or real(*args))
    losses = []
    for mesh in ("data=1", "data=2"):
        cfg = run(tmp_path, mesh)
        cfg.build().run()
        said = map(json.loads, (Path(cfg.directory) / "metrics.jsonl").read_text().splitlines())
        lines = [line for line in said if "loss" in line]
        losses.append([line["loss"] for line in lines])
        assert [line["tokens"] for line in lines] == [16.0] * 4
    assert compiled == [2, 4] * 2
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_what_a_unit_takes_depends_on_the_shape(tmp_path):
    cfg = run(tmp_path)
    long, short = (size_of(cfg, spec).flops_per_unit for spec in cfg.input.batch_specs())
    assert long > short  # Attention sees more.
    assert size_of(cfg).flops_per_unit == long


def test_a_shape_that_was_not_declared_is_an_error_and_is_not_compiled(tmp_path):
    with pytest.raises(DataError, match=r"(?s)the input gave a batch that it has not declared: tokens int32\[8, 2\]"):
        run(tmp_path, given=(8, 2)).build().run()
