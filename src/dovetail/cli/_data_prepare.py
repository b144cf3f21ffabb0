# SPDX-License-Identifier: Apache-2.0
"""`dovetail data prepare SOURCE... --tokenizer T --to PLACE`: parse, run, report."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.config import ConfigError

from ._text import names_a_file

if TYPE_CHECKING:
    from dovetail.data import Tokenizer

_TOKENIZER = "bytes, a tokenizer.json or its directory, a SentencePiece model, or a recipe or run, whose own it is"
_OVERRIDES = "of how it is done, as in field=body or tokenizer.eos_token='</s>'"


def add_prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="files, globs or URLs: .jsonl, .parquet, .arrow, .array_record, text",
    )
    parser.add_argument("--tokenizer", required=True, metavar="TOKENIZER", help=_TOKENIZER)
    parser.add_argument("--to", required=True, metavar="PLACE", help="a directory, or s3://BUCKET/NAME or gs://...")
    parser.add_argument("overrides", nargs="*", default=[], metavar="PATH=VALUE", help=_OVERRIDES)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_prepare)


def _prepare(args: argparse.Namespace) -> int:
    overrides = [text for text in args.sources if not names_a_file(text)]
    sources = [text for text in args.sources if text not in overrides]
    tokenizer = _tokenizer(args.tokenizer)  # First: it may need what takes a while to import.
    from dovetail.config import override
    from dovetail.data import Preparation

    cfg = Preparation.Config(sources=sources, tokenizer=tokenizer, to=args.to)
    made = override(cfg, [*overrides, *args.overrides]).build(path="data prepare")
    manifest = made.run()
    found = manifest.statistics
    if args.json:
        print(json.dumps({**found, "to": args.to, "shards": manifest.shards}, indent=1))
        return 0
    kind = f"groups of {manifest.group}" if manifest.group > 1 else "documents"
    print(f"{found['tokens']:,} tokens, {found['documents']:,} {kind}, {manifest.shards['count']:,} shards: {args.to}")
    if found["masked"]:
        print(f"{found['masked']:,} more were left out: all their weights are 0, so that they teach nothing.")
    print(f"Train on it: dovetail train RECIPE --data {args.to}")
    return 0


def _tokenizer(name: str) -> "Tokenizer.Config":
    """Returns the tokenizer that a user names."""
    path = Path(name)
    if name == "bytes":
        from dovetail.data import ByteTokenizer

        return ByteTokenizer.Config()
    if path.is_dir() and (path / "tokenizer.json").is_file():
        path = path / "tokenizer.json"
    if path.is_file() and path.suffix == ".model":
        from dovetail.data import SentencePieceTokenizer

        return SentencePieceTokenizer.Config(file=str(path))
    if path.is_file() and path.suffix == ".json":
        from dovetail.data import HuggingFaceTokenizer

        return HuggingFaceTokenizer.Config(file=str(path))
    if path.is_file():
        raise ConfigError(f"--tokenizer: {name!r} is neither a tokenizer.json nor a SentencePiece model (.model).")
    from ._resolve import resolve

    try:
        cfg = resolve(name).cfg.input
    except ConfigError as e:
        raise ConfigError(f"--tokenizer: {name!r} is no file, and {e}") from None
    found = getattr(cfg, "tokenizer", None)
    if found is None:
        raise ConfigError(f"--tokenizer: {name} has none of its own: name a tokenizer.json, or 'bytes'.")
    return found
