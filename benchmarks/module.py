# SPDX-License-Identifier: Apache-2.0
"""What modules cost against the same network in plain JAX functions, and what Repeat and Remat save."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
from _report import header, medians, program, table

from dovetail.config import modify
from dovetail.module import Remat, abstract, call
from support.transformer import Block, decoder, plain_decoder

IDS = jax.ShapeDtypeStruct((2, 16), jnp.int32)
NUM_HEADS = 4


def config(num_layers: int, **fields: Any) -> Any:
    return decoder(num_layers, dim=64, hidden_dim=128, num_heads=NUM_HEADS, **fields)


def count(jaxpr: Any) -> Counter[str]:
    """Counts equations by primitive, those of inner programs included."""
    found: Counter[str] = Counter()
    for eqn in jaxpr.eqns:
        found[eqn.primitive.name] += 1
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")):
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                found += count(getattr(value, "jaxpr", value))
    return found


def overhead() -> None:
    rows = []
    for kind in ("unroll", "scan"):
        cfg = config(32)
        model = cfg.set_in("stack.loop", kind).build()
        params = abstract(model)

        def ours(p: Any, ids: Any, model: Any = model) -> Any:
            return call(model, p, ids)[0]

        def plain(p: Any, ids: Any, scan: bool = kind == "scan") -> Any:
            return plain_decoder(p, ids, num_heads=NUM_HEADS, scan=scan)

        def trace(function: Any, params: Any = params) -> Any:
            jax.clear_caches()
            return jax.make_jaxpr(function)(params, IDS)

        times = medians({"ours": lambda: trace(ours), "plain": lambda: trace(plain)}, rounds=9)
        a, b = count(trace(ours).jaxpr), count(trace(plain).jaxpr)
        ratio = f"{times['ours'] / times['plain']:.2f}x"
        milliseconds = [f"{times[name] * 1e3:.0f} ms" for name in ("ours", "plain")]
        rows.append(
            (f"32 layers, {kind}", *milliseconds, ratio, a.total(), b.total(), a["dot_general"], b["dot_general"])
        )
    print("## Tracing a 32-layer transformer, caches cleared before each run (median of 9, interleaved)\n")
    columns = ("", "modules", "plain JAX", "ratio", "equations", "plain", "dot_generals", "plain")
    table(columns, rows)


def compile_time() -> None:
    def compiler(num_layers: int) -> Any:
        model = config(num_layers).build()

        def compile() -> Any:
            jax.clear_caches()
            grad = jax.jit(jax.grad(lambda p, ids: jnp.mean(call(model, p, ids)[0])))
            return grad.lower(abstract(model), IDS).compile()

        return compile

    times = medians({str(n): compiler(n) for n in (4, 16, 64)}, rounds=5)
    slowest, fastest = max(times.values()), min(times.values())
    print("## Tracing and compiling the gradient of a repeated stack (median of 5, interleaved)\n")
    rows = [[*(f"{seconds:.2f} s" for seconds in times.values()), f"{slowest / fastest:.2f}x"]]
    table((*(f"{n} layers" for n in times), "slowest / fastest"), rows)


def remat_memory() -> None:
    policies = {
        "keep all": None,
        "save_dots": Remat(save_dots=True),
        'save=("qkv",)': Remat(save=("qkv",)),
        "full remat": Remat(),
    }
    rows = []
    for name, remat in policies.items():
        cfg = modify(Block.Config, lambda block, remat=remat: block.set(remat=remat))(config(32))
        model = cfg.build()
        ids = jax.ShapeDtypeStruct((8, 256), jnp.int32)
        grad = jax.jit(jax.grad(lambda p, ids, model=model: jnp.mean(call(model, p, ids)[0])))
        compiled = grad.lower(abstract(model), ids).compile()
        memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
        assert memory is not None
        assert cost is not None
        rows.append((name, f"{memory.temp_size_in_bytes / 2**20:.1f} MiB", f"{cost['flops'] / 1e9:.2f} GFLOP"))
    print("## Remat of 32 blocks, batch 8 x 256: temporary memory and work of the gradient, by XLA's own figures\n")
    table(("policy", "temporary memory", "work per layer and the rest"), rows)


def main() -> None:
    header("Modules")
    overhead()
    compile_time()
    remat_memory()


if __name__ == "__main__":
    program(main)
