# SPDX-License-Identifier: Apache-2.0
"""`dovetail data`: what a user does with it, and mistakes. What is prepared and read is tested with the data."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.cli._data import _plot
from dovetail.data import PreparedData
from support.file_server import FileServer

TEXTS = ["Call me Ishmael.", "Some years ago, never mind how long.", "Call me Ishmael.", "", "It is a way I have."]


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A directory of its own, with documents in a.jsonl."""
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return tmp_path


@pytest.fixture
def prepared(home, capsys) -> str:
    """That, prepared as bytes, in blocks of two documents."""
    arguments = ["--tokenizer", "bytes", "--to", "there", "block_tokens=40", "workers=0"]
    assert main(["data", "prepare", "a.jsonl", *arguments]) == 0
    capsys.readouterr()
    return "there"


def test_prepare_says_what_there_is_and_what_to_do_with_it(home, capsys):
    assert main(["data", "prepare", "a.jsonl", "--tokenizer", "bytes", "--to", "there", "workers=0"]) == 0
    tokens = sum(len(text) + 1 for text in TEXTS if text)
    assert capsys.readouterr().out == (
        f"{tokens} tokens, 4 documents, 1 shards: there\nTrain on it: dovetail train RECIPE --data there\n"
    )
    assert main(["data", "prepare", "a.jsonl", "--tokenizer", "bytes", "--to", "there", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tokens"], found["duplicates"], found["empty"], found["shards"]["count"]) == (tokens, 1, 1, 1)


def test_prepare_reads_from_a_url_with_an_equals_sign_in_it(home, capsys):
    server = FileServer()
    url = server.put("a.jsonl", Path("a.jsonl").read_bytes())
    assert main(["data", "prepare", f"{url}?key=a=b", "--tokenizer", "bytes", "--to", "there", "workers=0"]) == 0
    assert "4 documents" in capsys.readouterr().out
    assert "?key" not in Path("there/manifest.json").read_text()
    assert main(["data", "prepare", f"{url}l", "--tokenizer", "bytes", "--to", "other", "workers=0"]) == 2
    assert capsys.readouterr().err == f"dovetail data: data prepare.sources: there is no file '{url}l'.\n"
    server.close()


def test_prepare_takes_the_tokenizer_of_a_recipe_a_file_or_a_directory(home, capsys, monkeypatch):
    from dovetail.data import corpus_path

    file = corpus_path("moby-dick").with_name("tokenizer.json")
    kinds = {"tiny-lm": "ShippedTokenizer", str(file): "HuggingFaceTokenizer", str(file.parent): "HuggingFaceTokenizer"}
    for number, (name, kind) in enumerate(kinds.items()):
        more = ["tokenizer.eos_token=<eos>"] if kind == "HuggingFaceTokenizer" else []
        arguments = ["--tokenizer", name, "--to", str(number), "workers=0", *more]
        assert main(["data", "prepare", "a.jsonl", *arguments]) == 0
        assert PreparedData(str(number)).manifest.tokenizer["name"] == kind


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["no.jsonl", "--tokenizer", "bytes"], "data prepare.sources: no file matches 'no.jsonl'."),
        (
            ["a.jsonl", "--tokenizer", "tiny-ml"],
            "--tokenizer: 'tiny-ml' is no file, and no recipe is",
        ),
        (["a.jsonl", "--tokenizer", "a.jsonl"], "--tokenizer: 'a.jsonl' is neither a tokenizer.json nor a"),
        (
            ["a.jsonl", "--tokenizer", "bytes", "fiel=a"],
            "it has no field 'fiel'. Did you mean 'field'?",
        ),
        (["a.jsonl", "--tokenizer", "bytes", "field=body"], "a.jsonl:1: the record has no field 'body'. It has: text."),
        (["empty.jsonl", "--tokenizer", "bytes"], "empty.jsonl: the file is empty. Remove it, or leave it out of"),
    ],
)
def test_mistakes_are_one_message_and_exit_2(home, capsys, arguments, message):
    Path("empty.jsonl").touch()
    assert main(["data", "prepare", *arguments, "--to", "there", "workers=0"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("there/manifest.json").exists()


@pytest.mark.parametrize("action", ["show", "check", "stats"])
def test_a_place_without_prepared_data_is_a_mistake(home, capsys, action):
    assert main(["data", action, "nowhere"]) == 2
    assert f"dovetail data: data {action}: there is no prepared data at" in capsys.readouterr().err


def test_show_prints_rows_as_they_are_trained(prepared, capsys):
    assert main(["data", "show", prepared, "seq_len=30", "shuffle=False", "--rows", "2"]) == 0
    assert capsys.readouterr().out == (
        "row 0: 2 pieces of documents, 29 targets, 0 padding\n"
        "    1 Call me Ishmael. |\n"
        "    2 Some years ag\n"
        "row 1: 2 pieces of documents, 29 targets, 0 padding\n"
        "    1 o, never mind how long. |\n"
        "    2 Call m\n"
    )
    assert main(["data", "show", prepared, "seq_len=30", "shuffle=False", "--rows", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["pieces"] == ["Call me Ishmael.", "Some years ag"]
    assert row["weights"] == [1.0] * 16 + [0.0] + [1.0] * 13


def test_show_colours_documents_on_a_terminal(prepared):
    ours, theirs = pty.openpty()
    program = [sys.executable, "-m", "dovetail.cli", "data", "show", prepared, "seq_len=30", "--rows", "1"]
    subprocess.run(program, stdout=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "\x1b[33m" in shown
    assert "\x1b[32m" in shown


PARTS = [{"text": [{"text": "Call me ", "weight": 0}, {"text": "Ish"}, {"text": "mael", "weight": 0.5}]}]
PAIRS = [{"q": "Who? ", "a": "Ishmael", "b": "Ahab"}, {"q": "Where? ", "a": "Sea", "b": "Inn"}]


def prepared_from(records, *overrides) -> str:
    Path("b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    arguments = ["b.jsonl", "--tokenizer", "bytes", "--to", "other", "workers=0", *overrides]
    assert main(["data", "prepare", *arguments]) == 0
    return "other"


def test_show_prints_weights_as_numbers_and_greys_what_does_not_count(home, capsys):
    place = prepared_from(PARTS)
    capsys.readouterr()
    assert main(["data", "show", place, "seq_len=20", "--rows", "1"]) == 0
    assert capsys.readouterr().out == (
        "row 0: 2 pieces of documents, 8 targets, 0 padding\n    1 [0]Call me [1]Ish[0.5]mael |\n    2 [0]Call\n"
    )
    ours, theirs = pty.openpty()
    program = [sys.executable, "-m", "dovetail.cli", "data", "show", place, "seq_len=20", "--rows", "1"]
    subprocess.run(program, stdout=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "\x1b[90mCall me \x1b[0m\x1b[33mIsh\x1b[0m[0.5]\x1b[33mmael\x1b[0m" in shown
    assert main(["data", "show", place, "seq_len=20", "--rows", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row.keys() == {"tokens", "targets", "weights", "segments", "positions", "pieces"}
    assert row["weights"][:15] == [0.0] * 7 + [1.0] * 3 + [0.5] * 5


def test_show_prints_groups_as_such(home, capsys):
    place = prepared_from(PAIRS, "field=('a', 'b')", "prompt=q", "block_tokens=10")
    assert "45 tokens, 2 groups of 2, 1 shards: other\n" in capsys.readouterr().out
    assert main(["data", "show", place, "seq_len=14", "shuffle=False", "--rows", "1"]) == 0
    assert capsys.readouterr().out == (
        "row 0: a group of 2 sequences, 13 targets, 5 padding\n"
        "  sequence 1: 1 pieces of documents, 8 targets, 1 padding\n"
        "    1 [0]Who? [1]Ishmael |\n"
        "  sequence 2: 1 pieces of documents, 5 targets, 4 padding\n"
        "    1 [0]Who? [1]Ahab |\n"
    )
    assert main(["data", "show", place, "seq_len=14", "shuffle=False", "--rows", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["pieces"] == [["Who? Ishmael"], ["Who? Ahab"]]
    assert main(["data", "stats", place]) == 0
    out = capsys.readouterr().out
    assert "2 groups of 2 in 1 shards" in out
    assert "some tokens have weights; 0 have none that counts" in out
    assert main(["train", "tiny-lm", "--data", place]) == 2
    assert "the data has groups of 2 sequences, and ConcatPacker packs documents of one." in capsys.readouterr().err


def test_what_teaches_nothing_is_said_when_it_is_left_out(home, capsys):
    place = prepared_from([*PARTS, {"text": [{"text": "x", "weight": 0}]}])
    assert "1 more were left out: all their weights are 0, so that they teach nothing." in capsys.readouterr().out
    assert main(["data", "stats", place]) == 0
    assert "1 have none that counts, and were left out" in capsys.readouterr().out


def test_stats_says_which_documents_are_there_in_parts(home, capsys):
    place = prepared_from([{"text": "x" * 50}], "max_document_tokens=20")
    capsys.readouterr()
    assert main(["data", "stats", place]) == 0
    assert "1 are longer than 20 tokens, and are there in parts" in capsys.readouterr().out


def test_check_names_what_is_damaged_and_exits_with_1(prepared, capsys):
    assert main(["data", "check", prepared]) == 0
    assert capsys.readouterr().out == "2 blocks in 1 shards are as written.\n"
    file = Path("there/shards/0000/0000000-0.tokens")
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)
    assert main(["data", "check", prepared]) == 1
    assert "there/shards/0000/0000000-0.tokens, bytes 0 to " in capsys.readouterr().out
    assert main(["data", "check", prepared, "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 1


def test_stats_prints_counts_lengths_duplicates_and_empty_documents(prepared, capsys):
    assert main(["data", "stats", prepared]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "91 tokens of ByteTokenizer (259), 4 documents in 1 shards\n1 are like another before; 1 were empty"
    )
    assert "a.jsonl" in out
    assert "16 and more" in out
    assert main(["data", "stats", prepared, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tokens"], found["sources"][0]["documents"], found["tokenizer"]["vocab_size"]) == (91, 4, 259)


def test_plot_has_a_bar_for_each_doubling():
    assert _plot({1: 1, 3: 400}).splitlines() == [
        "tokens a document",
        "     1 and more       1  #",
        "     2 and more       0",
        f"     4 and more     400  {'#' * 40}",
    ]


SMALL = ["model.vocab_size=300", "model.dim=64", "model.stack.num_layers=1", "model.stack.layer.ffn.hidden_dim=32"]


def test_a_recipe_of_a_published_model_needs_nothing_but_prepared_data(home, capsys):
    Path("a.txt").write_text("Call me Ishmael. Some years ago. " * 200)
    assert main(["data", "prepare", "a.txt", "--tokenizer", "bytes", "--to", "there", "workers=0"]) == 0
    small = ["steps=1", *SMALL, "input.seq_len=32", "input.batch_size=4", "learner.schedule.warmup_steps=0"]
    assert main(["train", "llama3.2-1b", "input.dataset.path=there", "directory=run", *small]) == 0
    assert "step 1/1" in capsys.readouterr().out
    Path("there").rename("moved")  # What a run has recorded is enough to use it.
    assert main(["generate", "run", "Call", "tokens=2"]) == 0
    assert main(["train", "llama3.2-1b", "directory=run"]) == 2
    said = capsys.readouterr().err
    assert "  input.dataset.path: str | list[str]\n    Prepare text once" in said
    assert "--data PLACE" in said
    assert "--text FILE..." in said
    assert main(["train", "llama3.2-1b", "--data", "nowhere"]) == 2
    assert "--data: there is no prepared data at" in capsys.readouterr().err


@pytest.mark.long
def test_a_run_trains_on_prepared_data_with_its_tokenizer(home, capsys):
    Path("a.txt").write_text("Call me Ishmael. Some years ago. " * 2000)
    arguments = ["--tokenizer", "tiny-lm", "--to", "there", "workers=0"]
    assert main(["data", "prepare", "a.txt", *arguments]) == 0
    small = ["steps=2", "model.stack.num_layers=1", "input.batch_size=4", "input.seq_len=32"]
    assert main(["train", "tiny-lm", "--data", "there", *small, "evaluators.eval.input.batch_size=2"]) == 0
    assert "eval/loss" in capsys.readouterr().out
    config = json.dumps(json.loads(next(Path("runs/tiny-lm-there").glob("checkpoints/step_2/config.json")).read_text()))
    assert "PreparedDataset" in config
    Path("b.txt").write_text("It is a way I have of driving off the spleen. " * 1000)
    assert main(["data", "prepare", "b.txt", "--tokenizer", "tiny-lm", "--to", "more", "workers=0"]) == 0
    again = ["train", "tiny-lm", "--data", "there", "more", "steps=3", *small[1:], "--allow-change"]
    assert main([*again, "evaluators.eval.input.batch_size=2", "--data-change", "keep"]) == 0
    note = r"keep:\n    \d+ blocks more, of data that was added, come from epoch \d+ on"
    assert re.search(note, capsys.readouterr().out)
    assert main(["eval", "runs/tiny-lm-there", "--data", "there", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    whole = PreparedData("there").manifest.statistics["tokens"]
    assert found["eval/tokens"] == pytest.approx(whole, rel=0.01)
    assert main(["data", "prepare", "a.jsonl", "--tokenizer", "bytes", "--to", "bytes", "workers=0"]) == 0
    assert main(["eval", "runs/tiny-lm-there", "--data", "bytes"]) == 2
    assert "bytes was prepared with another tokenizer" in capsys.readouterr().err
    assert main(["eval", "runs/tiny-lm-there", "--data", "there", "--text", "a.txt"]) == 2
    assert "--text and --data: give one of them." in capsys.readouterr().err
    assert main(["train", "tiny-lm", "--data", "there", "--text", "a.txt"]) == 2
    assert "--text and --data: give one of them." in capsys.readouterr().err
