# SPDX-License-Identifier: Apache-2.0
"""The training step as `dovetail train` makes it."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _problem import Problem, problem, serve

from dovetail.config import replace_all
from dovetail.models import CausalLM
from dovetail.module import specs
from dovetail.ops import AttentionKernel, QueryBlockAttention
from dovetail.optim import AdamW, ConstantSchedule, Group, Learner, WeightDecay
from dovetail.train import init_state, train_step
from dovetail.zoo.families import llama


def model_of(data: Problem, *, scanned: bool) -> CausalLM:
    cfg = llama(
        vocab_size=data.vocab_size,
        dim=data.dim,
        num_layers=data.num_layers,
        num_heads=data.num_heads,
        num_kv_heads=data.num_heads,
        hidden_dim=data.hidden_dim,
        theta=data.theta,
        eps=data.rms_eps,
        tied=True,
    )
    # What the rules for CPUs choose: short sequences need no memory-linear attention, and a program without a loop over
    # layers, each with arrays of its own, is a little faster.
    cfg = replace_all(AttentionKernel.Config, lambda _: QueryBlockAttention.Config())(cfg)
    if scanned:
        return cfg.build()
    return cfg.set_in("stack.layer", (cfg.get_in("stack.layer"),) * data.num_layers).build()


def params_of(weights: dict[str, np.ndarray], data: Problem, like: Any) -> Any:
    """Returns the weights as parameters, in a tree like the specs of our model."""
    shapes = {"out": (data.num_heads, data.head_dim, data.dim)}
    shapes |= dict.fromkeys(("query", "key", "value"), (data.dim, data.num_heads, data.head_dim))
    names = {"mixer_norm": "attention_norm", "table": "embedding"}

    def pick(path: Any, spec: Any) -> Any:
        keys = [key.key for key in path]  # As in stack, layer[3], mixer, query, weight.
        name = keys[-1] if keys[-1] == "table" else keys[-2]
        weight = weights[names.get(name, name)]
        if keys[0] != "stack":
            return jnp.asarray(weight)
        layers = slice(None) if keys[1] == "layer" else slice(int(keys[1][6:-1]), int(keys[1][6:-1]) + 1)
        return jnp.asarray(weight[layers].reshape(-1, *shapes.get(name, weight.shape[1:])))

    return jax.tree_util.tree_map_with_path(pick, like)


def main() -> None:
    data = problem()
    model = model_of(data, scanned="scan" in sys.argv)
    learner: Learner = Learner.Config(
        optimizer=AdamW.Config(b1=data.b1, b2=data.b2, eps=data.adam_eps),
        schedule=ConstantSchedule.Config(peak=data.learning_rate),
        weight_decay=WeightDecay.Config(rate=data.weight_decay),
        groups=(Group(paths=("embedding.table",), decay=data.weight_decay),),
        clip_norm=data.clip_norm,
    ).build(specs=specs(model))
    state = init_state(params_of(data.weights(), data, specs(model)), learner)
    shape = (data.batch_size, data.seq_len)
    whole = {
        "weights": np.ones(shape, np.float32),
        "segments": np.ones(shape, np.int32),
        "positions": np.broadcast_to(np.arange(data.seq_len, dtype=np.int32), shape),
    }
    step = jax.jit(train_step(model, learner, seed=0, num_microbatches=1, dtype=None), donate_argnums=0)
    ids = np.zeros(shape, np.int32)
    compiled = step.lower(state, {"tokens": ids, "targets": ids, **whole}).compile()
    memory: Any = compiled.memory_analysis()

    def run(tokens: np.ndarray, targets: np.ndarray) -> float:
        nonlocal state
        state, metrics = compiled(state, {"tokens": tokens, "targets": targets, **whole})
        return float(jax.block_until_ready((metrics["loss"], state))[0])

    serve(run, data, versions={"jax": jax.__version__}, temporary_bytes=memory.temp_size_in_bytes)


if __name__ == "__main__":
    main()
