# SPDX-License-Identifier: Apache-2.0
"""How long config trees take: made ones of up to 10,000 nodes, and that of a real run with all that it imports."""

import pickle
from collections.abc import Callable
from typing import Any

from _report import header, medians, program, table

from dovetail.config import REQUIRED, Component, ConfigBase, diff, find, from_json, replace_all, to_json, to_text


def relu(x: float) -> float:
    return max(x, 0.0)


class Norm(Component):
    class Config(Component.Config):
        dim: int = REQUIRED
        eps: float = 1e-6


class FeedForward(Component):
    class Config(Component.Config):
        dim: int = REQUIRED
        norm: Norm.Config = Norm.Config()


class Dense(FeedForward):
    class Config(FeedForward.Config):
        hidden_dim: int = 8
        activation: Callable[[float], float] = relu


class Sparse(FeedForward):
    class Config(FeedForward.Config):
        hidden_dim: int = REQUIRED
        num_experts: int = 8


class Layer(Component):
    class Config(Component.Config):
        ffn: FeedForward.Config = Dense.Config()
        norms: list[Norm.Config] = [Norm.Config()]


class Model(Component):
    class Config(Component.Config):
        layers: list[Layer.Config] = REQUIRED


NODES_PER_LAYER = 4  # layer, feed-forward, its norm, and the norm in the list


def tree(num_nodes: int) -> Model.Config:
    """Returns a tree in which no two layers are the same object or equal."""
    layers = [
        Layer.Config(ffn=Dense.Config(dim=i), norms=[Norm.Config(dim=i)]) for i in range(num_nodes // NODES_PER_LAYER)
    ]
    return Model.Config(layers=layers)


def fresh(cfg: ConfigBase) -> Any:
    """Returns an equal tree that has cached nothing."""
    return pickle.loads(pickle.dumps(cfg))


def main() -> None:
    header("Config trees", packages=("dovetail",))
    to_sparse = replace_all(FeedForward.Config, Sparse.Config(num_experts=4))
    sizes = (1_000, 3_000, 10_000)
    results: dict[int, dict[str, float]] = {}
    for size in sizes:
        cfg = tree(size)
        changed = to_sparse(cfg)
        text = to_json(cfg)
        copies = iter([fresh(cfg) for _ in range(6)])  # hash() is cached, so each timing has a tree of its own
        results[size] = medians(
            {
                "build the tree": lambda size=size: tree(size),
                "replace_all": lambda cfg=cfg: to_sparse(cfg),
                "find": lambda cfg=cfg: find(cfg, Norm.Config),
                "to_text": lambda cfg=cfg: to_text(cfg),
                "to_json": lambda cfg=cfg: to_json(cfg),
                "from_json": lambda text=text: from_json(text, allow=[__name__]),
                "diff": lambda cfg=cfg, changed=changed: diff(cfg, changed),
                "hash": lambda copies=copies: hash(next(copies)),
            },
            rounds=5,
        )
    columns = ("milliseconds, median of 5", *(f"{size:,} nodes" for size in sizes), "10,000 / 1,000")
    rows = [
        (
            name,
            *(f"{results[size][name] * 1e3:.1f}" for size in sizes),
            f"{results[10_000][name] / results[1_000][name]:.1f}x",
        )
        for name in results[sizes[0]]
    ]
    table(columns, rows)
    real()


def real() -> None:
    """Prints what the config of a run takes: hundreds of modules are loaded, and its classes are re-exported."""
    from dovetail.nn import Norm, RMSNorm
    from dovetail.zoo import recipe

    cfg = recipe("deepseek-v3")
    text, copies = to_json(cfg), iter([fresh(cfg) for _ in range(6)])
    found = medians(
        {
            "make it": lambda: recipe("deepseek-v3"),
            "replace_all": lambda: replace_all(Norm.Config, RMSNorm.Config())(cfg),
            "to_text": lambda: to_text(cfg),
            "to_json": lambda: to_json(cfg),
            "from_json": lambda: from_json(text),
            "hash": lambda: hash(next(copies)),
        },
        rounds=5,
    )
    nodes = len(find(cfg, ConfigBase))
    table((f"the run of deepseek-v3, {nodes} nodes", "milliseconds"), [(k, f"{1e3 * v:.1f}") for k, v in found.items()])


if __name__ == "__main__":
    program(main)
