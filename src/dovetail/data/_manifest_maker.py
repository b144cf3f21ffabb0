# SPDX-License-Identifier: Apache-2.0
"""The end of a preparation: what all units have made, put together, and the manifest that says that it is there."""

import dataclasses
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ._errors import DataError
from ._manifest import MANIFEST, ORIGIN, SHARD, TABLE, Manifest, read_manifest, shard_name
from ._places import Place
from ._shard import TOTALS, Counts
from ._tokenizer import Tokenizer
from ._unit_maker import record_name

_COMPARED = 1 << 25  # Documents whose digests are compared with each other: of more, a share that is chosen by digest.


def write_manifest(place: Place, plan: Mapping[str, Any], tokenizer: Tokenizer, units: int) -> Manifest:
    """Finishes prepared data. Several hosts may do this at once: they write the same."""
    records = _records(place, units)
    if records is None:  # Another host was faster.
        return read_manifest(place, place.where)
    counts = [Counts() for _ in plan["sources"]]
    lengths = Counter[int]()
    for record in records:
        for source, found in record["sources"].items():
            counts[int(source)].add(Counts(**found))
        lengths.update({int(bits): count for bits, count in record["lengths"].items()})
    table = _table(records)
    total = {name: sum(getattr(each, name) for each in counts) for name in TOTALS}
    if not total["documents"]:
        masked = f" All weights of {total['masked']:,} are 0, so that they teach nothing." if total["masked"] else ""
        files = ", ".join(each["file"] for each in plan["sources"])
        raise DataError(f"{files}: there is no document in all of it.{masked}")
    for name, content in tokenizer.files().items():
        place.write(f"tokenizer/{name}", content)
    place.write(TABLE, table.tobytes())
    files = {name: f"{zlib.crc32(content):08x}" for name, content in tokenizer.files().items()}
    crc = f"{zlib.crc32(table.tobytes()):08x}"
    manifest = Manifest(
        tokenizer={**plan["tokenizer"], "files": files},
        settings=dict(plan["settings"]),
        sources=[{**source, **dataclasses.asdict(each)} for source, each in zip(plan["sources"], counts, strict=True)],
        shards={"count": len(table), "blocks": int(table["blocks"].sum()), "crc32": crc},
        statistics={
            **total,
            "bytes": sum(source["bytes"] for source in plan["sources"]),
            "lengths": {str(bits): count for bits, count in sorted(lengths.items())},
            **_duplicates(place, table),
        },
    )
    place.write(MANIFEST, manifest.to_bytes())
    for name in place.names("work"):
        place.delete(f"work/{name}")
    place.clean()
    return manifest


def _records(place: Place, units: int) -> list[dict[str, Any]] | None:
    found = place.read_all([record_name(unit) for unit in range(units)])
    if any(data is None for data in found):
        if place.read(MANIFEST) is not None:
            return None
        missing = next(unit for unit, data in enumerate(found) if data is None)
        raise DataError(f"{place.named(record_name(missing))}: is missing. Run this again: it goes on where it was.")
    return [json.loads(data) for data in found if data is not None]


def _table(records: Sequence[Mapping[str, Any]]) -> np.ndarray:
    names = [name for name in SHARD.names or () if name not in ("unit", "part")]
    lines = [
        (unit, part, *(shard[name] for name in names))
        for unit, record in enumerate(records)
        for part, shard in enumerate(record["shards"])
    ]
    return np.array(lines, SHARD)


def _duplicates(place: Place, table: np.ndarray) -> dict[str, Any]:
    """Returns how many documents are like another one before, and the share of all that was looked at."""
    shift = max(int(table["documents"].sum()) // _COMPARED, 0).bit_length()
    found = [some[some >> np.uint64(64 - shift) == 0] if shift else some for some in _digests(place, table)]
    digests = np.sort(np.concatenate(found))
    return {"duplicates": int((digests[1:] == digests[:-1]).sum()) << shift, "compared": 1 / (1 << shift)}


def _digests(place: Place, table: np.ndarray) -> Iterator[np.ndarray]:
    for line in table:
        data = place.need(f"{shard_name(int(line['unit']), int(line['part']))}.origin")
        yield np.frombuffer(data, ORIGIN)["digest"].astype(np.uint64)
