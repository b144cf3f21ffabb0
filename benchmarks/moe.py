# SPDX-License-Identifier: Apache-2.0
"""What a mixture of experts costs against a dense feed-forward of as many active parameters, forward and backward."""

from typing import Any

import jax
import jax.numpy as jnp
from _report import counted, header, medians, program, table

from dovetail.aot import count_flops
from dovetail.config import modify
from dovetail.module import abstract, call, init
from dovetail.nn import Capacity, GatedFeedForward, MoEFeedForward, TopKRouter
from dovetail.ops import BlockedGroupedMatmul, GroupedMatmul, RaggedDot

TOKENS, DIM = 2048, 256


def variants(num_experts: int, top_k: int, hidden_dim: int) -> dict[str, Any]:
    """Returns layers of the same active size: a dense one, and mixtures by each kernel and dispatch."""
    router = TopKRouter.Config(top_k=top_k)
    moe = MoEFeedForward.Config(dim=DIM, hidden_dim=hidden_dim, num_experts=num_experts, router=router)
    found: dict[str, Any] = {"dense": GatedFeedForward.Config(dim=DIM, hidden_dim=top_k * hidden_dim)}
    for block in (32, 64, 128, 256):
        kernel = BlockedGroupedMatmul.Config(block=block)
        found[f"dropless, blocks of {block}"] = modify(GroupedMatmul.Config, lambda _, k=kernel: k)(moe)
    if num_experts <= 8:  # On CPU, its work grows with their number.
        found["dropless, ragged_dot"] = modify(GroupedMatmul.Config, lambda _: RaggedDot.Config())(moe)
    found["capacity 1.0"] = moe.set(dispatch=Capacity.Config(factor=1.0))
    found["capacity 1.25"] = moe.set(dispatch=Capacity.Config())
    return found


def compare(num_experts: int, top_k: int, hidden_dim: int) -> None:
    x = jax.random.normal(jax.random.key(1), (1, TOKENS, DIM))
    runs: dict[str, Any] = {}
    work: dict[str, int] = {}
    for name, cfg in counted("compiling", variants(num_experts, top_k, hidden_dim).items(), "models"):
        model = cfg.build()

        def forward(params: Any, x: Any, model: Any = model) -> Any:
            return call(model, params, x)[0]

        def loss(params: Any, x: Any, forward: Any = forward) -> Any:
            return jnp.sum(jnp.square(forward(params, x)))

        work[name] = count_flops(forward, abstract(model), x)
        params = init(model, jax.random.key(0))
        for kind, function in (("forward", forward), ("gradient", jax.grad(loss, (0, 1)))):
            compiled = jax.jit(function).lower(params, x).compile()
            runs[f"{name}/{kind}"] = lambda run=compiled, args=(params, x): jax.block_until_ready(run(*args))
    times = medians(runs, rounds=9)

    def shown(name: str, kind: str) -> str:
        seconds = times[f"{name}/{kind}"]
        return f"{seconds * 1e3:.1f} ms ({seconds / times[f'dense/{kind}']:.2f}x)"

    print(f"## {num_experts} experts of {hidden_dim}, {top_k} active, {TOKENS} tokens of {DIM} (median of 9)\n")
    rows = [
        (name, f"{flops / work['dense']:.2f}x", shown(name, "forward"), shown(name, "gradient"))
        for name, flops in work.items()
    ]
    table(("", "counted work", "forward", "gradient"), rows)


def main() -> None:
    header("Mixtures of experts")
    compare(num_experts=8, top_k=2, hidden_dim=512)
    compare(num_experts=64, top_k=8, hidden_dim=128)


if __name__ == "__main__":
    program(main)
