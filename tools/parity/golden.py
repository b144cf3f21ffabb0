# SPDX-License-Identifier: Apache-2.0
"""Golden files of parity: what transformers computes for three models of each family, for tests that have it not.

`python tools/parity/golden.py [FAMILY ...]`, in an interpreter with torch and transformers, rewrites
`tests/zoo/parity`. `<family>.npz` holds for each case i, all without pickles: `i/config` (the text of config.json),
`i/tensors` (JSON: the shape of each tensor of the file, by name), `i/seed` (with which `parity.weights.make` makes
them), `i/tokens`, `i/logits`, `i/loss`, `i/grad/<name>` (of the tensor's first rows, if it is large), `i/prompt`, and
`i/greedy`, or `i/greedy_note` if transformers with its cache and without do not agree on it.
"""
# pyright: reportMissingImports=false

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import cases
import numpy as np
import peer
import torch
import transformers
from safetensors import safe_open

DIRECTORY = Path(__file__).resolve().parents[2] / "tests" / "zoo" / "parity"
CASES = (0, 2, 3)  # The plain one, an odd one, and one with the config of transformers 4 without its defaults.
NUMBERS = 1024  # Of a gradient, unless one row has more.
LIMIT = 3_000_000  # Bytes of all files.


def golden(family: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns the content of one file."""
    result: dict[str, np.ndarray] = {}
    for index in CASES:
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary) / family
            values = peer.write(directory, family, seed, index)
            del values["arguments"]
            values["config"] = np.array((directory / "config.json").read_text())
            with safe_open(directory / "model.safetensors", "np") as file:
                shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            values["tensors"] = np.array(json.dumps(shapes))
        for name, value in values.items():
            result[f"{index}/{name}"] = first_rows(value) if name.startswith("grad/") else value
    return result


def first_rows(value: np.ndarray) -> np.ndarray:
    return value[: max(1, NUMBERS * len(value) // value.size)]


def main(argv: Sequence[str]) -> int:
    """Rewrites the files of the families named, or all."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for family in argv or cases.FAMILIES:
        np.savez_compressed(DIRECTORY / f"{family}.npz", **golden(family))  # pyright: ignore[reportArgumentType]
    size = sum(file.stat().st_size for file in DIRECTORY.glob("*.npz"))
    print(f"{DIRECTORY}: {size} bytes of at most {LIMIT}")
    return int(size > LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
