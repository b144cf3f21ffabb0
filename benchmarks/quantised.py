# SPDX-License-Identifier: Apache-2.0
"""What few bits cost: the loss on shipped text that no recipe trains on, and the bytes of weights and of a token.

`python benchmarks/quantised.py tiny-lm hf:/path/to/SmolLM2-135M-Instruct` trains the one, a minute or two, and reads
the other. Speed is not measured here; see the last section of the recorded results.
"""

import argparse
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _report import counted, header, program, table

from dovetail.data import corpus_path
from dovetail.module import abstract, call, make_state, specs, state_specs
from dovetail.nn import quantised_params
from dovetail.optim import by_path
from dovetail.serve import quantised, tokenizer_of
from dovetail.train import Trained, load_initial, load_trained
from dovetail.zoo import recipe
from dovetail.zoo.recipes import finetune

# Name: what weights are kept in, what caches are, and what is computed in.
KINDS: dict[str, tuple[Any, Any, Any]] = {
    "float32": (None, None, jnp.float32),
    "bfloat16": (None, None, jnp.bfloat16),
    "int8 weights": ("int8", None, jnp.float32),
    "int4 weights": ("int4", None, jnp.float32),
    "int8 KV": (None, "int8", jnp.float32),
    "int8 weights and KV": ("int8", "int8", jnp.float32),
    "int4 weights, int8 KV": ("int4", "int8", jnp.float32),
}


def opened(name: str, steps: int) -> Trained:
    """Returns a published model, or that of a recipe, trained for so many steps."""
    if name.startswith("hf:"):
        return load_initial(finetune(name))
    with tempfile.TemporaryDirectory() as directory:
        cfg = recipe(name).set(steps=steps, directory=directory)
        cfg.build().run()
        return load_trained(cfg)


def shuffled(run: Trained) -> Trained:
    """Returns the same model with its channels in another order: the same function, with other groups of inputs.

    Weights that come from files of 4 bits lie on a grid already, with 16 values in a group. Rounded to the same groups
    they would lose nothing, which says nothing about the model. In another order, groups hold numbers of many grids.
    """
    rng, orders = np.random.default_rng(0), dict[tuple[str | None, int], np.ndarray]()
    declared = by_path(specs(run.program.model))

    def moved(path: str, value: Any) -> Any:
        for dim, axis in enumerate(declared[path].axes if path in declared else ()):
            if axis in ("embed", "mlp"):
                size = value.shape[dim]
                value = jnp.take(value, orders.setdefault((axis, size), rng.permutation(size)), axis=dim)
        return value

    leaves = [moved(path, value) for path, value in by_path(run.params).items()]
    return run._replace(params=jax.tree.unflatten(jax.tree.structure(run.params), leaves))


def most_in_a_group(run: Trained, size: int = 32) -> int:
    """Returns how many different numbers groups of inputs have at most, in the first weight of a feed-forward."""
    name = next(path for path in by_path(run.params) if path.endswith("up.weight"))
    weight = np.asarray(by_path(run.params)[name])
    groups = weight.reshape(-1, *weight.shape[-2:])[0].reshape(-1, size, weight.shape[-1])
    return max(len(np.unique(group[:, column])) for group in groups for column in range(0, weight.shape[-1], 7))


def text_of(run: Trained, rows: int, length: int) -> np.ndarray:
    """Returns the first tokens of the text, `[rows, length + 1]`."""
    ids = tokenizer_of(run.program.cfg, None).encode(corpus_path("moby-dick", "held-out").read_text("utf-8"))
    return ids[: rows * (length + 1)].reshape(rows, length + 1)


def measured(run: Trained, kind: str, ids: np.ndarray, batch: int) -> tuple[float, int, float]:
    """Returns the mean loss of a token, the bytes of parameters, and those of a token in caches.

    All keys and values are read from the cache, as a server does, so that they are rounded where it rounds them.
    """
    weights, kv, dtype = KINDS[kind]
    built = quantised(weights, kv)(run.program.cfg.model).build()
    params = quantised_params(built, run.params)
    length = ids.shape[1] - 1
    rows = jnp.zeros((batch, length), jnp.int32)
    sized = state_specs(built, params, rows, sizes={"batch": batch, "capacity": length}, dtype=dtype)
    kept = [
        spec for path, spec in sized.items() if path.rpartition(".")[2].removesuffix("_scale") in ("k", "v", "latent")
    ]

    @jax.jit
    def loss(params: Any, ids: Any) -> Any:
        logits, _ = call(built, params, ids[:, :-1], state=make_state(sized), dtype=dtype)
        found = jax.nn.log_softmax(logits.astype(jnp.float32))
        return -jnp.mean(jnp.take_along_axis(found, ids[:, 1:, None], axis=-1))

    mean = np.mean([loss(params, ids[i : i + batch]) for i in range(0, len(ids), batch)])
    size = sum(x.size * min(x.dtype.itemsize, jnp.dtype(dtype).itemsize) for x in jax.tree.leaves(abstract(built)))
    return float(mean), size, sum(spec.nbytes for spec in kept) / (batch * length)


def main() -> None:
    """Prints a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="recipes, or hf: and a directory")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    header("Loss, and bytes, in few bits")
    for name in counted("measuring", args.models, "models"):
        run = opened(name, args.steps)
        ids, distinct = text_of(run, args.rows, args.length), most_in_a_group(run)
        if distinct <= 16:
            run = shuffled(run)
        found = {kind: measured(run, kind, ids, args.batch) for kind in KINDS}
        exact = found["float32"][0]
        print(f"\n{name.rpartition('/')[2]}: {args.rows} rows of {args.length} tokens of moby-dick, held-out.\n")
        if distinct <= 16:
            print(f"Groups of 32 inputs have {distinct} values at most: the weights are on a grid of 4 bits already.")
            print("So channels are put in another order first, which changes no output, but the groups.\n")
        rows = [
            (kind, f"{loss:.4f}", f"{loss - exact:+.4f}", f"{size / 1e6:,.1f} MB", f"{token:,.0f}")
            for kind, (loss, size, token) in found.items()
        ]
        table(("kept in", "loss", "more", "parameters", "bytes of a token in caches"), rows)


if __name__ == "__main__":
    program(main)
