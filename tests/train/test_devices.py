# SPDX-License-Identifier: Apache-2.0
"""A run on a mesh is the run on one device: in one process or several, begun on one mesh and finished on another."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from dovetail.checkpoint import Checkpointer
from dovetail.config import ConfigError, to_json
from dovetail.data import DataError, JsonLines, TextDataset
from dovetail.parallel import Mesh, parse_mesh
from dovetail.train import Trainer
from support.runs import evaluated_at_the_end, tiny, without_samples

CUBE = parse_mesh("fsdp=2,seq=2,tensor=2")


def losses(cfg: Trainer.Config, name: str = "loss") -> list[float]:
    lines = (Path(cfg.directory) / "metrics.jsonl").read_text().splitlines()
    return [record[name] for record in map(json.loads, lines) if name in record]


def assert_close(found, wanted) -> None:
    """Six steps of AdamW, which divides by small numbers, in another order of sums."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), jax.device_get(found), wanted)


def test_a_run_on_a_mesh_is_the_run_on_one_device(unbroken, tmp_path):
    want, state = unbroken
    # A batch_size that fsdp does not divide: batches are filled up.
    cfg = tiny(tmp_path, mesh=CUBE).set_in("evaluators.eval.input.batch_size", 3)
    found = cfg.build().run()
    np.testing.assert_allclose(losses(cfg), losses(want), rtol=1e-5)
    np.testing.assert_allclose(losses(cfg, "eval/loss"), losses(want, "eval/loss"), rtol=1e-5)
    assert losses(cfg, "eval/tokens") == losses(want, "eval/tokens") != []
    assert_close(found, state)
    query = found.params["stack"]["layer"]["mixer"]["query"]["weight"]
    moment = found.learner.ema["stack"]["layer"]["mixer"]["query"]["weight"]
    assert query.sharding.shard_shape(query.shape) == (2, 8, 1, 8)  # Of (2, 16, 2, 8), by fsdp and tensor.
    assert moment.sharding == query.sharding


def test_a_run_may_go_on_on_another_mesh(unbroken, tmp_path):
    want, state = unbroken
    begun = without_samples(tiny(tmp_path, steps=3, mesh=parse_mesh("data=2")))
    begun.build().run()
    cfg = begun.set(steps=6, mesh=CUBE)
    found = cfg.build().run()
    np.testing.assert_allclose(losses(cfg), losses(want), rtol=1e-5)
    assert_close(found, state)


def test_a_mesh_that_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    cfg = tiny(tmp_path, mesh=Mesh(tensor=4))
    with pytest.raises(ConfigError, match=r"(?s)the mesh tensor=4 does not fit:.*heads.*The nearest of 4 devices"):
        cfg.build()
    assert not Path(cfg.directory).exists()


def test_a_length_to_evaluate_that_the_mesh_does_not_divide_is_refused_at_the_start(tmp_path):
    cfg = tiny(tmp_path, mesh=Mesh(seq=4)).set_in("evaluators.eval.input.seq_len", 30)
    with pytest.raises(ConfigError) as e:
        cfg.build()
    assert str(e.value) == (
        "evaluators.eval.input: rows have size 30 along 'seq', which 4 devices of the mesh do not divide.\n"
        "  Use 28 or 32."
    )


PROGRAM = """
import os, sys
from dovetail.config import from_json
from dovetail.hardware import start_devices

cfg = from_json(sys.argv[1])
start_devices(cfg.mesh, os.environ)
cfg.build().run()
"""


def run_together(cfg: Trainer.Config | str, count: int, *more: str, code: int = 0) -> list[str]:
    """Runs processes, each of which has to end with a code; returns their errors. A recipe is run by the command."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    shared = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    shared |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count)}
    program = [PROGRAM_OF_RUN, cfg] if isinstance(cfg, str) else [PROGRAM, to_json(cfg)]
    command = [sys.executable, "-c", *program, *more]
    processes = [
        subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env={**shared, "JAX_PROCESS_ID": str(rank)})
        for rank in range(count)
    ]
    try:
        outputs = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [code] * count, outputs
    return [errors for _, errors in outputs]


@pytest.mark.parametrize(
    "count, text, samples",  # To write a sample, each process compiles another program: one case shows that it can.
    [
        pytest.param(2, "data=2,tensor=2", True, id="2 of 2 devices, rows apart"),
        pytest.param(2, "tensor=2", False, id="2 of 1 device, rows shared", marks=pytest.mark.long),
        pytest.param(2, "fsdp=2", False, id="2 of 1 device, rows apart", marks=pytest.mark.slow),
        pytest.param(4, "data=2,tensor=2", False, id="4 of 1 device, rows shared", marks=pytest.mark.slow),
    ],
)
def test_several_processes_are_one_run(count, text, samples, unbroken, tmp_path):
    want, _ = unbroken
    cfg = tiny(tmp_path, mesh=parse_mesh(text))
    cfg = cfg if samples else without_samples(cfg)
    run_together(cfg, count)
    np.testing.assert_allclose(losses(cfg), losses(want), rtol=1e-5)
    again = cfg.set(steps=7, mesh=Mesh())  # What they saved, one process goes on with.
    again.build().run()
    assert len(losses(again)) == 7


PROGRAM_OF_RUN = """
import sys
from dovetail.cli import main

sys.exit(main(["train", f"{sys.argv[1]}:run", *sys.argv[2:]]))
"""


def as_recipe(cfg: Trainer.Config, file: Path) -> str:
    """Writes a run as a recipe in a file."""
    text = f"from dovetail.config import from_json\n\n\ndef run():\n    return from_json({to_json(cfg)!r})\n"
    file.write_text(text, encoding="utf-8")
    return str(file)


@pytest.mark.long
def test_processes_stop_together_before_a_document_that_one_of_them_cannot_read_and_go_on_when_it_is_mended(tmp_path):
    texts = [json.dumps({"text": f"Chapter {i} " * 9}) for i in range(40)]
    cfg = evaluated_at_the_end(tiny(tmp_path, steps=14, save_every=1000, mesh=parse_mesh("data=2")))
    file = tmp_path / "text.jsonl"
    source = TextDataset.Config(source=JsonLines.Config(files=[str(file)]), shuffle=False)
    cfg = cfg.set_in("input.dataset", source).set_in("input.streams", 2)
    whole = cfg.set(directory=str(tmp_path / "whole"))
    file.write_text("\n".join([*texts[:21], "{", *texts[22:]]))  # Only later steps would need that document.
    run_together(whole, 2)
    # This document is read by the second stream alone, which is of the second process.
    file.write_text("\n".join([*texts[:13], "{", *texts[14:]]))
    broken = as_recipe(cfg, tmp_path / "recipe.py")
    for errors, other in zip(run_together(broken, 2, code=2), ("  (Process 1 of 2 found this.)", ""), strict=True):
        assert f"dovetail train: {file}:14: not JSON" in errors
        assert "input.dataset.on_bad_document=skip" in errors
        assert other in errors
        assert "is saved, before the error that ends the run." in errors
    early = cfg.set(directory=str(tmp_path / "early"))
    file.write_text("\n".join(["{", *texts[1:]]))  # Nothing can be saved.
    assert all(
        f"{file}:1: not JSON" in errors for errors in run_together(as_recipe(early, tmp_path / "b.py"), 2, code=2)
    )
    (stopped,) = Checkpointer.Config(directory=f"{cfg.directory}/checkpoints").build().steps()
    assert 3 < stopped < 14
    file.write_text("\n".join(texts).replace("Chapter 39", "Chapter ++"))  # Mended, with as many documents.
    run_together(broken, 2, "--data-change", "keep")
    file.write_text("\n".join(texts))
    assert losses(cfg)[:14] == losses(whole)[:14]
    assert Checkpointer.Config(directory=f"{cfg.directory}/checkpoints").build().latest() == 14


@pytest.mark.long
def test_processes_with_streams_of_their_own_count_together_what_they_leave_out_and_end_together(tmp_path):
    counted = []
    for name, mesh in (("alone", Mesh()), ("together", parse_mesh("data=2"))):
        cfg = evaluated_at_the_end(tiny(tmp_path / name, steps=30, save_every=1000, mesh=mesh))
        file = tmp_path / name / "text.jsonl"
        file.write_text("\n".join("{" if i % 2 else json.dumps({"text": f"Chapter {i} " * 9}) for i in range(40)))
        dataset = TextDataset.Config(
            source=JsonLines.Config(files=[str(file)]), on_bad_document="skip", max_bad_share=0.015
        )
        cfg = cfg.set_in("input.dataset", dataset).set_in("input.streams", 2)
        if name == "together":
            errors = run_together(cfg, 2, code=1)
            assert all("cannot be used, more than max_bad_share (0.015) allows" in text for text in errors)
            assert all("is saved, before the error that ends the run." in text for text in errors)
            steps = Checkpointer.Config(directory=f"{cfg.directory}/checkpoints").build().steps()
            assert len(steps) == 1
        else:
            with pytest.raises(DataError, match="more than max_bad_share"):
                cfg.build().run()
        counted.append(losses(cfg, "data/skipped"))
    assert len(counted[0]) > 5
    length = min(map(len, counted))
    assert counted[0][:length] == counted[1][:length]
