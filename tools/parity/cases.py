# SPDX-License-Identifier: Apache-2.0
"""Small models of every family: arguments for the configs of transformers, with odd shapes and every option.

`case(family, rng, index)` draws one. Case 0 is plain and close to the published models; the others are odd: shapes
that no two axes share, windows of a few tokens, patterns of layers that nothing divides, each rope scaling in turn.
All of them are legal for transformers. No file of ours is needed to read them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

LONGEST = 64  # Positions of a model whose rope does not need fewer.


class Draw:
    """Draws the values of one case."""

    def __init__(self, rng: np.random.Generator, index: int, place: int) -> None:
        self.rng, self.index, self.odd = rng, index, index > 0
        self.place = place  # Of the family among all: the first odd cases of two families have different ropes.

    def pick(self, plain: Any, *others: Any) -> Any:
        """Returns `plain` in a plain case, else one of all."""
        options = (plain, *others)
        return options[int(self.rng.integers(len(options)))] if self.odd else plain

    def flag(self, plain: bool = False) -> bool:
        return self.pick(plain, not plain)

    def count(self, plain: int, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1)) if self.odd else plain

    def real(self, plain: float, low: float, high: float) -> float:
        return round(float(self.rng.uniform(low, high)), 4) if self.odd else plain

    def reals(self, number: int, low: float, high: float) -> list[float]:
        return [round(float(value), 3) for value in self.rng.uniform(low, high, number)]

    def eps(self, plain: float = 1e-5) -> float:
        return self.pick(1e-4, 1e-3, 5e-3, 1e-2) if self.odd else plain

    def kinds(self, layers: int, *types: str) -> list[str]:
        """Returns a type for each layer, without a pattern but with every type if there are layers enough."""
        names = [types[i % len(types)] if i < len(types) else self.pick(*types) for i in range(layers)]
        self.rng.shuffle(names)
        return names


def transformer(d: Draw, *, head_dim: bool, free: bool = False, layers: int = 3) -> dict[str, Any]:
    """Returns the shapes that all transformers share.

    Args:
        head_dim: the family has a field for it; else hidden_size and the number of heads imply it.
        free: the family does not ask that the heads divide hidden_size.
    """
    kv = d.pick(2, 1, 2, 3)
    heads = kv * d.pick(2, 1, 2, 3) if kv > 1 else d.pick(4, 2, 3, 4)
    size = d.pick(8, 6, 8, 10, 12) if not head_dim and heads > 4 else d.pick(8, 6, 10, 12, 14, 16)
    hidden = heads * size
    if head_dim:
        hidden = d.pick(*(n for n in (32, *range(24, 65)) if free or n % heads == 0))
    result = {
        "vocab_size": d.count(64, 60, 100),
        "hidden_size": hidden,
        "intermediate_size": d.count(48, 20, 75),
        "num_hidden_layers": d.count(layers, 2, 5),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "max_position_embeddings": LONGEST,
    }
    return result | ({"head_dim": size} if head_dim else {})


# Rope types, in the order in which odd cases take them. A family that has its own list starts at its first.
SCALINGS = (
    *("linear", "longrope", "yarn", "llama3", "yarn-mscale", "default", "dynamic", "yarn-attention", "longrope-short"),
)


def rope(d: Draw, dim: int, *, theta: float = 10000.0, kinds: tuple[str, ...] = SCALINGS) -> dict[str, Any]:
    """Returns `rope_parameters` for `dim` rotated dims, and the positions if the type needs few of them."""
    turn = d.index - 1 + (2 * d.place if kinds is SCALINGS else 0)
    kind = kinds[turn % len(kinds)] if d.odd else "default"
    values, positions = scaling(d, kind, dim)
    # The bounds of yarn fall between the frequencies only if these are not far apart.
    thetas = (20.0, 50.0, 100.0, 1000.0) if kind.startswith("yarn") else (10000.0, 50.0, 500.0, 1000.0, theta)
    values["rope_theta"] = d.pick(*thetas) if d.odd else theta
    return {"rope_parameters": values} | ({"max_position_embeddings": positions} if positions else {})


def scaling(d: Draw, kind: str, dim: int) -> tuple[dict[str, Any], int | None]:
    """Returns the parameters of one rope type without its theta, and `max_position_embeddings` where that matters."""
    original = d.count(16, 8, 16)
    factor = d.pick(4.0, 2.0, 3.5, 8.0)
    name = kind.split("-")[0]
    values: dict[str, Any] = {"rope_type": name}
    if name == "default":
        return values, None
    if name == "dynamic":  # Frequencies depend on the length, from max_position_embeddings on.
        return values | {"factor": factor}, original
    if name == "linear":
        return values | {"factor": factor}, None
    if name == "llama3":
        extra = {"low_freq_factor": d.real(1.0, 0.5, 1.0), "high_freq_factor": d.real(4.0, 2.0, 4.0)}
        return values | extra | {"factor": factor, "original_max_position_embeddings": original}, None
    if name == "longrope":  # Which factors are used depends on the length: all of decoding is beyond 5, or within 48.
        original = 48 if kind == "longrope-short" else d.pick(5, 5, original)
        values |= {"short_factor": d.reals(dim // 2, 1.0, 3.0), "long_factor": d.reals(dim // 2, 1.0, 6.0)}
        values |= {"original_max_position_embeddings": original}
        values |= d.pick({}, {"factor": factor}, {"attention_factor": d.real(1.2, 0.8, 1.5)})
        return values, None
    values |= {"factor": factor, "original_max_position_embeddings": original}
    values |= d.pick({}, {"beta_fast": 2.0, "beta_slow": 0.1}, {"beta_fast": 1.5, "beta_slow": 0.2, "truncate": False})
    if kind == "yarn-mscale":
        values |= {"mscale": d.real(1.0, 0.5, 1.5), "mscale_all_dim": d.real(0.7, 0.5, 1.5)}
    if kind == "yarn-attention":
        values |= {"attention_factor": d.real(1.2, 0.8, 1.5)}
    return values, None


def head_size(shapes: dict[str, Any]) -> int:
    return shapes.get("head_dim") or shapes["hidden_size"] // shapes["num_attention_heads"]


def window(d: Draw, plain: int | None = 6) -> int | None:
    return d.pick(plain, 4, 5, 6, 7, 9)


def gated(d: Draw) -> str:
    return d.pick("silu", "silu", "gelu", "gelu_pytorch_tanh", "relu")


def experts(d: Draw, number: str, *, most: int = 4) -> dict[str, Any]:
    # Not one: where weights have the sum 1, dovetail refuses that, as its router would not learn.
    return {number: d.count(4, 4, 8), "num_experts_per_tok": d.count(2, 2, most)}


def gpt2(d: Draw) -> dict[str, Any]:
    heads = d.pick(4, 1, 2, 3, 5)
    return {
        "vocab_size": d.count(64, 60, 100),
        "n_positions": d.count(48, 40, 70),
        "n_embd": heads * d.pick(8, 7, 9, 12),
        "n_layer": d.count(3, 2, 5),
        "n_head": heads,
        "n_inner": d.pick(None, None, 37, 90),
        "activation_function": d.pick("gelu_new", "gelu", "relu", "gelu_pytorch_tanh", "silu"),
        "layer_norm_epsilon": d.eps(),
        "scale_attn_weights": d.flag(True),
        "scale_attn_by_inverse_layer_idx": d.flag(),
        "tie_word_embeddings": d.pick(True, True, False),
    }


def llama(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=True)
    tail = {"hidden_act": gated(d), "rms_norm_eps": d.eps(), "attention_bias": d.flag(), "mlp_bias": d.flag()}
    tail |= {"tie_word_embeddings": d.flag()}
    return shapes | tail | rope(d, head_size(shapes), theta=500000.0 if d.odd else 10000.0)


def mistral(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=True, free=True)
    tail = {"hidden_act": gated(d), "rms_norm_eps": d.eps(), "tie_word_embeddings": d.flag()}
    return shapes | tail | {"sliding_window": window(d)} | rope(d, head_size(shapes))


def mixtral(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=True, free=True)
    tail = {"hidden_act": gated(d), "rms_norm_eps": d.eps(), "tie_word_embeddings": d.flag()}
    tail |= {"sliding_window": window(d, None)} | experts(d, "num_local_experts")
    return shapes | tail | rope(d, head_size(shapes), theta=1e6)


def _qwen_windows(d: Draw, layers: int) -> dict[str, Any]:
    """Returns the windows of qwen2 and qwen3: none, from a layer on, or of the layers named."""
    if not d.odd or d.index % 3 == 1:
        return {"use_sliding_window": False}
    result = {"use_sliding_window": True, "sliding_window": window(d)}
    if d.index % 3 == 0:
        return result | {"max_window_layers": d.count(1, 1, layers - 1)}
    return result | {"layer_types": d.kinds(layers, "sliding_attention", "full_attention")}


def qwen2(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=False)
    tail = {"hidden_act": gated(d), "rms_norm_eps": d.eps(1e-6), "tie_word_embeddings": d.flag(True)}
    return shapes | tail | _qwen_windows(d, shapes["num_hidden_layers"]) | rope(d, head_size(shapes), theta=1e6)


def qwen3(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=True, free=True)
    tail = {"hidden_act": gated(d), "rms_norm_eps": d.eps(1e-6), "tie_word_embeddings": d.flag(True)}
    tail |= {"attention_bias": d.flag()} | _qwen_windows(d, shapes["num_hidden_layers"])
    return shapes | tail | rope(d, head_size(shapes), theta=1e6)


def qwen3_moe(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=True, free=True)
    layers = shapes["num_hidden_layers"]
    tail = {"hidden_act": gated(d), "rms_norm_eps": d.eps(1e-6), "tie_word_embeddings": d.flag()}
    tail |= {"attention_bias": d.flag(), "norm_topk_prob": d.flag(True), "moe_intermediate_size": d.count(24, 10, 40)}
    tail |= {"decoder_sparse_step": d.pick(1, 1, 2), "mlp_only_layers": d.pick([], [], [layers - 1], [0])}
    tail |= d.pick({}, {}, {"use_sliding_window": True, "sliding_window": window(d)})
    return shapes | tail | experts(d, "num_experts") | rope(d, head_size(shapes), theta=1e6)


def gemma(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=True, free=True)
    tail = {"hidden_act": d.pick("gelu_pytorch_tanh", "gelu", "silu"), "rms_norm_eps": d.eps(1e-6)}
    tail |= {"attention_bias": d.flag(), "tie_word_embeddings": d.pick(True, True, False)}
    return shapes | tail | rope(d, head_size(shapes))


def _gemma_tail(d: Draw, layers: int, period: int) -> dict[str, Any]:
    """Returns what the second and third models share; without `layer_types`, the last of each `period` is full."""
    tail = {
        "hidden_activation": d.pick("gelu_pytorch_tanh", "gelu_pytorch_tanh", "silu"),
        "rms_norm_eps": d.eps(1e-6),
        "attention_bias": d.flag(),
        "query_pre_attn_scalar": d.count(8, 3, 30),
        "sliding_window": window(d),
        "tie_word_embeddings": d.pick(True, True, False),
    }
    kinds = d.kinds(layers, "sliding_attention", "full_attention")
    return tail | d.pick(*([{}, {}] if layers >= period else []), {"layer_types": kinds})


def gemma2(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=True)
    tail = _gemma_tail(d, shapes["num_hidden_layers"], 2)
    tail |= {"final_logit_softcapping": d.pick(30.0, None, 12.0), "attn_logit_softcapping": d.pick(50.0, None, 2.0)}
    return shapes | tail | rope(d, head_size(shapes))


def _two_ropes(d: Draw, dim: int, far: float, near: float) -> dict[str, Any]:
    """Returns ropes of their own for layers with and without a window, in the form that transformers 5 writes."""
    full = rope(d, dim, theta=far)
    own = dict(full.pop("rope_parameters"))
    local = {"rope_type": "default", "rope_theta": near if not d.odd else d.pick(near, 100.0, 1000.0)}
    return full | {"rope_parameters": {"full_attention": own, "sliding_attention": local}}


def gemma3_text(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=True, layers=7)
    shapes["num_hidden_layers"] = d.count(7, 3, 8)
    tail = _gemma_tail(d, shapes["num_hidden_layers"], 6)
    tail |= {"final_logit_softcapping": d.pick(None, 12.0), "attn_logit_softcapping": None}
    return shapes | tail | _two_ropes(d, head_size(shapes), 1e6, 1e4)


def phi3(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=False)
    size = head_size(shapes)
    part = d.pick(1.0, *(p for p in (0.5, 0.75, 0.8) if int(size * p) % 2 == 0))
    tail = {"hidden_act": gated(d), "rms_norm_eps": d.eps(), "tie_word_embeddings": d.flag()}
    own = rope(d, int(size * part), kinds=("default", "longrope", "longrope-short", "longrope", "longrope"))
    values = own["rope_parameters"] | {"partial_rotary_factor": part}
    original = values.get("original_max_position_embeddings", LONGEST)
    own |= {"rope_parameters": values, "original_max_position_embeddings": original}
    return shapes | tail | {"sliding_window": window(d, None)} | own


def olmo2(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=False)
    tail = {"hidden_act": gated(d), "rms_norm_eps": d.eps(1e-6), "attention_bias": d.flag()}
    return shapes | tail | {"tie_word_embeddings": d.flag()} | rope(d, head_size(shapes), theta=500000.0)


def olmo3(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=False, layers=5)
    shapes["num_hidden_layers"] = layers = d.count(5, 2, 7)
    tail = {"hidden_act": gated(d), "rms_norm_eps": d.eps(1e-6), "attention_bias": d.flag()}
    tail |= {"sliding_window": window(d), "tie_word_embeddings": d.flag()}
    kinds = d.kinds(layers, "sliding_attention", "full_attention")
    tail |= d.pick(*([{}, {}] if layers >= 4 else []), {"layer_types": kinds})
    return shapes | tail | _two_ropes(d, head_size(shapes), 500000.0, 500000.0)


def olmoe(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=False)
    tail = {"hidden_act": gated(d), "rms_norm_eps": d.eps(), "attention_bias": d.flag()}
    tail |= {"clip_qkv": d.pick(None, 1.5), "norm_topk_prob": d.flag(), "tie_word_embeddings": d.flag()}
    return shapes | tail | experts(d, "num_experts") | rope(d, head_size(shapes))


def _latent(d: Draw, *, even: bool) -> dict[str, Any]:
    """Returns what DeepSeek's second and third models share: latent attention and experts in groups.

    Args:
        even: as transformers' second model needs it, which sees pairs of a row as complex numbers.
    """
    heads = d.pick(4, 2, 3, 5)
    groups, number = d.pick((2, 8), (1, 5), (3, 6), (2, 6), (4, 8), (2, 4))
    kept = d.count(1, 1, max(1, groups - 1))
    layers = d.count(3, 2, 5)
    return {
        "vocab_size": d.count(64, 60, 100),
        "hidden_size": heads * d.pick(8, 7, 10, 12),
        "intermediate_size": d.count(48, 20, 75),
        "moe_intermediate_size": d.count(20, 10, 30),
        **{"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads},
        "max_position_embeddings": LONGEST,
        "q_lora_rank": d.pick(20, None, 13, 18),
        "kv_lora_rank": d.pick(16, 10, 22) + (0 if even else d.pick(0, 1)),
        "qk_nope_head_dim": d.pick(8, 6, 10) - (0 if even else d.pick(0, 1)),
        "qk_rope_head_dim": d.pick(4, 6, 8),
        "v_head_dim": d.pick(8, 10, 11, 3),
        "n_routed_experts": number,
        "n_group": groups,
        "topk_group": kept,
        "num_experts_per_tok": d.count(2, 1, min(4, kept * number // groups)),
        "n_shared_experts": d.count(1, 1, 3),
        "first_k_dense_replace": d.count(1, 0, layers - 1),
        "routed_scaling_factor": d.pick(1.0, 2.5, 1.7),
        "hidden_act": gated(d),
        "rms_norm_eps": d.eps(1e-6),
        "attention_bias": d.flag(),
        "tie_word_embeddings": d.flag(),
    }


_LATENT_SCALINGS = ("default", "yarn-mscale", "yarn", "linear", "yarn-attention", "llama3", "longrope", "dynamic")


def deepseek_v2(d: Draw) -> dict[str, Any]:
    result: dict[str, Any] = _latent(d, even=True) | {"topk_method": ("greedy", "group_limited_greedy")[d.index % 2]}
    result |= {"mlp_bias": d.flag(), "norm_topk_prob": False}
    return result | rope(d, result["qk_rope_head_dim"], kinds=_LATENT_SCALINGS)


def deepseek_v3(d: Draw) -> dict[str, Any]:
    result: dict[str, Any] = _latent(d, even=False)
    result["norm_topk_prob"] = d.flag(True) and result["num_experts_per_tok"] > 1
    result["rope_interleave"] = d.pick(True, True, False)
    result |= {"num_nextn_predict_layers": 0, "routed_scaling_factor": d.pick(2.5, 1.0, 1.7)}
    return result | rope(d, result["qk_rope_head_dim"], kinds=_LATENT_SCALINGS)


def gpt_oss(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=True, free=True)
    layers = shapes["num_hidden_layers"]
    tail = {"rms_norm_eps": d.eps(), "attention_bias": d.flag(True), "sliding_window": window(d)}
    tail |= {"swiglu_limit": d.pick(7.0, 1.5), "tie_word_embeddings": d.flag()} | experts(d, "num_local_experts")
    tail |= d.pick({}, {}, {"layer_types": d.kinds(layers, "sliding_attention", "full_attention")})
    own = rope(d, head_size(shapes), theta=150000.0)
    if not d.odd:  # As published, but for lengths at which it is seen.
        shapes["head_dim"] = 16
        values = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
        own["rope_parameters"] |= values | {"original_max_position_embeddings": 16, "rope_theta": 150.0}
    return shapes | tail | own


def _multipliers(d: Draw, size: int) -> dict[str, Any]:
    return {
        "embedding_multiplier": d.real(2.0, 0.5, 6.0),
        "logits_scaling": d.real(8.0, 0.5, 8.0),
        "residual_multiplier": d.real(0.5, 0.3, 1.2),
        "attention_multiplier": d.real(1.0 / size, 0.05, 0.6),
    }


def granite(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=False)
    tail = {"hidden_act": gated(d), "rms_norm_eps": d.eps(), "attention_bias": d.flag(), "mlp_bias": d.flag()}
    tail |= {"tie_word_embeddings": d.flag(True)} | _multipliers(d, head_size(shapes))
    return shapes | tail | rope(d, head_size(shapes))


def _mamba(d: Draw, hidden: int) -> dict[str, Any]:
    """Returns the sizes of Mamba 2 beside a model dim of `hidden`; groups divide the heads."""
    inner = 2 * hidden
    heads = d.pick(*[n for n in (8, 2, 4, 6, 12) if inner % n == 0])
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": d.pick(1, *(n for n in (1, 2, 3) if heads % n == 0)),
        "mamba_d_state": d.pick(16, 5, 7, 12),
        "mamba_d_conv": d.pick(4, 2, 3, 4),
        "mamba_expand": 2,
        "mamba_chunk_size": d.pick(8, 5, 16, 256),
        "mamba_conv_bias": d.flag(True),
        "mamba_proj_bias": d.flag(),
    } | ({"time_step_limit": [0.02, 0.6]} if d.index == 4 else {})


def granitemoehybrid(d: Draw) -> dict[str, Any]:
    """Cases take turns: with experts, dense, then with rope or without."""
    shapes = transformer(d, head_dim=False, layers=4)
    shapes["num_hidden_layers"] = layers = d.count(4, 2, 6)
    tail = {"hidden_act": "silu", "rms_norm_eps": d.eps(), "attention_bias": d.flag()}
    tail |= {"shared_intermediate_size": d.count(40, 20, 60), "tie_word_embeddings": d.flag(True)}
    tail |= _multipliers(d, head_size(shapes)) | _mamba(d, shapes["hidden_size"]) | experts(d, "num_local_experts")
    if d.index % 2:
        tail |= {"num_local_experts": 0, "num_experts_per_tok": 0}
    plain = ["mamba"] * (layers - 1) + ["attention"]
    tail |= {"layer_types": d.kinds(layers, "mamba", "attention") if d.odd else plain}
    tail |= {"position_embedding_type": "rope" if d.index % 4 in (2, 3) else None}
    return shapes | tail | rope(d, head_size(shapes))


def smollm3(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=False, layers=5)
    shapes["num_hidden_layers"] = layers = d.count(5, 2, 7)
    tail = {"hidden_act": gated(d), "rms_norm_eps": d.eps(1e-6), "attention_bias": d.flag(), "mlp_bias": d.flag()}
    tail |= d.pick({}, {"no_rope_layer_interval": 2}, {"no_rope_layers": [int(i % 3 == 1) for i in range(layers)]})
    tail |= d.pick({}, {"use_sliding_window": True, "sliding_window": window(d)})
    return shapes | tail | {"tie_word_embeddings": d.flag(True)} | rope(d, head_size(shapes), theta=5e6)


def cohere(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=False)
    tail = {"hidden_act": gated(d), "layer_norm_eps": d.eps(), "attention_bias": d.flag(), "use_qk_norm": d.flag()}
    tail |= {"logit_scale": d.real(0.0625, 0.05, 2.0), "tie_word_embeddings": d.pick(True, True, False)}
    return shapes | tail | rope(d, head_size(shapes), theta=8e6)


def gpt_neox(d: Draw) -> dict[str, Any]:
    heads, size = d.pick(4, 2, 3, 5), d.pick(8, 12, 16)
    part = d.pick(0.25, 0.5, 1.0)
    result = {"vocab_size": d.count(64, 60, 100), "hidden_size": heads * size, "num_attention_heads": heads}
    result |= {"intermediate_size": d.count(64, 30, 90), "num_hidden_layers": d.count(3, 2, 5)}
    result |= {"max_position_embeddings": LONGEST, "layer_norm_eps": d.eps(), "tie_word_embeddings": d.flag()}
    result |= {"hidden_act": d.pick("gelu", "gelu_new", "relu", "gelu_pytorch_tanh")}
    result |= {"use_parallel_residual": d.flag(True), "attention_bias": d.flag(True)}
    own = rope(d, max(int(size * part), 4))
    part = max(part, 4 / size)  # `dynamic` divides by two dims less than are rotated.
    own["rope_parameters"] |= {"partial_rotary_factor": part}
    return result | own


def starcoder2(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=False)
    tail = {"hidden_act": d.pick("gelu_pytorch_tanh", "gelu", "relu", "silu"), "norm_epsilon": d.eps()}
    tail |= {"use_bias": d.flag(True), "sliding_window": window(d, 9), "tie_word_embeddings": d.flag(True)}
    return shapes | tail | rope(d, head_size(shapes), theta=1e5)


def mamba2(d: Draw) -> dict[str, Any]:
    hidden = d.pick(32, 24, 30, 36, 48)
    names = {"n_heads": "num_heads", "d_head": "head_dim", "d_state": "state_size", "d_conv": "conv_kernel"}
    names |= {"conv_bias": "use_conv_bias", "proj_bias": "use_bias"}
    own = {name.removeprefix("mamba_"): value for name, value in _mamba(d, hidden).items()}
    tail = {"vocab_size": d.count(64, 60, 100), "hidden_size": hidden, "num_hidden_layers": d.count(3, 2, 5)}
    tail |= {"layer_norm_epsilon": d.eps(), "tie_word_embeddings": d.flag(True)}
    return tail | {names.get(name, name): value for name, value in own.items()}


def bamba(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=False, layers=4)
    while head_size(shapes) % 4:  # Half of a head is rotated, in pairs.
        shapes = transformer(d, head_dim=False, layers=4)
    shapes["num_hidden_layers"] = layers = d.count(4, 2, 6)
    tail = {"hidden_act": "silu", "rms_norm_eps": d.eps(), "attention_bias": d.flag(), "mlp_bias": d.flag()}
    chosen = sorted({d.count(2, 0, layers - 1), d.count(2, 0, layers - 1)})
    tail |= {"attn_layer_indices": chosen, "tie_word_embeddings": d.flag()} | _mamba(d, shapes["hidden_size"])
    own = rope(d, head_size(shapes) // 2)
    own["rope_parameters"] |= {"partial_rotary_factor": 0.5}
    return shapes | tail | own


def qwen3_next(d: Draw) -> dict[str, Any]:
    shapes = transformer(d, head_dim=True, free=True)
    shapes |= {"num_hidden_layers": d.count(5, 2, 6), "head_dim": d.pick(16, 8, 12)}
    layers, part = shapes["num_hidden_layers"], d.pick(0.25, 0.5, 1.0)
    part = max(part, 4 / shapes["head_dim"])
    keys = d.pick(2, 1, 3)
    tail = {"hidden_act": "silu", "rms_norm_eps": d.eps(1e-6), "attention_bias": d.flag()}
    tail |= {"linear_num_key_heads": keys, "linear_num_value_heads": keys * d.pick(2, 1, 3)}
    tail |= {"linear_key_head_dim": d.pick(8, 5, 7), "linear_value_head_dim": d.pick(8, 6, 9)}
    tail |= {"linear_conv_kernel_dim": d.pick(4, 2, 3), "tie_word_embeddings": d.flag()}
    tail |= {"moe_intermediate_size": d.count(24, 10, 30), "shared_expert_intermediate_size": d.count(20, 10, 30)}
    tail |= {"norm_topk_prob": d.flag(True), "decoder_sparse_step": d.pick(1, 1, 2)}
    tail |= {"mlp_only_layers": d.pick([], [], [layers - 1])}
    kinds = d.kinds(layers, "linear_attention", "full_attention")
    tail |= d.pick(*([{}, {}] if layers >= 4 else []), {"layer_types": kinds}) | experts(d, "num_experts")
    own = rope(d, int(shapes["head_dim"] * part), theta=1000.0)
    own["rope_parameters"] |= {"partial_rotary_factor": part}
    return shapes | tail | own


_DRAWS: tuple[Callable[[Draw], dict[str, Any]], ...] = (
    *(gpt2, llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma, gemma2, gemma3_text, phi3, olmo2, olmo3, olmoe),
    *(deepseek_v2, deepseek_v3, gpt_oss, granite, granitemoehybrid, smollm3, cohere, gpt_neox, starcoder2),
    *(mamba2, bamba, qwen3_next),
)
FAMILIES = {draw.__name__: draw for draw in _DRAWS}


def case(family: str, rng: np.random.Generator, index: int) -> dict[str, Any]:
    """Returns the arguments for the config of `family`: plain if `index` is 0, else odd, with the rope of its turn."""
    values = FAMILIES[family](Draw(rng, index, list(FAMILIES).index(family)))
    # No token ends a text, and none has an embedding without gradient, as torch gives the one that pads.
    return values | {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
