# SPDX-License-Identifier: Apache-2.0
"""The training step in PyTorch, eager or compiled. It runs in an interpreter that has PyTorch; we need not be there."""
# pyright: reportMissingImports=false

import sys
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from _problem import Problem, problem, serve


class Layer(torch.nn.Module):
    def __init__(self, weights: dict[str, np.ndarray], index: int, data: Problem) -> None:
        super().__init__()
        self.data = data
        for name in ("query", "key", "value", "out", "gate", "up", "down"):
            self.register_parameter(name, torch.nn.Parameter(torch.tensor(weights[name][index].T.copy())))
        for name in ("attention_norm", "ffn_norm"):
            self.register_parameter(name, torch.nn.Parameter(torch.tensor(weights[name][index])))

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        data, (batch, length, dim) = self.data, x.shape

        def heads(y: Any) -> Any:
            return y.view(batch, length, data.num_heads, data.head_dim).transpose(1, 2)

        def rotate(y: Any) -> Any:
            a, b = y.chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

        h = F.rms_norm(x, (dim,), self.attention_norm, data.rms_eps)
        q, k = rotate(heads(F.linear(h, self.query))), rotate(heads(F.linear(h, self.key)))
        mixed = F.scaled_dot_product_attention(q, k, heads(F.linear(h, self.value)), is_causal=True)
        x = x + F.linear(mixed.transpose(1, 2).reshape(batch, length, dim), self.out)
        h = F.rms_norm(x, (dim,), self.ffn_norm, data.rms_eps)
        return x + F.linear(F.silu(F.linear(h, self.gate)) * F.linear(h, self.up), self.down)


class Model(torch.nn.Module):
    def __init__(self, data: Problem) -> None:
        super().__init__()
        self.data, weights = data, data.weights()
        self.embedding = torch.nn.Parameter(torch.tensor(weights["embedding"]))
        self.layers = torch.nn.ModuleList(Layer(weights, i, data) for i in range(data.num_layers))
        self.norm = torch.nn.Parameter(torch.tensor(weights["norm"]))
        frequencies = data.theta ** (-np.arange(0, data.head_dim, 2, dtype=np.float32) / data.head_dim)
        angles = torch.tensor(np.arange(data.seq_len, dtype=np.float32)[:, None] * frequencies)
        self.register_buffer("cos", torch.cos(angles))
        self.register_buffer("sin", torch.sin(angles))

    def forward(self, tokens: Any, targets: Any) -> Any:
        x = F.embedding(tokens, self.embedding)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(F.rms_norm(x, (x.shape[-1],), self.norm, self.data.rms_eps), self.embedding)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    data, compiled = problem(), sys.argv[2] == "compile"
    model = Model(data)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    norms = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": data.weight_decay}, {"params": norms, "weight_decay": 0.0}],
        lr=data.learning_rate,
        betas=(data.b1, data.b2),
        eps=data.adam_eps,
        fused=True,
    )
    forward = torch.compile(model) if compiled else model

    def run(tokens: np.ndarray, targets: np.ndarray) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(torch.from_numpy(tokens.astype(np.int64)), torch.from_numpy(targets.astype(np.int64)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), data.clip_norm)
        optimizer.step()
        return float(loss.detach())

    serve(run, data, versions={"torch": torch.__version__})


if __name__ == "__main__":
    main()
