# SPDX-License-Identifier: Apache-2.0
"""`dovetail data prepare|show|check|stats`: data that is tokenised once."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from dovetail.progress import phase

from ._data_prepare import add_prepare
from ._table import printable, short, table

if TYPE_CHECKING:
    import numpy as np

    from dovetail.data import PreparedData, Row, Tokenizer

_PREPARE = "Tokenise files: run again, or on more hosts, it goes on with what is left."
_SHOW = "Print rows as they are trained: documents in colours, what does not count in grey."
_CHECK = "Read all of it, and name what is not as it was written; exit 1 if something is not."
_STATS = "Print how much there is by source, how long documents are, duplicates and empty ones."
_COLOURS = ("36", "33", "32", "35", "34", "31")
_BAR = 40  # Characters of the longest bar of a plot.


def add_data(parser: argparse.ArgumentParser) -> None:
    """Adds what can be done with data to the parser of `dovetail data`."""
    names = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        added = names.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        added.add_argument("place", metavar="PLACE", help="a directory, or s3://BUCKET/NAME or gs://BUCKET/NAME")
        added.add_argument("--json", action="store_true", help="print JSON")
        return added

    add_prepare(names.add_parser("prepare", help=_PREPARE, description=_PREPARE))
    show = action("show", _show, _SHOW)
    show.add_argument(
        "overrides", nargs="*", default=[], metavar="PATH=VALUE", help="as in seq_len=64 or shuffle=False"
    )
    show.add_argument("--rows", type=int, default=3, help="how many; 3 by default")
    action("check", _check, _CHECK)
    action("stats", _stats, _STATS)


def _show(args: argparse.Namespace) -> int:
    from itertools import islice

    from dovetail.config import override
    from dovetail.data import PreparedData, PreparedDataset

    tokenizer = PreparedData(args.place, "data show").tokenizer()
    cfg = override(PreparedDataset.Config(path=args.place, seq_len=128, seed=0), args.overrides)
    dataset: PreparedDataset = cfg.build(path="data show", tokenizer=tokenizer)
    rows = [row for row, _ in islice(dataset.rows(0, 1, None), args.rows)]
    if args.json:
        print(json.dumps([_row_json(row, tokenizer) for row in rows], indent=1))
        return 0
    for number, row in enumerate(rows):
        padding = int((row["segments"] == 0).sum())
        count = int(row["segments"].max())
        print(
            f"row {number}: {count:,} pieces of documents, {int(row['weights'].sum()):,} targets, {padding:,} padding"
        )
        for segment in range(1, count + 1):
            print(_piece(row, segment, tokenizer, sys.stdout.isatty()))
    return 0


def _piece(row: "Row", segment: int, tokenizer: "Tokenizer", colours: bool) -> str:
    """Returns a piece of a document in a line: of a terminal, in its colour, and grey from what counts for nothing."""
    inside = row["segments"] == segment
    ids, weights = row["tokens"][inside], row["weights"][inside]
    ends = "" if weights[-1] else " |"  # The last token predicts nothing.
    text = json.dumps(tokenizer.decode(ids), ensure_ascii=False)[1:-1]
    if not colours:
        return f"  {segment:>3} {printable(text)}{ends}"
    return f"  {segment:>3} \x1b[{_COLOURS[segment % len(_COLOURS)]}m{printable(text)}\x1b[0m\x1b[90m{ends}\x1b[0m"


def _row_json(row: "Row", tokenizer: "Tokenizer") -> dict[str, Any]:
    segments: np.ndarray = row["segments"]
    pieces = [tokenizer.decode(row["tokens"][segments == n]) for n in range(1, int(segments.max()) + 1)]
    return {**{name: values.tolist() for name, values in row.items()}, "pieces": pieces}


def _check(args: argparse.Namespace) -> int:
    from dovetail.data import PreparedData

    data = PreparedData(args.place, "data check")
    data.tokenizer()
    problems: list[str] = []
    with phase("checking", len(data.shards), unit="shards") as at:
        for _, found in data.problems():
            problems += found
            at.advance()
    if args.json:
        print(json.dumps({"shards": len(data.shards), "blocks": len(data), "problems": problems}, indent=1))
    else:
        print(
            "\n".join(map(printable, problems))
            or f"{len(data):,} blocks in {len(data.shards):,} shards are as written."
        )
    return 1 if problems else 0


def _stats(args: argparse.Namespace) -> int:
    from dovetail.data import PreparedData

    data = PreparedData(args.place, "data stats")
    manifest, found = data.manifest, data.manifest.statistics
    if args.json:
        about = {name: value for name, value in manifest.tokenizer.items() if name in ("name", "vocab_size")}
        print(
            json.dumps({**found, "shards": manifest.shards, "sources": manifest.sources, "tokenizer": about}, indent=1)
        )
        return 0
    print(_summary(data))
    head = ("source", "bytes", "documents", "tokens", "empty", "bytes a token")
    rows = [
        (each["file"], each["bytes"], each["documents"], each["tokens"], each["empty"], _ratio(each))
        for each in manifest.sources
    ]
    print(f"\n{printable(table(head, rows))}\n")
    print(_plot({int(bits): count for bits, count in found["lengths"].items()}))
    return 0


def _summary(data: "PreparedData") -> str:
    found, tokenizer = data.manifest.statistics, data.manifest.tokenizer
    about = "" if found["compared"] == 1 else f", estimated from {found['compared']:.2%} of them"
    return (
        f"{found['tokens']:,} tokens of {tokenizer['name']} ({tokenizer['vocab_size']:,}), {found['documents']:,} "
        f"documents in {len(data.shards):,} shards\n"
        f"{found['duplicates']:,} are like another before{about}; {found['empty']:,} were empty, and left out; "
        f"{found['cut']:,} are long, and were tokenised in pieces"
    )


def _ratio(source: Any) -> str:
    return f"{source['bytes'] / source['tokens']:.2f}" if source["tokens"] else "-"


def _plot(lengths: dict[int, int]) -> str:
    """Returns how many documents have how many tokens, as bars."""
    most = max(lengths.values())
    lines = ["tokens a document"]
    for bits in range(min(lengths), max(lengths) + 1):
        count = lengths.get(bits, 0)
        bar = "#" * max(round(_BAR * count / most), 1 if count else 0)
        lines.append(f"{short(1 << (bits - 1)):>6} and more  {short(count):>6}  {bar}".rstrip())
    return "\n".join(lines)
