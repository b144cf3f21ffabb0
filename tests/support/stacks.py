# SPDX-License-Identifier: Apache-2.0
"""Random stacks of layers, and the layers in them by the words of the docstrings of `Repeat` and `Sequence`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dovetail.models import CausalLM
from dovetail.module import merged, run_specs, specs
from dovetail.nn import (
    Attention,
    Block,
    DenseLinear,
    GatedFeedForward,
    Layer,
    Mamba2,
    MoEFeedForward,
    Repeat,
    Sequence,
    TopKRouter,
)
from dovetail.optim import by_path
from dovetail.zoo.families._common import ENDS, EXPERTS, PRE_NORMS, attention, gated_ffn, mamba

from .models import mixer_only

_BIASED = DenseLinear.Config(bias=True)
KINDS: dict[str, Layer.Config] = {
    "dense": Block.Config(
        mixer=Attention.Config(num_heads=4, num_kv_heads=2, head_dim=2, query=_BIASED),
        ffn=GatedFeedForward.Config(hidden_dim=5),
    ),
    "experts": Block.Config(
        mixer=Attention.Config(num_heads=2, head_dim=4),
        ffn=MoEFeedForward.Config(hidden_dim=4, num_experts=3, router=TopKRouter.Config(top_k=2)),
    ),
    "states": mixer_only(Mamba2.Config(num_heads=4, head_dim=2, state_dim=3, num_groups=2, norm_over="group")),
}
ROWS = (
    *ENDS,
    *PRE_NORMS,
    *attention("layer.mixer:Attention"),
    *gated_ffn(here="layer.ffn:GatedFeedForward"),
    *EXPERTS,
    *mamba("model.layers.{l}.mamba", "layer.mixer:Mamba2"),
)


_ALL = tuple(KINDS.values())


@st.composite
def stacks(draw, kinds=_ALL, depth: int = 2) -> Layer.Config:
    """Draws a stack: a layer, a repeated one, a pattern with or without a remainder, a sequence, and these nested."""
    inside = stacks(kinds, depth - 1) if depth else st.sampled_from(kinds)
    form = draw(st.sampled_from(["one", "repeat", "pattern", "sequence"])) if depth else "one"
    if form == "one":
        return draw(st.sampled_from(kinds))
    if form == "repeat":
        return Repeat.Config(layer=draw(inside), num_layers=draw(st.integers(1, 3)))
    layers = tuple(draw(st.lists(inside, min_size=1, max_size=3)))
    if form == "sequence":
        return Sequence.Config(layers=layers)
    return Repeat.Config(layer=layers, num_layers=draw(st.integers(len(layers), 2 * len(layers) + 1)))


def model_of(stack: Layer.Config, **fields: Any) -> CausalLM.Config:
    """Returns a model with a stack."""
    return CausalLM.Config(**{"vocab_size": 7, "dim": 6, "stack": stack, **fields})


def shapes_of(model: CausalLM.Config) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all parameters and of the state of the run, by path."""
    built = model.build()
    return {path: spec.shape for path, spec in by_path(merged(specs(built), run_specs(built))).items()}


def numbered(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Returns arrays of these shapes in which each number, of all arrays, is another."""
    found, start = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        found[name] = np.arange(start, start + size).reshape(shape)
        start += size
    return found


def layers_in(stack: Layer.Config, params: Mapping[str, Any], path: str = "stack") -> list[tuple[Any, dict[str, Any]]]:
    """Returns each layer in the order in which they run, with its parameters by their paths in it."""
    own = {name.removeprefix(f"{path}."): value for name, value in params.items() if name.startswith(f"{path}.")}
    if isinstance(stack, Sequence.Config):
        return [each for i, layer in enumerate(stack.layers) for each in layers_in(layer, own, f"layers[{i}]")]
    if not isinstance(stack, Repeat.Config):
        return [(stack, own)]
    if not isinstance(stack.layer, tuple):
        turns = [{name: value[i] for name, value in own.items()} for i in range(stack.num_layers)]
        return [each for turn in turns for each in layers_in(stack.layer, turn, "layer")]
    period, found = len(stack.layer), []
    whole = stack.num_layers - stack.num_layers % period
    for i in range(stack.num_layers):
        if i < whole:
            turn = {name: value[i // period] for name, value in own.items() if _place(name) < period}
            found += layers_in(stack.layer[i % period], turn, f"layer[{i % period}]")
        else:
            found += layers_in(stack.layer[i - whole], own, f"layer[{period + i - whole}]")
    return found


def _place(name: str) -> int:
    """Returns the number in a name like `layer[2].mixer`."""
    return int(name.partition("[")[2].partition("]")[0])
