# SPDX-License-Identifier: Apache-2.0
"""Memory of the loss: all logits at once against a chunk of tokens at a time. Figures of the compiler."""

from typing import Any

import jax
import jax.numpy as jnp
from _report import counted, header, program, table

from dovetail.ops import chunked_token_loss

TOKENS, DIM, VOCAB = 8192, 512, 128_256


def temporary_mib(chunk: int) -> float:
    """Returns the temporary memory of loss and gradient, compiled for this machine."""

    def loss(table: Any, hidden: Any, targets: Any, weights: Any) -> Any:
        return chunked_token_loss(hidden, lambda h: h @ table.T, targets, weights, chunk=chunk).loss

    shapes = [((VOCAB, DIM), "float32"), ((TOKENS, DIM), "float32"), ((TOKENS,), "int32"), ((TOKENS,), "float32")]
    args = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in shapes]
    compiled: Any = jax.jit(jax.grad(loss, (0, 1))).lower(*args).compile()
    return compiled.memory_analysis().temp_size_in_bytes / 2**20


def main() -> None:
    header("Temporary memory of cross-entropy, forward and backward")
    naive = temporary_mib(TOKENS)
    rows = [("all at once", f"{naive:,.0f} MiB", "1.00x")]
    for size in counted("compiling", (4096, 2048, 1024, 512), "sizes"):
        mib = temporary_mib(size)
        rows.append((f"{size} tokens at a time", f"{mib:,.0f} MiB", f"{mib / naive:.2f}x"))
    logits = f"{TOKENS * VOCAB / 2**18:,.0f} MiB"
    print(f"{TOKENS:,} tokens, dim {DIM}, vocabulary {VOCAB:,}, float32; all logits are {logits}.\n")
    table(("logits", "temporary memory", "ratio"), rows)


if __name__ == "__main__":
    program(main)
