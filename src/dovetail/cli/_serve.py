# SPDX-License-Identifier: Apache-2.0
"""`dovetail serve RUN`: a trained model behind OpenAI's interface, with a page to chat on."""

import argparse
import contextlib
import gc
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.config import ConfigError, split_override

from ._resolve import Run, is_run
from ._use import load_run, start_run

if TYPE_CHECKING:
    from dovetail.hardware import Hardware
    from dovetail.serve import Engine
    from dovetail.serve.http import Serve
    from dovetail.train import Trainer

_KEY = "DOVETAIL_API_KEY"
_OWN = ("engine", "http", "serving")
_OVERRIDES = "of how it is served, as in serving.slots=8 or http.name=mine; and of the run"


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("run_directory", help="the directory of a run, or hf:DIRECTORY for a published model")
    parser.add_argument("overrides", nargs="*", default=[], metavar="PATH=VALUE", help=_OVERRIDES)
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; by default, for this machine alone")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    parser.add_argument(
        "--api-key-file", metavar="FILE", help=f"keys, one a line, that requests need; or set {_KEY} to one"
    )
    parser.set_defaults(run=_serve)


def _serve(args: argparse.Namespace) -> int:
    keys = _keys(args.api_key_file)
    _check_packages()
    own, others = split_serving(args.overrides)
    run = start_run(args.run_directory, others, None, args.mesh, args.on)
    if args.mesh is None and not any(split_override(text)[0].partition(".")[0] == "mesh" for text in others):
        run = run._replace(cfg=_on_serving_mesh(run.cfg, run.hardware))
    from dovetail.config import override
    from dovetail.ops import native_support
    from dovetail.serve import tokenizer_of
    from dovetail.serve.http import Serve, Served, address_of, open_socket, serve

    how = override(Serve(), own)
    how.http.check()
    how.serving.check()
    tokenizer = tokenizer_of(run.cfg, run.files)
    with open_socket(args.host, args.port, has_keys=bool(keys)) as opened:
        threading.Thread(target=native_support, daemon=True).start()  # A compiler may have to run, meanwhile.
        engine, step = _opened(run, how)
        name = how.http.name or _name(run.name)
        with engine:
            served = Served(engine, tokenizer, name=name, http=how.http, reload=_reload(run, engine, step))
            for use in engine.stats().kernels:
                print(f"kernel: {use}", flush=True)
            gc.collect()
            gc.freeze()  # What is there now stays: the collector need not look at it while tokens are waited for.
            with contextlib.closing(served):
                serve(served, opened, keys=keys, ready=lambda: _say_ready(name, address_of(opened)))
    return 0


def _on_serving_mesh(cfg: "Trainer.Config", hardware: "Hardware | None") -> "Trainer.Config":
    """Returns the config on a mesh that splits layers alone: another device along `data` would do the same again."""
    from dovetail.plan import serving_mesh

    mesh = serving_mesh(cfg, hardware).set(data=1, across_slices={})
    if mesh != cfg.mesh:
        print(f"Serving on mesh {mesh.text()}. --mesh chooses another.", file=sys.stderr)
    return cfg.set(mesh=mesh)


def _say_ready(name: str, address: str) -> None:
    print(f"Serving {name} at {address} (OpenAI's interface: {address}/v1)", flush=True)


def _opened(run: Run, how: "Serve") -> "tuple[Engine, int]":
    """Returns an engine, and the step of its parameters; as they were read, nobody keeps them."""
    from dovetail.serve import open_engine

    trained = load_run(run, None)
    return open_engine(trained, how.serving, how.engine), trained.step


def _reload(run: Run, engine: "Engine", now: int) -> Callable[[], int] | None:
    """Returns what has the newest parameters of a run served; a published model has no newer ones."""
    if not is_run(run.name):
        return None

    def reload() -> int:
        nonlocal now
        newest = load_run(run, None)
        if newest.step != now:
            engine.swap(newest.params)
            now = newest.step
        return now

    return reload


def split_serving(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the overrides of how to serve, and those of the run."""
    own = [text for text in overrides if split_override(text)[0].partition(".")[0] in _OWN]
    return own, [text for text in overrides if text not in own]


def _keys(file: str | None) -> list[str]:
    """Returns the keys of which a request must have one: never from the command line, which others can see."""
    if file is None:
        key = os.environ.get(_KEY, "").strip()
        return [key] if key else []
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"--api-key-file: {file!r} cannot be read: {why}.") from e
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise ConfigError(f"--api-key-file: {file!r} has no key in it. Write one to a line.")
    return found


def _check_packages() -> None:
    missing = [name for name in ("starlette", "uvicorn", "prometheus_client") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"a server needs {', '.join(missing)}: pip install 'dovetail[serve]'")


def _name(run: str) -> str:
    """Returns what a model is called, by where it is from."""
    return Path(run.removeprefix("hf:")).absolute().name
