# SPDX-License-Identifier: Apache-2.0
"""Programs with all optimizations of the compiler, as users have them, held against the same programs without fusions.

`python -m support.optimized` prints what it finds. It must be started without the settings that tests have for JAX:
`report` does that.

What may differ is rounding, as much as a model makes of it: all parameters are changed by half a unit in the last
place, up or down. A dozen operations round for one that reads a parameter, so four times that is allowed, or 2e-5.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.module import call, specs
from dovetail.serve import Sampling, generate
from dovetail.train import gradients_of, init_state, train_step
from dovetail.zoo import recipe

from .models import random_params

# Windows and caps; latent attention and experts; state-space layers. A plain model trains.
NAMES = ("gemma2-tiny", "deepseek-v3-tiny", "hybrid-tiny")
_TRAINED, _WRITER, _STEPS = "llama3-tiny", "gemma2-tiny", 3
_TOLERANCE, _PER_PARAMETER, _DRAWS = 2e-5, 4, 4
# The second pass makes products of YNN. Fusion emitters stay on: the older ones are wrong where nothing is fused.
_UNFUSED = {
    "xla_disable_hlo_passes": "fusion,dot-library-rewriter",
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}

Values = dict[str, Any]


def report() -> dict[str, Any]:
    """Returns what a process with the settings of users finds."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    paths = [str(Path(__file__).parents[1]), *filter(None, [environ.get("PYTHONPATH")])]
    environ |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "support.optimized"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def _compare(compute: Callable[[Any, bool], Values], params: Any) -> dict[str, Any]:
    """Returns the worst error of a computation with all optimizations, where it is, and what is allowed."""
    found, wanted = compute(params, False), compute(params, True)
    noise = [compute(_rounded(params, seed), True) for seed in range(_DRAWS)]
    rounding = max(_error(each[key], wanted[key]) for each in noise for key in wanted)
    errors = {key: _error(found[key], wanted[key]) for key in wanted}
    where = max(errors, key=lambda key: np.nan_to_num(errors[key], nan=np.inf))
    return {"error": errors[where], "where": where, "allowed": max(_TOLERANCE, _PER_PARAMETER * rounding)}


def _rounded(params: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: (x * (1 + rng.choice([-1.0, 1.0], x.shape) * 2.0**-24)).astype(x.dtype), params)


def _error(got: Any, want: Any) -> float:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.max(np.abs(got - want)) / max(np.max(np.abs(want)), 1e-6))


def _batch(name: str) -> Any:
    return next(iter(recipe(name).input.set(batch_size=4, seq_len=24).build()))


def _gradients(name: str) -> dict[str, Any]:
    """Compares loss, metrics and gradients; counts the fusions of both programs, and those that are products of YNN."""
    model, batch = recipe(name).model.build(), _batch(name)
    params = random_params(model)
    lowered = jax.jit(gradients_of(model, num_microbatches=1, dtype=None)).lower(params, batch, None)
    programs = {unfused: lowered.compile(compiler_options=_UNFUSED if unfused else None) for unfused in (False, True)}

    def compute(params: Any, unfused: bool) -> Values:
        found = programs[unfused](params, batch, None)
        return {jax.tree_util.keystr(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(found)}

    texts = {name: programs[unfused].as_text() or "" for name, unfused in (("fused", False), ("unfused", True))}
    counts = {name: (text.count(" fusion("), text.count('"kind":"__ynn_fusion"')) for name, text in texts.items()}
    return _compare(compute, params) | counts


def _steps() -> dict[str, Any]:
    """Compares the metrics of a few steps of training."""
    cfg, batch = recipe(_TRAINED), _batch(_TRAINED)
    model = cfg.model.build()
    learner = cfg.learner.set_in("schedule.warmup_steps", 0).build(specs=specs(model), steps=cfg.steps)
    step = train_step(model, learner, seed=0, num_microbatches=2, dtype=None)
    params = random_params(model)
    lowered = jax.jit(step).lower(init_state(params, learner), batch)
    programs = {unfused: lowered.compile(compiler_options=_UNFUSED if unfused else None) for unfused in (False, True)}

    def compute(params: Any, unfused: bool) -> Values:
        state, found = init_state(params, learner), []
        for _ in range(_STEPS):
            state, metrics = programs[unfused](state, batch)
            found.append(metrics)
        return {name: [float(metrics[name]) for metrics in found] for name in found[0]}

    return _compare(compute, params) | {"losses": compute(params, False)["loss"]}


def _written() -> dict[str, Any]:
    """Returns how much less likely a generated token is than the most likely one by a call for the whole sequence."""
    model = recipe(_WRITER).model.build()
    length, new = 5, 12  # Beyond the window.
    prompts = jnp.asarray(np.random.default_rng(0).integers(0, 256, (3, length), np.int32))

    @functools.partial(jax.jit, static_argnames="sampling")
    def run(params: Any, sampling: Sampling) -> Any:
        lengths = jnp.full((3,), length)
        out = generate(model, params, prompts, lengths, key=jax.random.key(0), max_new=new, sampling=sampling)
        logits = call(model, params, jnp.concatenate([prompts, out], axis=1))[0][:, length - 1 : -1]
        return out, logits.max(axis=2) - jnp.take_along_axis(logits, out[:, :, None], axis=2)[:, :, 0]

    out, gap = run(random_params(model), Sampling(temperature=0))
    return {"tokens": len(np.unique(out)), "gap": float(gap.max())}


if __name__ == "__main__":
    everything = {name: _gradients(name) for name in NAMES} | {"steps": _steps(), "written": _written()}
    print(json.dumps(everything))
