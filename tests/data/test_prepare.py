# SPDX-License-Identifier: Apache-2.0
"""`Preparation`: what comes out is what the tokenizer makes of the documents, for any cut and any number of workers."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.config import ConfigError, to_json
from dovetail.data import ByteTokenizer, DataError, HuggingFaceTokenizer, Preparation, PreparedData
from dovetail.data import _claims as claims
from dovetail.data import _unit_maker as unit_maker
from dovetail.data import _units as units
from support.counts import counted
from support.small_disk import fill, small_disk

BYTES = ByteTokenizer.Config()


def config(sources, to, **fields) -> Preparation.Config:
    return Preparation.Config(sources=sources, to=str(to), tokenizer=BYTES, workers=0).set(**fields)


def contents(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def documents(path) -> list[list[int]]:
    """The documents of prepared data, those in parts joined."""
    data, found = PreparedData(str(path)), []
    parts = np.concatenate([data.origins(shard)["part"] for shard in range(len(data.shards))])
    pieces = [
        ids.tolist()
        for block in data.read(range(len(data)))
        for ids in np.split(block.tokens, block.lengths.cumsum())
        if len(ids)
    ]
    for part, ids in zip(parts, pieces, strict=True):
        if part:
            found[-1] += ids
        else:
            found.append(ids)
    return found


def ended(texts) -> list[list[int]]:
    return [[*text.encode(), 257] for text in texts if text]


TEXTS = [f"document {i} " + "word " * (i % 7) for i in range(40)]


def records(texts) -> list[dict]:
    return [{"text": text} for text in texts]


@settings(max_examples=20)
@given(
    texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=8),
    shard_bytes=st.integers(20, 200),
    block_tokens=st.integers(1, 40),
)
def test_each_document_is_there_once_wherever_the_sources_are_cut(tmp_path_factory, texts, shard_bytes, block_tokens):
    home = tmp_path_factory.mktemp("prepared")
    (home / "a.jsonl").write_bytes(
        b"".join(json.dumps(r, ensure_ascii=False).encode() + b"\n\n" for r in records(texts))
    )
    cfg = config([str(home / "a.jsonl")], home / "out", shard_bytes=shard_bytes, block_tokens=block_tokens)
    if not any(texts):
        with pytest.raises(DataError, match="no document in all of it"):
            cfg.build().run()
        return
    manifest = cfg.build().run()
    assert documents(home / "out") == ended(texts)
    assert manifest.statistics["documents"] == sum(map(bool, texts))
    assert manifest.statistics["empty"] == texts.count("")
    assert manifest.statistics["tokens"] == sum(map(len, ended(texts)))


@settings(max_examples=20)
@given(
    parts=st.lists(st.text("ab\n ", max_size=12), min_size=1, max_size=12),
    shard_bytes=st.integers(4, 30),
    separator=st.sampled_from(["\n\n", "|", "<>"]),
)
def test_no_byte_of_a_text_is_lost_or_there_twice_wherever_it_is_cut(tmp_path_factory, parts, shard_bytes, separator):
    home = tmp_path_factory.mktemp("prepared")
    text = separator.join(["start", *parts])
    (home / "a.txt").write_text(text)
    cfg = config([str(home / "a.txt")], home / "out", shard_bytes=shard_bytes, separator=separator)
    cfg.build().run()
    found = [bytes(ids[:-1]).decode() for ids in documents(home / "out")]
    assert "".join("".join(found).split()) == "".join(text.replace(separator, "").split())
    if separator != "\n\n":  # Of three line ends, which two are the separator depends on the cut.
        assert found == [part for part in text.split(separator) if part.strip()]


def test_ids_are_those_of_the_tokenizer_with_its_special_tokens(write, tmp_path, tokenizer_config):
    file = write("a.jsonl", records(TEXTS))
    cfg = config([file], tmp_path / "out", tokenizer=tokenizer_config, add_bos=True)
    cfg.build().run()
    tokenizer = tokenizer_config.build()
    wanted = [[tokenizer.bos_id, *tokenizer.encode(text).tolist(), tokenizer.eos_id] for text in TEXTS]
    assert documents(tmp_path / "out") == wanted
    assert PreparedData(str(tmp_path / "out")).tokenizer().fingerprint() == tokenizer.fingerprint()


def test_result_is_the_same_for_any_number_of_workers(write, tmp_path):
    files = [write(f"{i}.jsonl", records(TEXTS[i:])) for i in range(3)]
    results = []
    for workers in (0, 1, 3):
        config(files, tmp_path / str(workers), shard_bytes=400, workers=workers).build().run()
        results.append(contents(tmp_path / str(workers)))
    assert len([name for name in results[0] if name.endswith(".tokens")]) > 3
    assert results[0] == results[1] == results[2]


def test_hosts_share_the_work_and_the_result_is_that_of_one(write, tmp_path, monkeypatch):
    file = write("a.jsonl", records(TEXTS * 3))
    config([file], tmp_path / "one", shard_bytes=300).build().run()
    made = []
    real = unit_maker.make_unit
    monkeypatch.setattr("dovetail.data._prepare.make_unit", lambda *a: (made.append(a[2]), real(*a)))
    cfg = config([file], tmp_path / "two", shard_bytes=300)
    errors = []

    def run():
        try:
            cfg.build().run()
        except BaseException as e:
            errors.append(e)

    hosts = [threading.Thread(target=run) for _ in range(2)]
    for host in hosts:
        host.start()
    for host in hosts:
        host.join()
    assert errors == []
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert len(made) == len(set(made)) > 3


def test_one_that_is_broken_off_goes_on_where_it_was(write, tmp_path, monkeypatch):
    file = write("a.jsonl", records(TEXTS))
    config([file], tmp_path / "whole", shard_bytes=300).build().run()
    made = []
    real = unit_maker.make_unit

    def some(job, place, number, *rest):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(number)
        return real(job, place, number, *rest)

    monkeypatch.setattr("dovetail.data._prepare.make_unit", some)
    cfg = config([file], tmp_path / "out", shard_bytes=300)
    with pytest.raises(KeyboardInterrupt):
        cfg.build().run()
    assert "manifest.json" not in contents(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"there is no prepared data at .*/out: it has no manifest\.json"):
        PreparedData(str(tmp_path / "out"))
    again = []
    monkeypatch.setattr("dovetail.data._prepare.make_unit", lambda *a: (again.append(a[2]), real(*a)))
    cfg.build().run()
    assert again
    assert not set(again) & set(made)
    assert contents(tmp_path / "whole") == contents(tmp_path / "out")


def test_prepared_again_is_done_at_once_and_something_else_is_refused(write, tmp_path):
    file = write("a.jsonl", records(TEXTS))
    cfg = config([file], tmp_path / "out")
    first = cfg.build().run()
    before = contents(tmp_path / "out")
    assert cfg.build().run() == first
    with pytest.raises(ConfigError) as e:
        cfg.set(add_eos=False).build(path="prepare").run()
    assert str(e.value) == (
        f"prepare.to: {tmp_path}/out has been prepared from something else:\n"
        "  settings.add_eos was True, is False\n"
        "  Give another place, or remove that one."
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="is not empty"):
        cfg.set(to=str(tmp_path / "other")).build().run()
    assert contents(tmp_path / "out") == before


def test_a_worker_that_is_killed_is_replaced(write, tmp_path):
    file = write("a.jsonl", records(TEXTS * 50))
    config([file], tmp_path / "calm", shard_bytes=5000).build().run()
    killed = []

    def kill_one(name, count):
        if count.note and not killed:
            killed.append(multiprocessing.active_children()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    with counted(kill_one):
        config([file], tmp_path / "out", shard_bytes=5000, workers=2).build().run()
    assert killed
    assert contents(tmp_path / "calm") == contents(tmp_path / "out")


def test_long_documents_are_read_in_pieces_and_are_there_whole(write, tmp_path, monkeypatch):
    monkeypatch.setattr(units, "PIECE", 100)
    monkeypatch.setattr(unit_maker, "PIECE", 100)
    text = "é ".join(map(str, range(1000)))
    files = [write("a.txt", text), write("b.jsonl", records(["short", text]))]
    manifest = config(files, tmp_path / "out", block_tokens=64, max_document_tokens=64).build().run()
    assert documents(tmp_path / "out") == ended([text, "short", text])
    assert [manifest.statistics[name] for name in ("documents", "cut", "split")] == [3, 2, 2]
    assert manifest.statistics["duplicates"] == -(-len(ended([text])[0]) // 64)
    assert max(len(block.tokens) for block in PreparedData(str(tmp_path / "out")).read(range(20))) < 128


@pytest.mark.parametrize(
    "content, message",
    [
        (b'{"text": "fine"}\n{"text": "\xff"}\n', r"a\.jsonl: not UTF-8 at byte 27: found 0xff"),
        (b'{"text": "fine"}\nnonsense\n', r"a\.jsonl:2: not JSON: "),
        (b'{"text": "fine"}\n{"body": "x"}\n', r"a\.jsonl:2: the record has no field 'text'\. It has: body\."),
        (b'{"text": "half \\ud800 pair"}\n', r"a\.jsonl:1: character 5 is half of a surrogate pair"),
        (b'{"text": [1, 999]}\n', r"a\.jsonl:1: token 1 of 2 is 999, outside the vocabulary of 259"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_bad_documents_are_errors_that_name_their_place(write, tmp_path, content, message, workers):
    good = write("b.jsonl", records(TEXTS)) if workers else None
    cfg = config(
        [write("a.jsonl", content), *([good] if good else [])], tmp_path / "out", workers=workers, shard_bytes=30
    )
    with pytest.raises(DataError, match=message):
        cfg.build().run()
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not list((tmp_path / "out").glob("work/claims/*"))


def test_sources_without_a_document_are_an_error(write, tmp_path):
    with pytest.raises(DataError, match=r"a\.jsonl: there is no document in all of it"):
        config([write("a.jsonl", b"\n \n")], tmp_path / "out").build().run()
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_file_that_changes_or_vanishes_is_named(write, tmp_path):
    file = write("a.jsonl", records(TEXTS))
    made = config([file], tmp_path / "out").build()
    with open(file, "a") as f:
        f.write("{}\n")
    with pytest.raises(DataError, match=r"a\.jsonl: has \d+ bytes, and had \d+ when this began"):
        made.run()
    os.unlink(file)
    with pytest.raises(DataError, match=r"a\.jsonl: is there no more"):
        made.run()


def test_a_full_disk_is_said_and_nothing_counts_as_done(write, tmp_path):
    file = write("a.jsonl", records(TEXTS * 100))
    program = (
        "import resource, signal, sys\n"
        "from dovetail.data import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        f"Preparation.Config(sources=[{file!r}], to={str(tmp_path / 'out')!r}, tokenizer=ByteTokenizer.Config(), "
        "workers=0).build().run()\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 1
    assert "shards/0000/0000000-0.tokens: cannot be written: File too large." in ran.stderr
    assert set(contents(tmp_path / "out")) == {"work/plan.json"}


def test_claims_of_the_dead_and_of_the_silent_are_taken(tmp_path, monkeypatch):
    clock = [0.0]
    place = units_place(tmp_path)
    mine, theirs = (claims.Claims(place, lambda: clock[0]) for _ in range(2))
    assert mine.take(3)
    assert not theirs.take(3)
    clock[0] = claims.PATIENCE - 1
    mine.renew()
    assert not theirs.take(3)  # It has changed.
    clock[0] += claims.PATIENCE
    assert theirs.take(3)
    dead = json.loads(place.need(f"{claims.CLAIMS}/0000003")) | {"pid": 2**22 + 1}
    place.write(f"{claims.CLAIMS}/0000003", json.dumps(dead).encode())
    assert mine.take(3)
    place.write(f"{claims.CLAIMS}/0000004", b"nonsense")
    assert not mine.take(4)
    mine.release_all()
    assert place.names("work/claims") == ["0000004"]


def units_place(tmp_path):
    from dovetail.data._places import open_place

    return open_place(str(tmp_path / "place"), "to")


def test_missing_eos_and_impossible_numbers_are_config_errors(write, tmp_path, hugging_face_file):
    cfg = config([write("a.jsonl", records(TEXTS))], tmp_path / "out")
    with pytest.raises(ConfigError, match=r"prepare\.add_eos: the tokenizer has no eos token"):
        cfg.set(tokenizer=HuggingFaceTokenizer.Config(file=hugging_face_file)).build(path="prepare")
    for fields in ({"shard_bytes": 0}, {"block_tokens": 0}, {"workers": -1}):
        with pytest.raises(ConfigError, match=f"prepare.{next(iter(fields))}: is"):
            cfg.set(**fields).build(path="prepare")
    with pytest.raises(ConfigError, match="separator: is empty"):
        cfg.set(separator="").build()
    with pytest.raises(ConfigError, match="no file matches"):
        cfg.set(sources=["no/such"]).build()


def test_of_two_hosts_one_is_killed_and_the_other_ends_the_work(write, tmp_path):
    file = write("a.jsonl", records(TEXTS * 100))
    config([file], tmp_path / "calm", shard_bytes=5000).build().run()
    command = [sys.executable, "-m", "dovetail.cli", "data", "prepare", file, "--tokenizer", "bytes"]
    command += ["--to", str(tmp_path / "out"), "shard_bytes=5000", "workers=1"]
    first, second = (subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2))
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out").glob("work/done/*/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    first.kill()
    first.communicate()
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors.decode()
    assert contents(tmp_path / "calm") == contents(tmp_path / "out")


def test_when_all_are_killed_the_same_command_goes_on(write, tmp_path):
    file = write("a.jsonl", records(TEXTS * 100))
    cfg = config([file], tmp_path / "calm", shard_bytes=5000)
    cfg.build().run()
    program = (
        "import os, signal\n"
        "from dovetail.config import from_json\n"
        "from dovetail.data import Preparation\n"
        "from dovetail.progress import Count\n"
        "plain = Count.advance\n"
        "def advance(count, by=1):\n"
        "    plain(count, by)\n"
        "    count.done == 3 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "Count.advance = advance\n"
        f"cfg = from_json({to_json(cfg)!r}).set(to={str(tmp_path / 'out')!r})\n"
        "cfg.build().run()\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGKILL
    assert len(list((tmp_path / "out").glob("work/done/*/*"))) >= 3
    assert not (tmp_path / "out" / "manifest.json").exists()
    cfg.set(to=str(tmp_path / "out")).build().run()
    assert contents(tmp_path / "calm") == contents(tmp_path / "out")


def test_a_disk_that_is_really_full_is_said_and_with_room_it_goes_on(write, tmp_path):
    texts = TEXTS * 150
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        filler = fill(disk, leave=300_000)
        cfg = config([write("a.jsonl", records(texts))], disk / "out", shard_bytes=20_000)
        with pytest.raises(DataError, match=r"cannot be written: No space left on device\. Make room, and run"):
            cfg.build().run()
        assert not (disk / "out" / "manifest.json").exists()
        done = len(list((disk / "out").glob("work/done/*/*")))
        assert done > 1
        filler.unlink()
        seen = []
        with counted(lambda name, count: seen.append((count.total, count.first))):
            cfg.build().run()
        assert set(seen) == {(len(cfg.build()._units), done)}
        assert documents(disk / "out") == ended(texts)
