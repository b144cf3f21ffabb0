# SPDX-License-Identifier: Apache-2.0
"""Import and export of a published model, beside a copy of its files; and the memory of the host while it is read.

`python benchmarks/hugging_face.py [--layers 16] [--rounds 3]` makes a Llama of 1.2 billion parameters in bfloat16.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from _report import counted, header, program

from dovetail.checkpoint.hf import OutTensor, weight_map, write_tensors
from dovetail.module import abstract
from dovetail.optim import by_path
from dovetail.zoo import model
from dovetail.zoo.hf import published_as

_READ = """
import json, sys, jax
from dovetail.train import load_initial
from dovetail.zoo.recipes import finetune
from dovetail.config import override


def most():  # Bytes in memory at most, since they were last asked for. What the parent process had does not count.
    with open("/proc/self/status") as file:
        found = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return found


small, large = (override(finetune(f"hf:{name}"), []) for name in sys.argv[1:3])
load_initial(small)  # What does not depend on the size: libraries, threads, compiled programs.
most()
before = most()
found = load_initial(large)
after = most()
print(json.dumps({"arrays": sum(x.nbytes for x in jax.tree.leaves(found.params)), "grown": after - before}))
"""


def make(directory: Path, layers: int, dim: int) -> tuple[int, int]:
    """Writes a Llama with random weights; returns the bytes of all tensors and of the largest."""
    cfg = model("llama3.2-1b").set(dim=dim).set_in("stack.num_layers", layers)
    family, fields = published_as(cfg)
    shapes = {path: tuple(leaf.shape) for path, leaf in by_path(abstract(cfg.build())).items()}
    rng, dtype = np.random.default_rng(0), jax.numpy.dtype("bfloat16")
    found = weight_map(family.weights, cfg.stack, shapes).tensors
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(fields | {"dtype": "bfloat16"}), encoding="utf-8")
    tensors = [
        OutTensor(name, each.shape, dtype, lambda s=each.shape: (rng.random(s, np.float32) - 0.5).astype(dtype))
        for name, each in found.items()
    ]
    write_tensors(directory, tensors)
    return sum(each.nbytes for each in tensors), max(each.nbytes for each in tensors)


def seconds(action) -> float:
    start = time.perf_counter()
    action()
    os.sync()
    return time.perf_counter() - start


def command(*words: str) -> None:
    dovetail = str(Path(sys.executable).with_name("dovetail"))
    subprocess.run([dovetail, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        source, run, out, copy = (place / name for name in ("source", "run", "out", "copy"))
        total, largest = make(source, args.layers, 2048)
        make(place / "small", 2, 64)
        times: dict[str, list[float]] = {"copy": [], "import": [], "export": []}
        for _ in counted("importing and exporting", range(args.rounds)):
            for folder in (run, out, copy):
                shutil.rmtree(folder, ignore_errors=True)
            times["copy"].append(seconds(lambda: shutil.copytree(source, copy)))
            times["import"].append(seconds(lambda: command("import", str(source), "--to", str(run))))
            times["export"].append(seconds(lambda: command("export", str(run), "--to", str(out))))
        same = [(source / name).read_bytes() == (out / name).read_bytes() for name in ("model.safetensors",)]
        read = subprocess.run(
            [sys.executable, "-c", _READ, str(place / "small"), str(source)], check=True, capture_output=True, text=True
        )
    memory = json.loads(read.stdout.splitlines()[-1])
    header("Import and export of a published model", ("dovetail", "jax", "orbax-checkpoint"))
    print(f"{total / 1e9:.2f} GB of tensors in bfloat16, the largest {largest / 1e9:.2f} GB; {os.cpu_count()} cores")
    for name, found in times.items():
        middle, copied = statistics.median(found), statistics.median(times["copy"])
        print(f"{name:7} {middle:6.2f} s  {total / middle / 1e9:5.2f} GB/s  {copied / middle:.2f} of a copy")
    extra = memory["grown"] - memory["arrays"]
    print(f"an export has the bytes of what was imported: {all(same)}")
    print(f"reading: {memory['arrays'] / 1e9:.2f} GB of arrays, and {extra / 1e9:.2f} GB more of the host at most")


if __name__ == "__main__":
    program(main)
