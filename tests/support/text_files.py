# SPDX-License-Identifier: Apache-2.0
"""The same documents in files of each kind, in each place from which text is read."""

import gzip
import json
import os
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordWriter

from support.file_server import FileServer
from support.s3 import BUCKET, environment

SEPARATOR = "|"
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}
KINDS = ("jsonl", "ndjson", "json", "txt", "parquet", "arrow", "array_record", "saved")
CASES = (*KINDS, "jsonl.gz", "jsonl.zst", "txt.gz", "txt.zst", "arrow.gz")  # With how it is compressed.
PLACES = ("local", "http", "s3", "gs")


def files_of(case: str, texts: Sequence[str], scratch: Path) -> dict[str, bytes]:
    """Returns the files of a kind with these documents, by their names; a data set that was saved has a directory."""
    kind, _, packed = case.partition(".")
    if kind == "saved":
        return saved_dataset("dataset", texts)
    if kind == "txt":
        data = SEPARATOR.join(texts).encode()
    elif kind == "parquet":
        pq.write_table(pa.table({"n": range(len(texts)), "text": texts}), scratch / "made.parquet", row_group_size=7)
        data = (scratch / "made.parquet").read_bytes()
    elif kind == "arrow":
        data = arrow_stream(texts)
    elif kind == "array_record":
        writer = ArrayRecordWriter(str(scratch / "made.array_record"), "group_size:1")
        for text in texts:
            writer.write(text.encode())
        writer.close()
        data = (scratch / "made.array_record").read_bytes()
    else:
        data = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    return {f"a.{case}": PACK[packed](data) if packed else data}


def arrow_stream(texts: Sequence[str], *, rows: int = 7) -> bytes:
    """Returns a file of Arrow as `datasets` writes it: a stream of batches, its features in the schema."""
    features = {"text": {"dtype": "string", "_type": "Value"}, "n": {"dtype": "int64", "_type": "Value"}}
    schema = pa.schema(
        [("text", pa.string()), ("n", pa.int64())],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        table = pa.table({"text": pa.array(texts, pa.string()), "n": range(len(texts))}).cast(schema)
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def saved_dataset(directory: str, texts: Sequence[str], *, shards: int = 2) -> dict[str, bytes]:
    """Returns the files of `Dataset.save_to_disk(directory, num_shards=shards)`, as datasets 5.2 writes them."""
    names = [f"data-{shard:05d}-of-{shards:05d}.arrow" for shard in range(shards)]
    ends = [len(texts) * shard // shards for shard in range(shards + 1)]
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "ff0c7da7c830f54f",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    features = {"text": {"dtype": "string", "_type": "Value"}, "n": {"dtype": "int64", "_type": "Value"}}
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    files = {name: arrow_stream(texts[ends[i] : ends[i + 1]]) for i, name in enumerate(names)}
    files |= {"state.json": json.dumps(state, indent=2).encode(), "dataset_info.json": json.dumps(info).encode()}
    return {f"{directory}/{name}": data for name, data in files.items()}


def saved_splits(directory: str, splits: dict[str, Sequence[str]]) -> dict[str, bytes]:
    """Returns the files of `DatasetDict.save_to_disk(directory)`."""
    files = {f"{directory}/dataset_dict.json": json.dumps({"splits": list(splits)}).encode()}
    for name, texts in splits.items():
        files |= saved_dataset(f"{directory}/{name}", texts, shards=1)
    return files


class TextPlace:
    """A place for files of a test: `put` writes some, and `at` is what to call one."""

    def __init__(self, kind: str, scratch: Path, server: FileServer, endpoint: str) -> None:
        self._kind, self._server, self._endpoint = kind, server, endpoint
        self._base = {
            "local": str(scratch),
            "http": server.url,
            **{scheme: f"{scheme}://{BUCKET}/{uuid.uuid4().hex[:8]}" for scheme in ("s3", "gs")},
        }[kind]

    def put(self, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            if self._kind == "local":
                path = Path(self._base, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            elif self._kind == "http":
                self._server.put(name, data)
            else:
                put_object(self._endpoint, f"{self._base.partition('://')[2]}/{name}", data)

    def at(self, name: str) -> str:
        return f"{self._base}/{name}"

    def case(self, case: str, texts: Sequence[str], scratch: Path) -> str:
        """Writes documents as files of a kind, and returns what names them."""
        files = files_of(case, texts, scratch)
        self.put(files)
        return self.at("dataset" if case == "saved" else next(iter(files)))


def put_object(endpoint: str, name: str, data: bytes, *, readers: str = "public-read") -> None:
    """Writes an object, by its bucket and key. Google's keys are not those of S3: all may read it."""
    headers = {"Content-Type": "application/octet-stream", "x-amz-acl": readers}
    with urllib.request.urlopen(
        urllib.request.Request(f"{endpoint}/{quote(name)}", data, headers, method="PUT"), timeout=60
    ):
        pass


def object_stores(endpoint: str) -> dict[str, str]:
    """Returns the environment in which one server is S3 and Google's store."""
    cleared = {name: "" for name in os.environ if name.startswith("AWS_")}
    return {**cleared, **environment(endpoint), "STORAGE_EMULATOR_HOST": endpoint, "GOOGLE_APPLICATION_CREDENTIALS": ""}
