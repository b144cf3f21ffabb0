# SPDX-License-Identifier: Apache-2.0
"""How long a save holds up training, how long it takes, and how long a restore takes: 500 MB on one CPU."""

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from _report import counted, header, program, table

from dovetail.checkpoint import Checkpointer

LEAVES, MEGA = 50, 1 << 20
ROUNDS = 5


def state() -> Any:
    """Returns 50 arrays of 10 MB."""
    keys = jax.random.split(jax.random.key(0), LEAVES)
    return {f"layer_{i}": jax.random.normal(key, (10 * MEGA // 4 // 1024, 1024)) for i, key in enumerate(keys)}


def main() -> None:
    step = jax.jit(lambda state: jax.tree.map(lambda x: x * 1.5, state), donate_argnums=0)
    values = jax.block_until_ready(step(state()))
    directory = Path(tempfile.mkdtemp(dir=Path.cwd()))
    times: dict[str, list[float]] = {name: [] for name in ("returns", "on disk", "step", "step in a save", "restore")}

    def timed(name: str, work: Any) -> Any:
        start = time.perf_counter()
        done = jax.block_until_ready(work())
        times[name].append(time.perf_counter() - start)
        return done

    try:
        cfg = Checkpointer.Config(directory=str(directory / "run"), keep=1)
        with cfg.build() as checkpointer:
            for number in counted("saving", range(1, ROUNDS + 2)):
                for _ in range(3):
                    values = timed("step", lambda values=values: step(values))
                jax.block_until_ready(values)
                start = time.perf_counter()
                timed("returns", lambda n=number, values=values: checkpointer.save(n, values, config=cfg))
                values = timed("step in a save", lambda values=values: step(values))
                checkpointer.wait()
                times["on disk"].append(time.perf_counter() - start)
            for _ in counted("restoring", range(ROUNDS + 1)):
                timed("restore", lambda values=values: checkpointer.restore(values).state)
    finally:
        shutil.rmtree(directory)
    middle = {name: statistics.median(values[1:]) for name, values in times.items()}  # The first one compiles.
    header("Checkpoints of 500 MB")
    print(f"50 arrays of 10 MB, float32, one device; medians of {ROUNDS}.\n")
    share = f"{middle['returns'] / middle['on disk']:.1%}".replace("%", " %")
    rows = [
        ("`save` returns after", f"{middle['returns'] * 1e3:.0f} ms"),
        ("the step is on disk after", f"{middle['on disk'] * 1e3:.0f} ms"),
        ("blocking, of the time to write", share),
        ("a step that donates the state", f"{middle['step'] * 1e3:.0f} ms"),
        ("the first one in a save: it gets new memory", f"{middle['step in a save'] * 1e3:.0f} ms"),
        ("`restore`, files in the page cache", f"{middle['restore'] * 1e3:.0f} ms"),
    ]
    table(("", ""), rows)
    assert jnp.isfinite(values["layer_0"]).all()


if __name__ == "__main__":
    program(main)
