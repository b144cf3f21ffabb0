# SPDX-License-Identifier: Apache-2.0
"""What a run has logged besides numbers: texts, tables, histograms and pictures, by name and step."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ._metrics import Seen
from ._records import Sample, number_in, record_of
from ._root import Root, parts_of, read
from ._summary import said

_MOST = 50  # In an answer.
_PICTURES, _HISTOGRAMS = 2_000, 200  # Steps, which are answered at once.
_LETTERS, _ROWS, _COLUMNS, _BINS = 100_000, 1_000, 100, 4_096
_CELL = 2_000  # Letters.
_PICTURE = 16 << 20  # Bytes.
_KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
_CUT = " ... (cut here: it is longer)"


def names_of(seen: Seen) -> dict[str, list[str]]:
    """Returns the names of what there is, by kind."""
    found: dict[str, dict[str, None]] = {kind: {} for kind in ("text", "picture", "table", "histogram")}
    for sample in seen.samples:
        for kind, name in sample.names:
            found[kind].setdefault(name)
    return {f"{kind}s": list(names) for kind, names in found.items()}


def _of(seen: Seen, kind: str, name: str) -> list[Sample]:
    """Returns samples by step. A step that was made again replaces what was; of texts only what is of the same step."""
    by_step: dict[int, Sample] = {}
    for sample in seen.samples:
        if (kind, name) in sample.names:
            if kind != "text":
                while by_step and next(reversed(by_step)) > sample.step:
                    by_step.popitem()
            by_step.pop(sample.step, None)
            by_step[sample.step] = sample
    return sorted(by_step.values(), key=lambda sample: sample.step)


def _newest(found: Sequence[Sample], before: int | None, most: int) -> tuple[list[Sample], bool]:
    older = [each for each in found if before is None or each.step < before]
    return older[::-1][:most], len(older) > most


def _read(file: int, sample: Sample) -> Mapping[str, Any]:
    return record_of(read(file, sample.offset, sample.length)) or {}


def texts(seen: Seen, file: int, name: str, before: int | None, most: int = _MOST) -> dict[str, Any]:
    """Returns texts, the newest first."""
    chosen, more = _newest(_of(seen, "text", name), before, most)
    found = [{"step": s.step, "time": s.time, "text": _short(_read(file, s).get(name), _LETTERS)} for s in chosen]
    return {"texts": found, "more": more}


def tables(seen: Seen, file: int, name: str, before: int | None, most: int = _MOST) -> dict[str, Any]:
    """Returns tables, the newest first."""
    chosen, more = _newest(_of(seen, "table", name), before, most)
    found: list[dict[str, Any]] = []
    for sample in chosen:
        table = _named(_read(file, sample).get("tables"), name)
        columns, rows = _list(table.get("columns")), _list(table.get("rows"))
        cut = f"{len(rows) - _ROWS:,} more rows are not shown." if len(rows) > _ROWS else None
        shown = [[_cell(value) for value in _list(row)[:_COLUMNS]] for row in rows[:_ROWS]]
        head = [_short(each, _CELL) for each in columns[:_COLUMNS]]
        found.append({"step": sample.step, "time": sample.time, "columns": head, "rows": shown} | _note(cut))
    return {"tables": found, "more": more}


def histograms(seen: Seen, file: int, name: str) -> dict[str, Any]:
    """Returns histograms by step; where there are many, as many as can be told apart."""
    samples = _of(seen, "histogram", name)
    every = -(-len(samples) // _HISTOGRAMS)
    found: list[dict[str, Any]] = []
    for sample in samples[:: max(1, every)]:
        histogram = _named(_read(file, sample).get("histograms"), name)
        edges = [number_in(each) for each in _list(histogram.get("edges"))]
        counts = [number_in(each) for each in _list(histogram.get("counts"))]
        if None not in edges and None not in counts and 0 < len(counts) <= _BINS and len(edges) == len(counts) + 1:
            found.append({"step": sample.step, "edges": list(map(said, edges)), "counts": list(map(said, counts))})
    return {"histograms": found}


def pictures(seen: Seen, file: int, name: str) -> dict[str, Any]:
    """Returns where pictures are, by step."""
    found: list[dict[str, Any]] = []
    for sample in _of(seen, "picture", name)[-_PICTURES:]:
        where = _record_names(_read(file, sample).get("pictures")).get(name)
        if isinstance(where, str):
            found.append({"step": sample.step, "time": sample.time, "file": where[:1000]})
    return {"pictures": found}


def picture(root: Root, run: str, file: str) -> tuple[str, bytes]:
    """Returns type and content of a picture of a run; an OSError or a ValueError if it is none.

    What it is, its first bytes say, and not its name.
    """
    parts = file.split("/")
    if parts[0] != "pictures" or len(file) > 1000:
        raise ValueError("Pictures of a run are in its directory pictures.")
    descriptor = root.open([*parts_of(run), *parts])
    try:
        if os.fstat(descriptor).st_size > _PICTURE:
            raise ValueError(f"The picture has more than {_PICTURE >> 20} MiB.")
        data = read(descriptor, 0, _PICTURE)
    finally:
        os.close(descriptor)
    for start, kind in _KINDS.items():
        if data.startswith(start):
            return kind, data
    raise ValueError("It is neither a PNG nor a JPEG.")


def _named(table: object, name: str) -> Mapping[str, Any]:
    found = _record_names(table).get(name)
    return found if isinstance(found, dict) else {}


def _record_names(table: object) -> Mapping[str, Any]:
    return table if isinstance(table, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _cell(value: object) -> Any:
    if value is None or isinstance(value, bool):
        return value
    number = number_in(value)
    return said(number) if number is not None and not isinstance(value, str) else _short(value, _CELL)


def _short(value: object, most: int) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= most else text[:most] + _CUT


def _note(text: str | None) -> dict[str, str]:
    return {"note": text} if text else {}
