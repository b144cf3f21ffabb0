# SPDX-License-Identifier: Apache-2.0
"""Input: preparation beside the tokenizer alone; reading beside Grain with ArrayRecord; start-up, seek, memory.

One process, the same text, tokenizer and machine; each number is a median, all taken in turn. MosaicML Streaming is
added where `--streaming PYTHON` names an interpreter that has it, Megatron Core where `--megatron PYTHON` does.
"""

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import grain
import numpy as np
from _report import counted, header, program, table
from array_record.python.array_record_module import ArrayRecordWriter

from dovetail.data import (
    BestFitPacker,
    Manifest,
    Mixture,
    Preparation,
    PreparedData,
    PreparedDataset,
    ShippedTokenizer,
    TextInput,
    corpus_path,
)
from dovetail.data._manifest import MANIFEST, SHARD, TABLE

TOKENIZER = ShippedTokenizer.Config()
ROWS, SEQ_LEN = 64, 2048
BATCHES = 60  # That are timed together.
ROUNDS = 5
CONTENDERS = Path(__file__).with_name("contenders")


def write_text(file: Path, size: int) -> None:
    """Writes JSON Lines of about so many bytes: runs of words of a book, of lengths as those of web pages."""
    words = corpus_path("moby-dick").read_text("utf-8").split(" ")
    rng, written = random.Random(0), 0
    with file.open("w") as out:
        while written < size:
            count = int(rng.expovariate(1 / 400)) + 20
            start = rng.randrange(len(words) - count)
            written += out.write(json.dumps({"text": " ".join(words[start : start + count])}) + "\n")


def preparation(file: Path, home: Path) -> tuple[list[tuple[str, ...]], str]:
    """Times the tokenizer alone, and preparation; by processor time, too, as machines are busy."""
    size = file.stat().st_size
    cpu: dict[str, list[float]] = {"the tokenizer alone": [], "prepare, 1 worker": [], "prepare, 2 workers": []}
    wall: dict[str, list[float]] = {name: [] for name in cpu}

    def timed(name: str, work: Callable[[], object]) -> None:
        before, start = _cpu(), time.perf_counter()
        work()
        wall[name].append(time.perf_counter() - start)
        cpu[name].append(_cpu() - before)

    for number in counted("preparing", range(3)):
        timed("the tokenizer alone", lambda: subprocess.run([sys.executable, __file__, "--alone", file], check=True))
        for workers in (1, 2):
            to = home / f"prepared-{number}-{workers}"
            command = [sys.executable, "-m", "dovetail.cli", "data", "prepare", file, "--tokenizer", "tiny-lm"]
            more = ["--to", to, f"workers={workers}", "shard_bytes=8000000"]
            timed(f"prepare, {workers} worker{'s' * (workers > 1)}", lambda c=[*command, *more]: _run(c))
    alone = statistics.median(cpu["the tokenizer alone"])
    rows = [
        (
            name,
            f"{size / statistics.median(wall[name]) / 1e6:.1f} MB/s",
            f"{size / statistics.median(cpu[name]) / 1e6:.1f} MB/s",
            f"{alone / statistics.median(cpu[name]):.2f}",
        )
        for name in cpu
    ]
    return rows, str(home / "prepared-0-2")


def _run(command: list[Any]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tokenize_alone(file: Path) -> None:
    """Encodes all documents, parsed beforehand, on one core, and does nothing with the ids."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    library = TOKENIZER.build()._inner._library
    texts = [json.loads(line)["text"] for line in file.open()]
    for start in range(0, len(texts), 512):
        library.encode_batch_fast(texts[start : start + 512], add_special_tokens=False)


def dovetail_batches(path: str, *, streams: int = 8, **fields: Any) -> Iterator[Any]:
    """Returns batches of a mixture, shuffled and packed, as a trainer gets them."""
    part = PreparedDataset.Config(path=path).set(**fields)
    mixed = Mixture.Config(parts={"a": part, "b": part}, weights={"a": 1.0, "b": 2.0})
    made = TextInput.Config(batch_size=ROWS, seq_len=SEQ_LEN, tokenizer=TOKENIZER, dataset=mixed, streams=streams)
    return iter(made.build())


def write_array_record(path: str, file: Path) -> None:
    """Writes the documents of prepared data as records, uncompressed, one in a group: made for reading by index."""
    writer = ArrayRecordWriter(str(file), "group_size:1,uncompressed")
    data = PreparedData(path)
    for block in range(len(data)):
        (found,) = data.read([block])
        for ids in np.split(found.tokens, np.cumsum(found.lengths)[:-1]):
            writer.write(ids.tobytes())
    writer.close()


class _Decode(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        return {"tokens": np.frombuffer(element, np.uint16).astype(np.int32)}


def grain_batches(file: Path) -> Iterator[Any]:
    """Returns batches of Grain alone: a mixture of two, each shuffled, concatenated and split into rows, batched."""

    def part(seed: int) -> Any:
        records: Any = grain.sources.ArrayRecordDataSource(str(file))
        source = grain.MapDataset.source(records)
        return source.shuffle(seed=seed).repeat().map(_Decode())

    mixed = grain.MapDataset.mix([part(0), part(1)], [1.0, 2.0]).to_iter_dataset()
    packed = grain.experimental.ConcatThenSplitIterDataset(mixed, length_struct={"tokens": SEQ_LEN})
    return iter(packed.batch(ROWS))


def rates(made: dict[str, Callable[[], Iterator[Any]]]) -> list[tuple[str, ...]]:
    """Times batches of each, all in turn, and the time to the first batch."""
    iterators, firsts = {}, {}
    for name, make in made.items():
        start = time.perf_counter()
        iterators[name] = make()
        next(iterators[name])
        firsts[name] = time.perf_counter() - start
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in counted("reading", range(ROUNDS)):
        for name, iterator in iterators.items():
            start = time.perf_counter()
            for _ in islice(iterator, BATCHES):
                pass
            times[name].append(time.perf_counter() - start)
    rows = []
    for name, seconds in times.items():
        rate = BATCHES * ROWS / statistics.median(seconds)
        rows.append((name, f"{rate:,.0f}", f"{rate * SEQ_LEN / 1e6:.1f} M", f"{firsts[name] * 1e3:.0f} ms"))
    return rows


def others(path: str, home: Path, streaming: Path | None, megatron: Path | None) -> list[tuple[str, ...]]:
    """Times rows of the same documents by peers, each in the environment of its own that a Python of it names."""
    data = PreparedData(path)
    blocks = data.read(range(len(data)))
    tokens, lengths = home / "tokens.npy", home / "lengths.npy"
    np.save(tokens, np.concatenate([block.tokens for block in blocks]))
    np.save(lengths, np.concatenate([block.lengths for block in blocks]))
    numbers, eos = [*map(str, (SEQ_LEN, ROWS, BATCHES))], str(TOKENIZER.build().eos_id)
    asked = [
        (streaming, "streaming_data.py", [tokens, home / "mds", *numbers], ["MosaicML Streaming, rows cut before"]),
        (
            megatron,
            "megatron_data.py",
            [tokens, lengths, home / "megatron", *numbers, eos],
            ["Megatron Core, positions by document", "Megatron Core, the same positions in each row"],
        ),
    ]
    rows = []
    for python, contender, arguments, names in asked:
        if python is None:
            continue
        ran = subprocess.run([python, CONTENDERS / contender, *arguments], check=True, capture_output=True, text=True)
        for name, line in zip(names, ran.stdout.splitlines()[-len(names) :], strict=True):
            rate, first = map(float, line.split())
            rows.append((name, f"{rate:,.0f}", f"{rate * SEQ_LEN / 1e6:.1f} M", f"{first * 1e3:.0f} ms"))
    return rows


def seek(path: str) -> list[tuple[str, str]]:
    """Times what it takes to go to a far position, and to the one after the first batch."""
    iterator: Any = dovetail_batches(path)
    next(iterator)
    near = iterator.get_state()
    for _ in islice(iterator, 400):
        pass
    far = iterator.get_state()
    times: dict[str, list[float]] = {"1": [], "400": []}
    for _ in counted("seeking", range(ROUNDS)):
        for name, state in {"1": near, "400": far}.items():
            start = time.perf_counter()
            iterator.set_state(state)
            next(iterator)
            times[name].append(time.perf_counter() - start)
    return [(f"to batch {name}", f"{statistics.median(found) * 1e3:.0f} ms") for name, found in times.items()]


def start_up(file: Path, home: Path) -> list[tuple[str, str]]:
    """Times the start of a run with 10,000 shards for real, and of one with a million, of which only the table is."""
    many = home / "many"
    size = file.stat().st_size // 12_000
    Preparation.Config(sources=[str(file)], tokenizer=TOKENIZER, to=str(many), shard_bytes=size).build().run()
    rows = [(f"{len(PreparedData(str(many)).shards):,} shards, to the first batch", _first_batch(str(many)))]
    on_paper = home / "paper"
    shutil.copytree(many / "tokenizer", on_paper / "tokenizer")
    found = PreparedData(str(many))
    lines = np.zeros(1_000_000, SHARD)
    lines["unit"], lines["blocks"], lines["documents"], lines["tokens"] = np.arange(10**6), 256, 30_000, 16_000_000
    (on_paper / TABLE).write_bytes(lines.tobytes())
    about = {"count": len(lines), "blocks": int(lines["blocks"].sum()), "crc32": f"{zlib.crc32(lines.tobytes()):08x}"}
    fields = {name: getattr(found.manifest, name) for name in ("tokenizer", "settings", "sources", "statistics")}
    (on_paper / MANIFEST).write_bytes(Manifest(shards=about, **fields).to_bytes())
    start = time.perf_counter()
    dataset = PreparedDataset.Config(path=str(on_paper), seq_len=SEQ_LEN, seed=0).build(tokenizer=TOKENIZER.build())
    seconds = time.perf_counter() - start
    assert len(PreparedData(str(on_paper))) == 256_000_000
    del dataset
    return [*rows, ("1,000,000 shards on paper (16 T tokens), opened", f"{seconds * 1e3:.0f} ms")]


def _first_batch(path: str) -> str:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        next(dovetail_batches(path))
        times.append(time.perf_counter() - start)
    return f"{statistics.median(times) * 1e3:.0f} ms"


def memory(file: Path, home: Path) -> list[tuple[str, str]]:
    """Measures what a preparation needs for a document of a gigabyte, and reading with 64 streams."""
    large = home / "large.txt"
    line = corpus_path("moby-dick").read_bytes()
    with large.open("wb") as out:
        for _ in range((1 << 30) // len(line) + 1):
            out.write(line)
    program = (
        "import sys\n"
        "from dovetail.data import *\n"
        "cfg = Preparation.Config(sources=[sys.argv[1]], tokenizer=ByteTokenizer.Config(), to=sys.argv[2], workers=0)\n"
        "peak = lambda: int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])\n"
        "base = peak()\n"
        "found = cfg.build().run().statistics\n"
        "assert found['documents'] == 1, found\n"
        "print(peak() - base)\n"
    )
    command = [sys.executable, "-c", program, large, home / "of-large"]
    used = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    large.unlink()
    return [("preparing one document of 1 GB, above the program itself", f"{used / 1024:.0f} MB")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", type=Path, help="encode this file, and nothing else")
    parser.add_argument("--streaming", type=Path, help="a Python that has MosaicML Streaming")
    parser.add_argument("--megatron", type=Path, help="a Python that has Megatron Core")
    args = parser.parse_args()
    if args.alone:
        tokenize_alone(args.alone)
        return
    home = Path(tempfile.mkdtemp())
    try:
        text = home / "text.jsonl"
        write_text(text, 60_000_000)
        header("Input", ("dovetail", "grain", "array_record", "tokenizers", "numpy"))
        prepared, path = preparation(text, home)
        print("Preparation of 60 MB of JSON Lines, BPE of 4,096 tokens; the start of the programs included.\n")
        table(("", "by the clock", "by processor time", "of the tokenizer alone"), prepared)
        records = home / "documents.array_record"
        write_array_record(path, records)
        print(f"Batches of {ROWS} rows of {SEQ_LEN:,} tokens, of two parts, shuffled and packed, in one process.\n")
        made: dict[str, Callable[[], Iterator[Any]]] = {
            "Dovetail": lambda: dovetail_batches(path),
            "Dovetail, best fit": lambda: dovetail_batches(path, packer=BestFitPacker.Config()),
            "Grain, ArrayRecord": lambda: grain_batches(records),
        }
        rows = rates(made)
        rows += others(path, home, args.streaming, args.megatron)
        table(("", "rows/s", "tokens/s", "first batch"), rows)
        table(("", ""), [*seek(path), *start_up(text, home), *memory(text, home)])
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    program(main)
