# SPDX-License-Identifier: Apache-2.0
"""`make parity`: random published models, here and in transformers, side by side, from a printed seed.

`python tools/parity/check.py --peer PYTHON` runs `peer.py` with an interpreter that has torch and transformers. For
each model: logits, gradients and greedy tokens of ours against theirs; then an export of ours, which transformers must
load without a missing or a spare tensor, and with the same logits.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dovetail.train import Trained
from dovetail.zoo.hf import export, families, plan_export
from parity import ours

PEER = Path(__file__).with_name("peer.py")
LOGITS, GRADIENTS = 1e-4, 1e-3  # Of the largest value.


def problems(directory: Path, peer: str) -> tuple[str, list[str]]:
    """Returns figures of one model, and what is wrong with it."""
    with np.load(directory / "expected.npz") as values:
        expected = {name: values[name] for name in values.files}
    trained = ours.load(directory)
    found = ours.compare(trained, directory, expected)
    worst = max(found.gradients.values())
    bad = [] if found.logits < LOGITS else [f"logits {found.logits:.1e}"]
    bad += [] if worst < GRADIENTS else [f"gradients {worst:.1e}"]
    bad += ["other tokens"] if found.greedy is False else []
    again = exported(trained, expected, peer)
    bad += [] if again < LOGITS else [f"export {again:.1e}"]
    tokens = {True: "same tokens", False: "OTHER TOKENS", None: "tokens not compared"}[found.greedy]
    return f"logits {found.logits:.1e}  gradients {worst:.1e}  {tokens}  export {again:.1e}", bad


def exported(trained: Trained, expected: dict[str, np.ndarray], peer: str) -> float:
    """Returns how far the logits of transformers for our export are from those for the original."""
    with tempfile.TemporaryDirectory() as temporary:
        target, tokens, out = (Path(temporary) / name for name in ("export", "tokens.txt", "found.npz"))
        export(plan_export(trained.program.cfg, None, "float32"), trained.params, str(target), max_shard_bytes=20_000)
        tokens.write_text("\n".join(" ".join(map(str, row)) for row in expected["tokens"]) + "\n", encoding="utf-8")
        command = [peer, str(PEER), "load", str(target), "--tokens", str(tokens), "--out", str(out)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if ran.returncode:
            print(ran.stderr[-2000:])
            return float("inf")
        with np.load(out) as values:
            return ours.error(values["logits"], expected["logits"])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", required=True, metavar="PYTHON", help="an interpreter with torch and transformers")
    parser.add_argument("--count", type=int, default=3, help="of models of each family")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--family", action="append", default=[])
    args = parser.parse_args(argv)
    print(f"seed {args.seed}", flush=True)
    failed = 0
    for family in args.family or sorted(each.model_type for each in families()):
        with tempfile.TemporaryDirectory() as temporary:
            make = ["make", temporary, "--family", family, "--seed", str(args.seed), "--count", str(args.count)]
            subprocess.run([args.peer, str(PEER), *make, "--first", "1"], check=True, stdout=subprocess.DEVNULL)
            for directory in sorted(Path(temporary).iterdir()):
                figures, bad = problems(directory, args.peer)
                failed += bool(bad)
                print(f"{'FAILED' if bad else 'ok':6} {directory.name:20} {figures}", flush=True)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
