# SPDX-License-Identifier: Apache-2.0
"""The contract of sharding: on every mesh of eight devices, the loss and the gradients are those of one device.

`python tools/sharding.py` tries every way to spread eight devices over the axes that apply, for each kind of model, and
writes each mesh with its worst error to benchmarks/results/sharding_<kind>.md, as it goes: it takes an hour or two.
`--kinds moe --meshes data=2,expert=4` tries some of them, and writes nothing. Tests try a few.

`--random 300 --seed 1` tries that many random cases (recipe, mesh, dtype, remat, accumulation, lengths, pipeline, kind
of attention), each in a process of its own, since a compiler or a runtime that aborts is one of the things to find. One
in four is compiled as users compile, the others without most optimizations. They are written to
benchmarks/results/sharding_random.md, as it goes. `--busy 2` keeps so many processes busy beside them: devices then
come to their meetings late. `--random 1 --first 17 --here` tries case 17 in this process, to look into it.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # Before JAX starts. Tests have settings of their own.
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
    os.environ.setdefault("PJRT_NPROC", "32")  # As launch/_devices.py says.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # The compiler is fast, and its programs are slow.
    flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE"
    os.environ.setdefault("XLA_FLAGS", flags)

import jax

from dovetail.parallel import Mesh, parse_mesh
from sharding_cases import EARLY, KINDS, TOLERANCE, VARIANTS, Variant, allowed_error, draw, meshes, worst_error

RECORDS = Path(__file__).parents[1] / "benchmarks" / "results"
_NORMAL = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}
_SECONDS = 900  # That a random case may take, on a busy machine.


def _line(kind: str, mesh: Mesh, variant: Variant) -> tuple[str, bool]:
    start = time.perf_counter()
    try:
        error, where = worst_error(kind, mesh, variant)
        good, text = error <= allowed_error(kind, mesh, variant), f"{error:.1e} | `{where}`"
    except Exception as e:
        good, text = False, f"failed | {type(e).__name__}: {str(e).splitlines()[0][:160]}"
    seconds = time.perf_counter() - start
    print(f"{'ok  ' if good else 'BAD '} {kind:6} {mesh.text():40} {variant!s:40} {text}  {seconds:.0f} s", flush=True)
    return f"| {mesh.text()} | {variant} | {text} |", good


def _every_mesh(kinds: Sequence[str], chosen: Sequence[Mesh] | None) -> bool:
    """Returns whether all is well."""
    good, lines = True, {kind: list[str]() for kind in kinds}
    cases = (
        (kind, mesh, variant)
        for variant in VARIANTS
        for kind in kinds
        for mesh in chosen or meshes(kind)
        if variant != EARLY or mesh.pipeline > 1
    )
    for kind, mesh, variant in cases:
        line, fine = _line(kind, mesh, variant)
        lines[kind].append(line)
        good = good and fine
        if chosen is None:
            _record(kind, lines[kind])
    return good


def _record(kind: str, lines: list[str]) -> None:
    about = (
        f"Loss, metrics and gradients of the {kind} model against one device, by `tools/sharding.py` (see there), on "
    )
    about += f"eight CPU devices with jax {jax.__version__}. Allowed is {TOLERANCE:.0e}, or what rounding does."
    head = ["| mesh | variant | worst error | where |", "| --- | --- | --- | --- |"]
    text = "\n".join([f"# Sharding: {kind}", "", about, "", *head, *lines]) + "\n"
    (RECORDS / f"sharding_{kind}.md").write_text(text)


def _here(seed: int, numbers: Sequence[int]) -> bool:
    """Tries random cases in this process, and prints what came of each; whether all is well."""
    good = True
    for number in numbers:
        case = draw(seed, number)
        print(f"{seed}/{number} | {case}", flush=True)
        error, allowed, where = case.error()
        good = good and error <= allowed
        print(json.dumps({"error": error, "allowed": allowed, "where": where}), flush=True)
    return good


def _in_processes(seed: int, numbers: Sequence[int]) -> bool:
    """Tries random cases, each in a process of its own, and records what came of each; whether all is well."""
    path, good = RECORDS / "sharding_random.md", True
    rows = _known_rows(path, seed)
    for number in numbers:
        normal = number % 4 == 3
        start = time.perf_counter()
        verdict, text = _outcome(seed, number, normal)
        seconds = time.perf_counter() - start
        good = good and verdict == "ok"
        print(f"{verdict:4} {seed}/{number} | {draw(seed, number)} | {text}  {seconds:.0f} s", flush=True)
        flags = "normal" if normal else "fast"
        rows[number] = f"| {seed}/{number} | {draw(seed, number)} | {flags} | {verdict} | {text} |"
        _write_random(path, seed, rows)
    return good


def _outcome(seed: int, number: int, normal: bool) -> tuple[str, str]:
    """Returns "ok" or "BAD", and the error, or why there is none."""
    command = [sys.executable, __file__, "--random", "1", "--seed", str(seed), "--first", str(number), "--here"]
    environ = {**os.environ, **(_NORMAL if normal else {})}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "BAD", f"no end after {_SECONDS} s"
    if done.returncode in (0, 1) and done.stdout.rstrip().endswith("}"):
        found = json.loads(done.stdout.splitlines()[-1])
        where = "" if found["where"] == "mean" else f" `{found['where']}`"
        verdict = "ok" if found["error"] <= found["allowed"] else "BAD"
        return verdict, f"{found['error']:.1e} of {found['allowed']:.1e}{where if verdict == 'BAD' else ''}"
    fatal = re.findall(r"^F\d{4} .*?\] (.*)$", done.stderr, re.MULTILINE)  # As C++ says why it aborts.
    last = (fatal or [line for line in done.stderr.splitlines() if line.strip()] or ["no message"])[0 if fatal else -1]
    return "BAD", f"exit code {done.returncode}: {last[:200].replace('|', '/')}"


def _known_rows(path: Path, seed: int) -> dict[int, str]:
    """Returns the rows of a record that are of the same seed, to go on with it."""
    text = path.read_text() if path.exists() else ""
    return {int(row[1]): row[0] for row in re.finditer(rf"^\| {seed}/(\d+) \|.*$", text, re.MULTILINE)}


def _write_random(path: Path, seed: int, rows: dict[int, str]) -> None:
    bad = sum("| BAD |" in row for row in rows.values())
    about = (
        f"{len(rows)} random cases of seed {seed}, of which {bad} are bad: loss, metrics and gradients on eight CPU "
        f"devices against one, by `python tools/sharding.py --random N --seed {seed}` (see there), with jax "
        f"{jax.__version__}, each in a process of its own. The error is the largest of a parameter, and how large it "
        "may be; in bfloat16, the mean of all. Flags of the compiler are normal, or make it fast."
    )
    head = ["| case | recipe | mesh | variant | flags | | error |", "| --- | --- | --- | --- | --- | --- | --- |"]
    lines = [rows[number] for number in sorted(rows)]
    path.write_text("\n".join(["# Sharding: random cases", "", about, "", *head, *lines]) + "\n")


@contextlib.contextmanager
def _busy(count: int) -> Iterator[Any]:
    """Keeps so many processes busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1 if a mesh breaks the contract."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--meshes", nargs="*", type=parse_mesh, help="only these; nothing is written")
    parser.add_argument("--random", type=int, metavar="N", help="so many random cases instead")
    parser.add_argument("--seed", type=int, default=1, help="of the random cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first random case")
    parser.add_argument("--here", action="store_true", help="random cases in this process; nothing is written")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="keep so many processes busy meanwhile")
    args = parser.parse_args(argv)
    with _busy(args.busy):
        if args.random is None:
            good = _every_mesh(args.kinds, args.meshes)
        else:
            numbers = range(args.first, args.first + args.random)
            good = (_here if args.here else _in_processes)(args.seed, numbers)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
