# SPDX-License-Identifier: Apache-2.0
"""The features that the growth harness tries: their variants, and what each must do to a model.

How many parameters a variant adds follows from the model before it, by the shapes of its parameters and the numbers of
the variant, without the code of the feature.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from dovetail.config import ConfigBase, find
from dovetail.module import ParamSpec
from dovetail.nn import (
    ALiBi,
    Attention,
    Capacity,
    DenseFeedForward,
    DenseLinear,
    DynamicRoPE,
    Float8Linear,
    FrequencyRotary,
    GatedFeedForward,
    GroupedLinear,
    Int8Linear,
    LayerNorm,
    Linear,
    LinearRoPE,
    Llama3RoPE,
    LoRAGroupedLinear,
    LoRALinear,
    MoEFeedForward,
    Norm,
    NoRotary,
    PartialRotary,
    RMSNorm,
    RoPE,
    TopKRouter,
    YaRN,
)

from . import _modifiers

Specs = Mapping[str, ParamSpec]  # By path.


@dataclass(frozen=True)
class Trial:
    """A feature: its modifier, and how to tell that it did what it should."""

    modifier: Callable[[Any, Any], Any]  # From config and variant to config. Its lines are counted.
    variants: Mapping[str, Any]
    replaces: tuple[type[ConfigBase], ...]  # What it finds in a config, ...
    shows: Callable[[Any, Any], bool]  # ... and whether a node that stands there afterwards is of the variant.
    added: Callable[[Specs, Any], int]  # Parameters that a variant adds to a model.
    at: str = ""  # Only places whose path ends so.

    def places(self, cfg: ConfigBase, variant: Any) -> list[str]:
        """Returns where the modifier must change a config; inside a node that it replaces, there is nothing to do."""
        return self._places(cfg, _pattern(variant))

    def has_place(self, cfg: ConfigBase) -> bool:
        """Whether every variant has something to change in a config."""
        return all(self._places(cfg, pattern) for pattern in set(map(_pattern, self.variants.values())))

    def _places(self, cfg: ConfigBase, pattern: str) -> list[str]:
        found: list[str] = []
        for path, node in find(cfg, ConfigBase):
            inside = any(path.startswith((f"{outer}.", f"{outer}[")) for outer in found)
            if isinstance(node, self.replaces) and path.endswith(self.at) and not inside and fnmatchcase(path, pattern):
                found.append(path)
        return found


def _pattern(variant: Any) -> str:
    """Returns which places a variant is for; it may be a pair of that and what is put there."""
    return variant[0] if isinstance(variant, tuple) else "*"


def _same_type(node: Any, variant: Any) -> bool:
    return type(node) is type(variant)


def _has_router(node: Any, variant: Any) -> bool:
    return isinstance(node, MoEFeedForward.Config) and node.router == variant.router


def _has_fields(node: Any, fields: Any) -> bool:
    return all(getattr(node, name) == value for name, value in fields.items())


def _is_adapter(node: Any, variant: Any) -> bool:
    return isinstance(node, (LoRALinear.Config, LoRAGroupedLinear.Config)) and node.rank == variant.rank


def _is_quantised(node: Any, variant: Any) -> bool:
    return type(node) is type(variant[1]) and node.gradients == variant[1].gradients


def _nothing(before: Specs, variant: Any) -> int:
    return 0


def _layers(spec: ParamSpec) -> int:
    """Returns how many matrices a parameter of stacked layers is."""
    return spec.size // (spec.fan_in * spec.fan_out)


def _added_by_moe(before: Specs, new: Any) -> int:
    """Each weight and bias as often as there are experts, and what belongs to a layer: router and shared expert."""
    ends, added = ("ffn.gate", "ffn.up", "ffn.down"), 0
    for path, spec in before.items():
        if "expert" in spec.axes or not path.rpartition(".")[0].endswith(ends):
            continue
        added += (new.num_experts - 1) * spec.size
        if path.endswith("up.weight"):
            dim, router = spec.fan_in, new.router
            biases = router.bias  # That of the selection is state of the run.
            shared = 3 * dim * new.shared.hidden_dim if new.shared else 0
            added += _layers(spec) * (new.num_experts * (dim + biases) + shared)
    return added


def _added_by_norm(before: Specs, new: Any) -> int:
    """A scale and a bias, or not, in place of those that were there."""
    norms = {path: spec for path, spec in before.items() if path.rpartition(".")[0].endswith("norm")}
    kept = new.scale + getattr(new, "bias", False)
    scales = [spec.size for path, spec in norms.items() if path.endswith("scale")]
    return kept * sum(scales) - sum(spec.size for spec in norms.values())


def _attentions(before: Specs) -> Iterator[tuple[Specs, ParamSpec]]:
    """Yields the parameters of each attention by their names in it, and the weight of its queries.

    Mamba and latent attention have parameters of the same names, and others that tell them apart.
    """
    for place in {path.removesuffix("key.weight") for path in before if path.endswith("mixer.key.weight")}:
        inner = {path.removeprefix(place): spec for path, spec in before.items() if path.startswith(place)}
        if "key_conv.weight" not in inner:
            yield inner, inner["query.weight"]


def _added_by_attention(before: Specs, fields: Any) -> int:
    added = 0
    for inner, query in _attentions(before):
        heads, width = query.shape[-2:]
        if fields.get("sinks") and "sink" not in inner:
            added += _layers(query) * heads
        if "gate" in fields and "gate.weight" not in inner:
            added += query.size
        if "query_norm" in fields:
            norms = [spec.size for path, spec in inner.items() if path.startswith(("query_norm.", "key_norm."))]
            added += 2 * _layers(query) * width - sum(norms)
        if "num_kv_heads" in fields:
            old, new = inner["key.weight"].shape[-2], fields["num_kv_heads"]
            sizes = [spec.size for path, spec in inner.items() if path.startswith(("key.", "value."))]
            norms = [spec for path, spec in inner.items() if path.startswith("key_norm.")]
            sizes += [spec.size for spec in norms if "kv_heads" in spec.axes]  # Otherwise all heads share them.
            added += sum(size // old * new - size for size in sizes)
    return added


def _added_by_lora(before: Specs, new: Any) -> int:
    """Rows and columns for each matrix, those of each expert too, that is not of a router, which stays in float32."""
    weights = [spec for path, spec in before.items() if path.endswith(".weight") and spec.in_dims and spec.out_dims]
    linear = [spec for spec in weights if spec.cast]
    return sum(new.rank * (spec.fan_in + spec.fan_out) * _layers(spec) for spec in linear)


_EXTENDED = {"factor": 4.0, "original_length": 8192}
_QK_NORM = {"query_norm": RMSNorm.Config(), "key_norm": RMSNorm.Config(), "norm_over": "head"}


def _experts(count: int, **fields: Any) -> Any:
    router = TopKRouter.Config(**fields.pop("router", {}))
    return MoEFeedForward.Config(num_experts=count, router=router, **fields)


TRIALS: Mapping[str, Trial] = {
    "rope": Trial(
        _modifiers.rope,
        {
            "plain": RoPE.Config(),
            "interleaved": RoPE.Config(interleaved=True),
            "linear": LinearRoPE.Config(factor=4.0),
            "dynamic": DynamicRoPE.Config(**_EXTENDED),
            "llama3": Llama3RoPE.Config(),
            "yarn": YaRN.Config(**_EXTENDED),
            "yarn-mscale": YaRN.Config(**_EXTENDED, mscale=0.7),
            "partial": PartialRotary.Config(),
            "partial-yarn": PartialRotary.Config(inner=YaRN.Config(**_EXTENDED)),
            "none": NoRotary.Config(),
        },
        replaces=(FrequencyRotary.Config,),
        shows=_same_type,
        added=_nothing,
    ),
    "moe": Trial(
        _modifiers.moe,
        {
            "8": _experts(8),
            "64": _experts(64, router={"top_k": 8}),
            "switch": _experts(8, router={"top_k": 1, "normalize": False}),
            "sigmoid": _experts(8, router={"score": "sigmoid"}),
            "biased": _experts(8, router={"bias": True}),
            "grouped": _experts(16, router={"num_groups": 4, "top_groups": 2}),
            "loss-free": _experts(8, router={"selection_rate": 1e-3, "balance_loss": 0.0}),
            "z-loss": _experts(8, router={"z_loss": 1e-3}),
            "capacity": _experts(8, dispatch=Capacity.Config()),
            "shared": _experts(8, shared=GatedFeedForward.Config(hidden_dim=256)),
        },
        replaces=(GatedFeedForward.Config, DenseFeedForward.Config),
        shows=_has_router,
        added=_added_by_moe,
        at=".ffn",
    ),
    "norm": Trial(
        _modifiers.norm,
        {
            "rms": RMSNorm.Config(),
            "rms-offset": RMSNorm.Config(offset=1.0),
            "rms-plain": RMSNorm.Config(scale=False),
            "layer": LayerNorm.Config(bias=True),  # Said, so that a norm without one does not pass that on.
            "layer-unbiased": LayerNorm.Config(bias=False),
        },
        replaces=(Norm.Config,),
        shows=_same_type,
        added=_added_by_norm,
    ),
    "attention": Trial(
        _modifiers.attention,
        {
            "window": {"window": 8},
            "soft-cap": {"soft_cap": 30.0},
            "sinks": {"sinks": True},
            "gated": {"gate": DenseLinear.Config()},
            "qk-norm": _QK_NORM,
            "multi-query": {"num_kv_heads": 1},
            "alibi": {"position_bias": ALiBi.Config(), "rotary": NoRotary.Config()},
        },
        replaces=(Attention.Config,),
        shows=_has_fields,
        added=_added_by_attention,
    ),
    "lora": Trial(
        _modifiers.lora,
        {
            "rank-4": LoRALinear.Config(rank=4),
            "rank-8": LoRALinear.Config(rank=8),
            "rank-64": LoRALinear.Config(rank=64),
            "alpha-32": LoRALinear.Config(rank=8, alpha=32.0),
        },
        replaces=(Linear.Config, GroupedLinear.Config),
        shows=_is_adapter,
        added=_added_by_lora,
    ),
    "quantised": Trial(
        _modifiers.quantised,
        {
            "int8": ("*", Int8Linear.Config()),
            "int8-forward": ("*", Int8Linear.Config(gradients="none")),
            "int8-feed-forward": ("*.ffn.*", Int8Linear.Config()),
            "int8-mixer": ("*.mixer.*", Int8Linear.Config()),
            "float8": ("*", Float8Linear.Config()),
            "float8-feed-forward": ("*.ffn.*", Float8Linear.Config()),
        },
        replaces=(DenseLinear.Config,),
        shows=_is_quantised,
        added=_nothing,
    ),
}
