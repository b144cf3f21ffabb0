# SPDX-License-Identifier: Apache-2.0
"""What a run says of its data: figures in the metrics, what was left out in a file, and an end that has saved first."""

import json
import shutil
import time
from itertools import islice
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest

from dovetail.checkpoint import Checkpointer
from dovetail.data import (
    ChangedDataError,
    DataError,
    Input,
    JsonLines,
    Mixture,
    PreparedDataset,
    Skipped,
    TextDataset,
    TextFiles,
)
from dovetail.train import Trainer
from dovetail.train._data_record import DataRecord
from dovetail.train._devices import GlobalBatches
from dovetail.train._record import spans_of
from support.prepared import prepared_corpus
from support.runs import TEXT, evaluated_at_the_end, tiny

DOCUMENTS = TEXT.split("\n\n\n")


BAD = {*range(0, 40, 3)}


def run_of(directory, bad=(), **fields):
    """A run over the usual documents as JSON Lines, some of them bad."""
    cfg = evaluated_at_the_end(tiny(directory, **fields))
    file = directory / "text.jsonl"
    lines = ["{" if i in bad else json.dumps({"text": text}) for i, text in enumerate(DOCUMENTS)]
    file.write_text("\n".join(lines))
    cfg = cfg.set_in("input.dataset.source", JsonLines.Config(files=[str(file)]))
    return cfg.set_in("input.dataset.on_bad_document", "skip").set_in("input.dataset.max_bad_share", 0.5)


def records(cfg, name) -> dict[int, Any]:
    lines = (Path(cfg.directory) / "metrics.jsonl").read_text().splitlines()
    return {r["step"]: r[name] for r in map(json.loads, lines) if name in r}


def test_a_run_counts_what_it_leaves_out_and_names_it_once_however_often_it_is_resumed(tmp_path):
    cfg = run_of(tmp_path / "whole", bad=BAD)
    whole = cfg.build().run()
    parts = run_of(tmp_path / "parts", bad=BAD)
    for steps in (3, 6):
        state = parts.set(steps=steps).build().run(allow_change=True)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(whole))
    counted = records(cfg, "data/skipped")
    assert [*counted] == [1, 2, 3, 4, 5, 6]
    assert counted[6] > counted[1] >= 0
    assert records(parts, "data/skipped") == counted
    assert records(parts, "data/epochs") == records(cfg, "data/epochs")
    for run in (cfg, parts):
        lines = [json.loads(line) for line in (Path(run.directory) / "skipped.jsonl").read_text().splitlines()]
        numbers = [line["document"] for line in lines]
        assert sorted(numbers) == sorted(set(numbers)) != []
        assert set(numbers) <= BAD
        assert all(line["place"].endswith(f"text.jsonl:{line['document'] + 1}") for line in lines)
        assert all("not JSON" in line["reason"] for line in lines)
    first = next(iter(records(cfg, "documents left out").values()))
    assert first.startswith(("1 so far. ", "2 so far. ", "3 so far. "))
    assert first.endswith(f"They are in {cfg.directory}/skipped.jsonl.")


def test_a_run_that_leaves_out_too_much_has_saved_first_and_goes_on_when_more_is_allowed(tmp_path, capsys):
    cfg = run_of(tmp_path, bad=range(1, 40, 2), steps=12, save_every=1000).set_in("input.dataset.max_bad_share", 0.015)
    with pytest.raises(DataError, match=r"input\.dataset\.source: 1\d of \d+ documents cannot be used"):
        cfg.build().run()
    (step,) = Checkpointer.Config(directory=f"{cfg.directory}/checkpoints").build().steps()
    assert step > 0
    assert capsys.readouterr().err.endswith(f"Step {step} is saved, before the error that ends the run.\n")
    state = cfg.set_in("input.dataset.max_bad_share", 0.6).build().run()
    assert int(state.step) == 12


class Fake:
    def __init__(self, count: int) -> None:
        self.count = count

    def figures(self, position):
        return {"web/skipped": float(self.count)}

    def skipped(self, position):
        return [Skipped("web", i, f"a:{i}", "x" * 1000) for i in range(self.count)]

    def check(self, position) -> None: ...


def test_the_file_is_bounded_and_survives_torn_lines_and_what_is_said_is_little(tmp_path):
    said, data = [], Fake(1)
    (tmp_path / "skipped.jsonl").write_text('{"source": "web", "document": 0}\n{"sou\n')
    record = DataRecord(cast(Input, data), tmp_path)
    for count in range(1, 1500, 7):
        data.count = count
        record.figures(count, {}, lambda *args: said.append(args))
    lines = (tmp_path / "skipped.jsonl").read_text().splitlines()
    assert 990 < len(lines) <= 1001
    assert max(map(len, lines)) < 600
    assert 5 < len(said) < 12


def test_a_file_that_cannot_be_written_does_not_end_a_run(tmp_path, caplog):
    (tmp_path / "skipped.jsonl").mkdir()
    assert DataRecord(cast(Input, Fake(2)), tmp_path).figures(1, {}, lambda *args: None) == {"data/web/skipped": 2.0}
    assert "cannot be written" in caplog.text


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run of three steps."""
    cfg = run_of(tmp_path_factory.mktemp("begun"), steps=3)
    cfg.build().run()
    return cfg


def changed(begun, directory, texts) -> Any:
    """The same run in a copy of its directory, to go on with other documents."""
    cfg = run_of(directory, steps=5)
    file = directory / "text.jsonl"
    file.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    shutil.copytree(begun.directory, cfg.directory)
    return cfg


def batches_of(cfg, first, last) -> list[Any]:
    """The tokens of some steps of an input that is read from its start."""
    return [batch["tokens"].tolist() for batch in islice(iter(cfg.input.build()), first - 1, last)]


@pytest.mark.parametrize("decision", ["keep", "restart", "skip-to-step"])
def test_a_run_goes_on_with_other_data_as_was_decided_and_says_what_that_means(decision, begun, tmp_path, monkeypatch):
    texts = [*DOCUMENTS, *(f"One more, the {i}th." for i in range(10))]
    cfg = changed(begun, tmp_path, texts)
    with pytest.raises(ChangedDataError, match=r"--data-change keep, restart or skip-to-step"):
        cfg.build().run()
    seen = list[Any]()
    step = Trainer._make_step
    monkeypatch.setattr(
        Trainer, "_make_step", lambda self, run, batch, checked: (seen.append(batch), step(self, run, batch, checked))
    )
    cfg.build().run(data_change=decision)
    found = [np.asarray(batch["tokens"]).tolist() for batch in seen]
    same = cfg.set_in("input.dataset.source.files", begun.input.dataset.get_in("source.files"))
    wanted = {"keep": (same, 4, 5), "restart": (cfg, 1, 2), "skip-to-step": (cfg, 4, 5)}[decision]
    assert found == batches_of(*wanted)
    (said,) = records(cfg, "a change of the data").values()
    assert said.startswith("  dataset.documents was 40, is 50\n  dataset.bytes was ")
    assert f"\n  {decision}:\n    " in said
    if decision == "keep":
        assert said.endswith("    10 documents more, taken for appended, come from epoch 2 on.")
    cfg.set(steps=6).build().run()  # Once is enough.
    assert len(records(cfg, "a change of the data")) == 1
    after = {"keep": (same, 6, 6), "restart": (cfg, 3, 3), "skip-to-step": (cfg, 6, 6)}[decision]
    assert [np.asarray(seen[-1]["tokens"]).tolist()] == batches_of(*after)


def test_data_too_short_for_the_step_is_an_error(begun, tmp_path):
    cfg = changed(begun, tmp_path, DOCUMENTS[:2]).set_in("input.dataset.epochs", 1)
    with pytest.raises(DataError, match=r"^the data is for 1 steps, and the run goes on after 3\.$"):
        cfg.build().run(data_change="skip-to-step")


def test_longer_rows_in_the_middle_of_a_run_go_on_with_the_next_token_and_both_configs_are_kept(begun, tmp_path):
    cfg = changed(begun, tmp_path, DOCUMENTS).set_in("input.seq_len", 64).set_in("input.batch_size", 2)
    cfg.build().run(data_change="keep")
    assert [(file.name, *span) for file, span in spans_of(Path(cfg.directory)).items()] == [
        ("steps_1-3.txt", 1, 3),
        ("config.txt", 4, None),
    ]
    assert records(cfg, "data/epochs")[3] < records(cfg, "data/epochs")[4]


def test_a_run_on_a_mixture_counts_by_source_and_says_once_that_one_has_ended(tmp_path):
    cfg = run_of(tmp_path, steps=6)
    text = cfg.input.get_in("dataset")
    few = TextDataset.Config(source=TextFiles.Config(files=[_few(tmp_path)]), epochs=2)
    mixed = Mixture.Config(parts={"text": text, "few": few}, weights={"text": 1.0, "few": 1.0})
    cfg = cfg.set_in("input.dataset", mixed)
    cfg.set(steps=3).build().run()
    cfg.build().run()
    rows = {name: records(cfg, f"data/{name}/rows") for name in ("text", "few")}
    assert [rows["text"][step] + rows["few"][step] for step in range(1, 7)] == [4 * step for step in range(1, 7)]
    assert records(cfg, "data/few/epochs")[6] == 2.0
    assert records(cfg, "data/text/tokens")[6] <= 32 * rows["text"][6]
    assert list(records(cfg, "data/few/ended").values())[-1] == 1.0
    said = records(cfg, "a source of the data")
    assert set(said.values()) == {"few has given its epochs; its share goes to the others."}


def _few(directory) -> str:
    (directory / "few.txt").write_text("A few words, which are read twice, and then no more.")
    return str(directory / "few.txt")


@pytest.mark.long
def test_the_share_of_time_that_devices_wait_for_data_is_a_metric(tmp_path, monkeypatch):
    given = GlobalBatches.__next__

    def slow(self):
        time.sleep(0.2)
        return given(self)

    monkeypatch.setattr(GlobalBatches, "__next__", slow)
    cfg = run_of(tmp_path, steps=6)
    cfg.build().run()
    shares = records(cfg, "data_wait")
    assert [*shares] == [2, 3, 4, 5, 6]
    assert all(0 <= share <= 1 for share in shares.values())
    assert max(shares.values()) > 0.5


@pytest.mark.parametrize("decision, number", [("keep", 3), ("restart", 1), ("skip-to-step", 3)])
def test_a_position_from_before_the_change_means_the_same_again_as_in_a_rollback(decision, number, begun, tmp_path):
    trainer = changed(begun, tmp_path, [*DOCUMENTS, "One more."]).build()
    before = iter(begun.input.build())
    next(before)
    next(before)
    batches = trainer._devices.batches(trainer.input)
    batches.on_change = decision
    found = []
    for _ in range(2):
        batches.set_state(before.get_state())
        found.append(np.asarray(next(batches)["tokens"]).tolist())
        assert batches.number == number
    assert found[0] == found[1]


def test_a_run_on_prepared_data_goes_on_exactly_with_batches_of_another_size_for_which_it_would_choose_other_streams(
    tmp_path, monkeypatch
):
    cfg = run_of(tmp_path, steps=3)
    cfg = cfg.set_in("input.dataset", PreparedDataset.Config(path=prepared_corpus(), blocks=2))
    given, step = list[Any](), Trainer._make_step
    monkeypatch.setattr(
        Trainer, "_make_step", lambda self, run, batch, checked: (given.append(batch), step(self, run, batch, checked))
    )
    cfg.build().run()
    other: Any = cfg.set(steps=5, input=cfg.input.set(batch_size=8, seq_len=16))
    other.build().run(data_change="keep")
    streams = cfg.input.build()._num_streams
    assert other.input.build()._num_streams == 2 * streams
    made = cfg.set_in("input.seq_len", 1).input.build()._dataset
    for stream in range(streams):
        own = []
        for batch in given:
            rows = np.asarray(batch["tokens"])
            size = len(rows) // streams
            own += rows[stream * size : (stream + 1) * size].ravel().tolist()
        wanted = [int(row["tokens"][0]) for row, _ in islice(made.rows(stream, streams, None), len(own))]
        assert own == wanted
    assert [*spans_of(Path(cfg.directory)).values()] == [(1, 3), (4, None)]
