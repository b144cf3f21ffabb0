# SPDX-License-Identifier: Apache-2.0
"""`dovetail board [DIR]`: a local web page over the runs in a directory; `--json` and `--export` without a server."""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.config import ConfigError

if TYPE_CHECKING:
    from dovetail.board import Runs


def add_board(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    where = "where runs are: a directory, at any depth, or s3://BUCKET/PATH or gs://BUCKET/PATH; by default, runs"
    parser.add_argument("place", nargs="?", default=None, metavar="DIR", help=where)
    parser.add_argument("runs", nargs="*", default=[], metavar="RUN", help="with --export: which; by default, all")
    parser.add_argument("--port", type=int, default=None, help="by default 8686; 0: any that is free")
    parser.add_argument("--host", default="127.0.0.1", help="whom to listen to; all but this machine need a token")
    parser.add_argument("--token", help="what others must know; better in DOVETAIL_BOARD_TOKEN: all users see commands")
    parser.add_argument("--export", metavar="FILE.html", help="write one HTML file of the runs, and end")
    parser.set_defaults(run=_board)


def _board(args: argparse.Namespace) -> int:
    place = args.place or ("runs" if Path("runs").is_dir() else ".")
    if args.runs and not args.export:
        raise ConfigError(f"board: {args.runs[0]!r} is one too many. RUN is for --export; the page ticks runs itself.")
    runs = _runs(place)
    try:
        if args.export:
            return _export(runs, args)
        if args.json:
            return _list(runs)
        return _serve(runs, args)
    finally:
        runs.close()


def _runs(place: str) -> "Runs":
    from dovetail.board import BucketRuns, DirectoryRuns

    return BucketRuns(place) if "://" in place else DirectoryRuns(Path(place))


def _list(runs: "Runs") -> int:
    from dovetail.board import Api

    print(json.dumps(Api(runs).listed(), indent=2))
    return 0


def _export(runs: "Runs", args: argparse.Namespace) -> int:
    from dovetail.board import Refused, export, named

    try:
        known = {each["id"]: each for each in runs.listed()["runs"]}
        data = export(runs, named(known, args.runs) if args.runs else list(known))
        Path(args.export).write_bytes(data)
    except Refused as e:
        raise ConfigError(f"board: {e}") from e
    except OSError as e:
        raise ConfigError(f"board: {args.export!r} cannot be written: {e.strerror}.") from e
    if args.json:
        print(json.dumps({"file": args.export, "bytes": len(data)}))
    else:
        print(f"{args.export} has {len(data) / 1e6:.1f} MB. It opens in a browser, without a server.")
    return 0


def _serve(runs: "Runs", args: argparse.Namespace) -> int:
    from dovetail.board import PORT, TOKEN, Board

    token = args.token or os.environ.get(TOKEN) or None
    with _asked_to_end() as ended:
        port = PORT if args.port is None else args.port
        with Board(runs, host=args.host, port=port, token=token) as board:
            shown = f"{board.url}?token=TOKEN (yours in place of TOKEN)" if token else board.url
            print(f"Board of {runs.where}: {shown}", flush=True)
            ended.wait()
    sys.stdout.flush()
    return 0


@contextmanager
def _asked_to_end() -> Iterator[threading.Event]:
    """Yields what is set by Ctrl-C, or when the process is asked to end; one that ignores Ctrl-C goes on to."""
    ended = threading.Event()
    signals = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, lambda *_: ended.set()) for each in signals}
    try:
        yield ended
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
