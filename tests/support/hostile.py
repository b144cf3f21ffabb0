# SPDX-License-Identifier: Apache-2.0
"""Config files that mean harm, made from good ones, and a watch over what reading and building them touches.

`python -m support.hostile SEED CASES` reads and builds that many files. It prints what went wrong, and fails if
something did: an error other than ConfigError from `from_json`, or anything outside this process that was touched.
"""

import copy
import json
import os
import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FUNCTION = "dovetail.config:FunctionConfig"
# What would do harm if a config that is built could call it; none is on the list of harmless functions.
HARMFUL = [
    "builtins:eval", "builtins:open", "os:system", "subprocess:Popen", "pickle:loads", "shutil:rmtree", "socket:socket",
    "numpy:load", "numpy:loadtxt", "numpy:genfromtxt", "numpy:fromfile", "numpy:fromregex", "numpy:memmap",
    "numpy:save", "numpy:savez", "numpy:savetxt", "numpy:ndarray.tofile", "numpy:ndarray.dump", "numpy:frombuffer",
    "numpy.ctypeslib:load_library", "numpy.f2py:compile", "numpy.f2py:run_main", "numpy.testing:rundocs",
    "numpy:vectorize", "numpy:apply_along_axis", "numpy:fromfunction", "numpy:piecewise", "numpy:show_config",
    "jax.numpy:load", "jax.numpy:save", "jax.numpy:fromfile", "jax.numpy:fromfunction", "jax.numpy:vectorize",
    "jax:pure_callback", "jax:jit", "jax:named_call", "jax:clear_caches", "jax:eval_shape", "jax:make_jaxpr",
    "jax.experimental:io_callback", "jax.debug:callback", "jax.debug:breakpoint", "jax.debug:print",
    "jax.distributed:initialize", "jax.profiler:start_server", "jax.profiler:start_trace", "jax.profiler:trace",
    "jax.profiler:save_device_memory_profile", "jax.export:deserialize", "jax.export:export",
    "jax.tree_util:tree_map", "jax.tree_util:Partial", "jax.lax:map", "jax.nn:one_hot", "optax:apply_updates",
    "dovetail.config:from_json", "dovetail.config:config_for", "dovetail.config:override", "dovetail.cli:main",
    "dovetail.checkpoint:load_config", "dovetail.checkpoint:load_files", "dovetail.data:corpus_path",
    "dovetail.data:source_of", "dovetail.zoo:recipe", "dovetail.hardware:start_devices", "dovetail.train:Trained.load",
    "dovetail.module:init", "dovetail.ops:note_choice", "jax.ffi:register_ffi_target",
]  # fmt: skip
_NUMBERS = [0, -1, 3, 70, 0.5, -0.0, 10**400, float("nan"), float("inf"), True, None, 2**63]
_TEXTS = [
    "",
    "/etc/passwd",
    "../../x",
    "file:" + "///etc/passwd",  # In two parts: no file names an index of packages.
    "http://localhost:1/",
    "$config",
    "\ud800",
    "mlp",
    "a.b[0]",
]
_PARTS = [
    {"$config": "dovetail.data:JsonLines.Config", "files": ["/etc/passwd"]},
    {"$config": "dovetail.data:HuggingFaceTokenizer.Config", "file": "/etc/passwd"},
    {"$config": "dovetail.train:Trainer.Config", "directory": "/tmp/harm"},
    {"$config": "dovetail.train:TensorBoard.Config"},
    {"$config": "dovetail.checkpoint:Checkpointer.Config", "directory": "/tmp/harm"},
    {"$config": "dovetail.nn:RMSNorm.Config"},
    {"$config": "dovetail.config:Component.Config"},
    {"$config": FUNCTION},
    {"$explicit": "dim"},
    {"$marker": "REQUIRED"},
    {"$marker": "DEFAULT"},
    {"$dtype": "float33"},
    {"$float": "1e999"},
    {"$tuple": [1, "a"]},
    {"$set": [1, True]},
    {"$dict": [[1, 2], [1, 3]]},
]


def ways_to_name(path: str) -> list[Any]:
    """Returns a value for every tag that takes an import path."""
    return [
        {"$import": path},
        {"$config": path},
        {"$config": FUNCTION, "$of": path},
        {"$config": path, "$of": path},
        {"$partial": {"$import": path}, "args": [], "keywords": {}},
        {"$enum": path, "name": "A"},
        {"$dict": [[{"$import": path}, 1]]},
        {"$set": [{"$import": path}]},
        {"$tuple": [{"$import": path}]},
    ]


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yields `(container, key)` of everything in JSON data."""
    for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        yield data, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def _hostile(draw: random.Random, functions: list[str]) -> Any:
    """Returns a value of a kind that a file should not, or not here, have."""
    call = {"$config": FUNCTION, "$of": draw.choice(functions)}
    arguments = ["x", "y", "activation", "init_value", "scale", "inner", "args", "learning_rate", "schedules"]
    call |= {draw.choice(arguments): draw.choice([*_TEXTS, *_NUMBERS, *_PARTS, {"$import": draw.choice(functions)}])}
    harmful = draw.choice(ways_to_name(draw.choice(HARMFUL)))
    pool = [
        draw.choice(_NUMBERS),
        draw.choice(_TEXTS),
        draw.choice(_PARTS),
        harmful,
        call,
        [draw.choice(_PARTS)],
        [],
        {},
    ]
    return copy.deepcopy(draw.choice(pool))


def mutated(data: Any, draw: random.Random, functions: list[str]) -> str:
    """Returns the text of a file that differs from a good one in one to three places."""
    data = copy.deepcopy(data)
    for _ in range(draw.randint(1, 3)):
        where, key = draw.choice(list(_places(data)))
        tags = [place for place in _places(data) if place[1] in ("$of", "$import", "$config", "$explicit")]
        match draw.randrange(6):
            case 0 if tags:
                where, key = draw.choice(tags)
                where[key] = draw.choice([draw.choice(HARMFUL), draw.choice(functions), "a:b", 3, ["dim"], None])
            case 1:
                del where[key]
            case 2 if isinstance(where, dict):
                where[draw.choice(["$x", "$of", "$tuple", "dim", "set", "__class__"])] = where.pop(key)
            case 3:
                other, its = draw.choice(list(_places(data)))
                where[key] = copy.deepcopy(other[its])
            case _:
                where[key] = _hostile(draw, functions)
    text = json.dumps(data)
    if draw.random() < 0.05:
        text = text.replace('"$config"', '"dim": 3, "dim": 4, "$config"', 1)
    return text


class Watch:
    """Notes what code does outside of its process, from when it is armed."""

    _NEVER = (
        "os.", "shutil.", "subprocess.", "socket.", "pickle.", "tempfile.", "urllib.", "ftplib.", "smtplib.", "pty.",
        "ctypes.dlopen", "mmap.", "glob.", "webbrowser.", "code.", "ensurepip.", "sqlite3.", "syslog.",
    )  # fmt: skip
    _IMPORTS = ("os.listdir", "os.scandir", "os.putenv", "os.unsetenv")  # Finding a module lists its directory.

    def __init__(self) -> None:
        self.armed = False
        self.seen: list[str] = []
        paths = {sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
        self._code = tuple(str(Path(path).resolve()) for path in {*paths, *filter(None, sys.path)})
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event == "open":
            if not os.path.realpath(str(args[0])).startswith(self._code) or (
                isinstance(args[1], str) and set(args[1]) & set("wax+")
            ):
                self.seen.append(f"open {args[0]!r} {args[1]!r}")
        elif event.startswith(self._NEVER) and event not in self._IMPORTS:
            self.seen.append(f"{event} {args!r}")


def _build(cfg: Any) -> None:
    """Builds what a command builds of a foreign run before it trains: the model and the learner; or a function."""
    from dovetail.config import FunctionConfig
    from dovetail.module import Module, specs

    if isinstance(cfg, FunctionConfig | Module.Config):
        cfg.build()
    elif hasattr(cfg, "model"):
        cfg.learner.build(specs=specs(cfg.model.build(path="model")), steps=10)


def main(seed: int, cases: int) -> int:
    """Reads and builds hostile files, and returns whether anything was wrong."""
    import optax

    from dovetail.config import ConfigError, config_for, from_json, to_json
    from dovetail.config._harmless import FUNCTIONS
    from dovetail.config._importing import import_object
    from dovetail.zoo import model, recipe

    schedule = config_for(optax.warmup_cosine_decay_schedule, 0.0, 1.0, 10, 100)
    chained = config_for(optax.chain, config_for(optax.clip, 1.0), config_for(optax.adamw, schedule))
    good = [recipe("gpt2-tiny"), model("gpt-oss-tiny"), chained]
    for cfg in good:
        _build(cfg)
    files = [json.loads(to_json(cfg)) for cfg in good]
    watch, draw, functions = Watch(), random.Random(seed), sorted(FUNCTIONS)
    wrong: list[str] = []
    counts = {"refused": 0, "read": 0, "built": 0}
    for _ in range(cases):
        text = mutated(draw.choice(files), draw, functions)
        watch.armed = True
        try:
            cfg = from_json(text)
            counts["read"] += 1
        except ConfigError:
            counts["refused"] += 1
            continue
        except BaseException as e:
            wrong.append(f"from_json raised {e!r} for {text}")
            continue
        finally:
            watch.armed = False
        watch.armed = True
        try:
            _build(cfg)
            counts["built"] += 1
        except Exception:  # What cannot be built may say so as it likes.
            pass
        finally:
            watch.armed = False
        if watch.seen:
            wrong.append(f"touched {watch.seen} by {text}")
            watch.seen.clear()
    for path in functions:  # The name of a file is the worst that they can be given.
        watch.armed = True
        try:
            import_object(path)("/etc/passwd")
        except Exception:
            pass
        finally:
            watch.armed = False
        if watch.seen:
            wrong.append(f"{path} touched {watch.seen}")
            watch.seen.clear()
    watch.armed = True
    with open("/dev/null"):
        pass
    watch.armed = False
    if not watch.seen:
        wrong.append("the watch sees nothing")
    print(f"seed {seed}", counts, *wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
