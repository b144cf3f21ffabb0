# SPDX-License-Identifier: Apache-2.0
"""`dovetail data prepare|show|check|stats`: data that is tokenised once."""

import argparse
import json
import sys
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config import ConfigError
from dovetail.progress import phase

from ._data_prepare import add_prepare
from ._table import printable, short, table

if TYPE_CHECKING:
    from dovetail.data import PreparedData, Row, Tokenizer

_PREPARE = "Tokenise files: run again, or on more hosts, it goes on with what is left."
_SHOW = "Print rows as they are trained: documents in colours, what does not count in grey, other weights as numbers."
_CHECK = "Read all of it, and name what is not as it was written; exit 1 if something is not."
_STATS = "Print how much there is by source, how long documents are, duplicates and empty ones."
_COLOURS = ("36", "33", "32", "35", "34", "31")
_BAR = 40  # Characters of the longest bar of a plot.


def add_data(parser: argparse.ArgumentParser) -> None:
    """Adds what can be done with data to the parser of `dovetail data`."""
    names = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, run: Any, text: str, more: str = "") -> argparse.ArgumentParser:
        added = names.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        added.add_argument("place", metavar="PLACE", help=f"a directory, or s3://BUCKET/NAME or gs://BUCKET/NAME{more}")
        added.add_argument("--json", action="store_true", help="print JSON")
        return added

    add_prepare(names.add_parser("prepare", help=_PREPARE, description=_PREPARE))
    show = action("show", _show, _SHOW, "; or a recipe, or a run, for the rows that it is trained on")
    of_what = "as in seq_len=64 or shuffle=False; of a recipe, as for train"
    show.add_argument("overrides", nargs="*", default=[], metavar="PATH=VALUE", help=of_what)
    show.add_argument("--rows", type=int, default=3, help="how many; 3 by default")
    action("check", _check, _CHECK)
    action("stats", _stats, _STATS)


def _show(args: argparse.Namespace) -> int:
    rows, tokenizer = _of_prepared(args) if _is_prepared(args.place) else _of_run(args)
    if args.json:
        print(json.dumps([_row_json(row, tokenizer) for row in rows], indent=1))
        return 0
    for number, row in enumerate(rows):
        print(f"row {number}: {_counts(row)}")
        for which, line in enumerate(_sequences(row), 1):
            if row["tokens"].ndim > 1:
                print(f"  sequence {which}: {_counts(line)}")
            for segment in range(1, int(line["segments"].max()) + 1):
                print(_piece(line, segment, tokenizer, sys.stdout.isatty()))
    return 0


def _is_prepared(place: str) -> bool:
    """Whether a name is that of prepared data, or of nothing else either: then it is missing."""
    from ._resolve import is_run

    return "://" in place or (Path(place).is_dir() and not is_run(place))


def _of_prepared(args: argparse.Namespace) -> "tuple[list[Row], Tokenizer]":
    from dovetail.config import override
    from dovetail.data import GroupPacker, PreparedData, PreparedDataset

    data = PreparedData(args.place, "data show")
    tokenizer, group = data.tokenizer(), data.manifest.group
    cfg = PreparedDataset.Config(path=args.place, seq_len=128, seed=0)
    cfg = cfg.set(packer=GroupPacker.Config(size=group)) if group > 1 else cfg
    dataset: PreparedDataset = override(cfg, args.overrides).build(path="data show", tokenizer=tokenizer)
    return [row for row, _ in islice(dataset.rows(0, 1, None), args.rows)], tokenizer


def _of_run(args: argparse.Namespace) -> "tuple[list[Row], Tokenizer]":
    """Returns the first rows that a recipe, or a run, is trained on."""
    from ._resolve import check, is_run, resolve

    if not is_run(args.place):
        try:
            check(args.place, args.overrides, None)
        except ConfigError as e:
            raise ConfigError(f"data show: there is no prepared data at {args.place}, and {e}") from None
    run = resolve(args.place, args.overrides)
    from dovetail.data import TextInput

    cfg = run.cfg.input
    if not isinstance(cfg, TextInput.Config):
        raise ConfigError(
            f"data show: the input of {args.place} is {type(cfg).__qualname__}, which has no rows of text."
        )
    found: list[Row] = []
    with (made := cfg.set(num_workers=0, prefetch=0).build(path="input", files=run.files)).iterator() as batches:
        while len(found) < args.rows and (batch := next(batches, None)) is not None:
            found += [{name: values[i] for name, values in batch.items()} for i in range(len(batch["tokens"]))]
    return found[: args.rows], made.tokenizer


def _counts(row: "Row") -> str:
    padding, targets = int((row["segments"] == 0).sum()), int((row["weights"] > 0).sum())
    what = f"a group of {len(row['tokens'])} sequences"
    if row["tokens"].ndim == 1:
        what = f"{int(row['segments'].max()):,} pieces of documents"
    return f"{what}, {targets:,} targets, {padding:,} padding"


def _sequences(row: "Row") -> "list[Row]":
    """Returns the sequences of a row, which is a group of them, or one."""
    if row["tokens"].ndim == 1:
        return [row]
    return [{name: values[i] for name, values in row.items()} for i in range(len(row["tokens"]))]


def _piece(row: "Row", segment: int, tokenizer: "Tokenizer", colours: bool) -> str:
    """Returns a piece of a document in a line.

    On a terminal it is in its colour, and grey where a token does not count as a target. Other weights than 1 are
    numbers before what they are of, on a terminal without those that are 0.
    """
    inside = row["segments"] == segment
    ids, weights = row["tokens"][inside], row["weights"][inside]
    pad_id = 0 if tokenizer.pad_id is None else tokenizer.pad_id
    ends = not weights[-1] and row["targets"][inside][-1] == pad_id  # The last token predicts nothing.
    own = [*weights[: 1 if len(ids) > 1 else 0], *weights[:-1]] or [1.0]  # The first one is shown like the second.
    cuts = [0, *(i for i in range(1, len(ids)) if own[i] != own[i - 1]), len(ids)]
    marked = any(weight != 1 for weight in own)
    shown = ""
    for start, stop in pairwise(cuts):
        text = printable(json.dumps(tokenizer.decode(ids[start:stop]), ensure_ascii=False)[1:-1])
        weight, colour = own[start], _COLOURS[segment % len(_COLOURS)]
        if not colours:
            shown += f"[{weight:g}]{text}" if marked else text
        elif weight:
            shown += f"\x1b[{colour}m{text}\x1b[0m" if weight == 1 else f"[{weight:g}]\x1b[{colour}m{text}\x1b[0m"
        else:
            shown += f"\x1b[90m{text}\x1b[0m"
    end = ("\x1b[90m |\x1b[0m" if colours else " |") if ends else ""
    return f"  {segment:>3} {shown}{end}"


def _row_json(row: "Row", tokenizer: "Tokenizer") -> dict[str, Any]:
    pieces = [
        [tokenizer.decode(line["tokens"][line["segments"] == n]) for n in range(1, int(line["segments"].max()) + 1)]
        for line in _sequences(row)
    ]
    found = pieces[0] if row["tokens"].ndim == 1 else pieces
    return {**{name: values.tolist() for name, values in row.items()}, "pieces": found}


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
    group = data.manifest.group
    lines = [
        f"{found['tokens']:,} tokens of {tokenizer['name']} ({tokenizer['vocab_size']:,}), {found['documents']:,} "
        f"{f'groups of {group}' if group > 1 else 'documents'} in {len(data.shards):,} shards",
        f"{found['duplicates']:,} {'sequences ' if group > 1 else ''}are like another before{about}; "
        f"{found['empty']:,} were empty, and left out; {found['cut']:,} are long, and were tokenised in pieces",
    ]
    if data.shards["weighted"].any() or found.get("masked"):
        lines.append(f"some tokens have weights; {found['masked']:,} have none that counts, and were left out")
    if found.get("split"):
        longest = data.manifest.settings["max_document_tokens"]
        lines.append(f"{found['split']:,} are longer than {longest:,} tokens, and are there in parts")
    return "\n".join(lines)


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
