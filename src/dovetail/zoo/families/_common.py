# SPDX-License-Identifier: Apache-2.0
"""What the tables of many families have in common: the names that Llama gave to fields and tensors."""

from ..hf import RECIPROCAL, Expand, Fields, Value


def _head_dim(fields: Fields) -> int:
    """Returns the head dim of a state-space layer whose width is given as a multiple of the model's."""
    return fields.number("mamba_expand", 2) * fields.count("hidden_size") // fields.count("mamba_n_heads", 128)


WORDS = (Value("vocab_size", "vocab_size"), Value("hidden_size", "dim"))


def heads(mixer: str = "layer.mixer", *, kv_heads: int | None = None) -> tuple[Value, ...]:
    """Returns the numbers of heads of attention at a path; `kv_heads` is that of keys in files without it."""

    def all_heads(fields: Fields) -> int:
        return fields.get("num_attention_heads")

    return (
        Value("num_attention_heads", f"{mixer}.num_heads"),
        Value("num_key_value_heads", f"{mixer}.num_kv_heads", default=kv_heads or all_heads, null=all_heads),
    )


def sizes(kv_heads: int | None = None) -> tuple[Value, ...]:
    """Returns the sizes of a model of blocks that are all alike."""
    return (*WORDS, *heads(kv_heads=kv_heads), Value("intermediate_size", "layer.ffn.hidden_dim"))


SIZES = sizes()
MULTIPLIERS = (
    Value("embedding_multiplier", "embedding_scale", default=1.0),
    Value("residual_multiplier", "layer.residual_scale", default=1.0),
    Value("logits_scaling", "logit_scale", default=1.0, codec=RECIPROCAL),
)
NORMS = ("norm.eps", "layer.mixer_norm.eps", "layer.ffn_norm.eps")
OUT_NORMS_EPS = ("layer.mixer_out_norm.eps", "layer.ffn_out_norm.eps")
QK_EPS = ("layer.mixer.query_norm.eps", "layer.mixer.key_norm.eps")


def attention_biases(mixer: str = "layer.mixer", *more: str) -> tuple[str, ...]:
    """Returns the biases of all maps of attention at a path, of further ones too."""
    return tuple(f"{mixer}.{name}.bias" for name in ("query", "key", "value", "out", *more))


ATTENTION_BIASES = attention_biases()


def ffn_biases(ffn: str = "layer.ffn") -> tuple[str, ...]:
    """Returns the biases of a gated feed-forward."""
    return tuple(f"{ffn}.{name}.bias" for name in ("gate", "up", "down"))


FFN_BIASES = ffn_biases()

ENDS = (
    "model.embed_tokens.weight: v d = embedding.table: v d",
    "model.norm.weight: d = norm.scale: d",
    "lm_head.weight: v d = head.weight: d v",
    "lm_head.weight == model.embed_tokens.weight",
)


def attention(here: str = "layer.mixer") -> tuple[str, ...]:
    """Returns the rows of attention at a path."""
    there = "model.layers.{l}.self_attn"
    return (
        f"{there}.q_proj.weight: (h k) d = {here}.query.weight: d h k",
        f"{there}.k_proj.weight: (g k) d = {here}.key.weight: d g k",
        f"{there}.v_proj.weight: (g k) d = {here}.value.weight: d g k",
        f"{there}.o_proj.weight: d (h k) = {here}.out.weight: h k d",
        f"{there}.q_proj.bias: (h k) = {here}.query.bias: h k",
        f"{there}.k_proj.bias: (g k) = {here}.key.bias: g k",
        f"{there}.v_proj.bias: (g k) = {here}.value.bias: g k",
        f"{there}.o_proj.bias: d = {here}.out.bias: d",
        "*.rotary_emb.inv_freq -- follows from the config",
    )


ATTENTION = attention()
QK_NORMS = (
    "model.layers.{l}.self_attn.q_norm.weight: k = layer.mixer.query_norm.scale: k",
    "model.layers.{l}.self_attn.k_norm.weight: k = layer.mixer.key_norm.scale: k",
)
WIDE_QK_NORMS = (  # Over all heads as one vector.
    "model.layers.{l}.self_attn.q_norm.weight: m = layer.mixer.query_norm.scale: m",
    "model.layers.{l}.self_attn.k_norm.weight: m = layer.mixer.key_norm.scale: m",
)
OUT_NORMS = (
    "model.layers.{l}.post_attention_layernorm.weight: d = layer.mixer_out_norm.scale: d",
    "model.layers.{l}.post_feedforward_layernorm.weight: d = layer.ffn_out_norm.scale: d",
)
SANDWICH_NORMS = (
    "model.layers.{l}.input_layernorm.weight: d = layer.mixer_norm.scale: d",
    "model.layers.{l}.pre_feedforward_layernorm.weight: d = layer.ffn_norm.scale: d",
    *OUT_NORMS,
)
PRE_NORMS = (
    "model.layers.{l}.input_layernorm.weight: d = layer.mixer_norm.scale: d",
    "model.layers.{l}.post_attention_layernorm.weight: d = layer.ffn_norm.scale: d",
)


def gated_ffn(there: str = "model.layers.{l}.mlp", here: str = "layer.ffn") -> tuple[str, ...]:
    """Returns the rows of a gated feed-forward."""
    maps = {"gate_proj": "gate", "up_proj": "up"}
    return (
        *(f"{there}.{name}.weight: f d = {here}.{ours}.weight: d f" for name, ours in maps.items()),
        *(f"{there}.{name}.bias: f = {here}.{ours}.bias: f" for name, ours in maps.items()),
        f"{there}.down_proj.weight: d f = {here}.down.weight: f d",
        f"{there}.down_proj.bias: d = {here}.down.bias: d",
    )


GATED_FFN = gated_ffn()
EXPERTS = (
    "model.layers.{l}.mlp.gate.weight: e d = layer.ffn.router.weight: d e",
    "model.layers.{l}.mlp.experts.{e}.gate_proj.weight: f d = layer.ffn.gate.weight: e d f",
    "model.layers.{l}.mlp.experts.{e}.up_proj.weight: f d = layer.ffn.up.weight: e d f",
    "model.layers.{l}.mlp.experts.{e}.down_proj.weight: d f = layer.ffn.down.weight: e f d",
)
SHARED_EXPERT = gated_ffn("model.layers.{l}.mlp.shared_experts", "layer.ffn.shared")


def latent_sizes(hidden_dim: int, expert_dim: int) -> tuple[Value, ...]:
    """Returns the sizes of a model with latent attention and experts; the two are those of files without them."""
    return (
        *WORDS,
        Value("num_attention_heads", "layer.mixer.num_heads"),
        Value("q_lora_rank", "layer.mixer.query_rank", default=1536, null=None),
        Value("kv_lora_rank", "layer.mixer.kv_rank", default=512),
        Value("qk_nope_head_dim", "layer.mixer.nope_dim", default=128),
        Value("qk_rope_head_dim", "layer.mixer.rope_dim", default=64),
        Value("v_head_dim", "layer.mixer.value_dim", default=128),
        Value("intermediate_size", "layer.ffn:GatedFeedForward.hidden_dim", default=hidden_dim),
        Value("moe_intermediate_size", "layer.ffn:MoEFeedForward.hidden_dim", default=expert_dim),
    )


LATENT_BIASES = (
    "layer.mixer.out.bias",
    "layer.mixer.query_down.bias",
    "layer.mixer.kv_down.bias",
    "layer.mixer.key_rope.bias",
)
LATENT_ATTENTION = (
    "model.layers.{l}.self_attn.q_a_proj.weight: c d = layer.mixer.query_down.weight: d c",
    "model.layers.{l}.self_attn.q_a_proj.bias: c = layer.mixer.query_down.bias: c",
    "model.layers.{l}.self_attn.q_a_layernorm.weight: c = layer.mixer.query_norm.scale: c",
    "model.layers.{l}.self_attn.q_b_proj.weight: (h k) c = layer.mixer:query_rank.query.weight: c h k",
    "model.layers.{l}.self_attn.q_proj.weight: (h k) d = layer.mixer:!query_rank.query.weight: d h k",
    "model.layers.{l}.self_attn.kv_a_proj_with_mqa.weight: (c + p) d = "
    "layer.mixer.kv_down.weight: d c, layer.mixer.key_rope.weight: d 1 p",
    "model.layers.{l}.self_attn.kv_a_proj_with_mqa.bias: (c + p) = "
    "layer.mixer.kv_down.bias: c, layer.mixer.key_rope.bias: 1 p",
    "model.layers.{l}.self_attn.kv_a_layernorm.weight: c = layer.mixer.kv_norm.scale: c",
    "model.layers.{l}.self_attn.kv_b_proj.weight: (h (n + v)) c = "
    "layer.mixer.key_up.weight: c h n, layer.mixer.value_up.weight: c h v",
    "model.layers.{l}.self_attn.o_proj.weight: d (h v) = layer.mixer.out.weight: h v d",
    "model.layers.{l}.self_attn.o_proj.bias: d = layer.mixer.out.bias: d",
)

MAMBA_SIZES = (  # Of state-space layers beside others.
    Value("mamba_n_heads", "layer.mixer:Mamba2.num_heads", default=128),
    Value("mamba_d_head", "layer.mixer:Mamba2.head_dim", default=_head_dim, null=_head_dim),
    Value("mamba_d_state", "layer.mixer:Mamba2.state_dim", default=256),
    Value("mamba_n_groups", "layer.mixer:Mamba2.num_groups", default=1),
    Expand("mamba_expand", "layer.mixer:Mamba2"),
)


def convs(path: str, field: str) -> tuple[str, ...]:
    """Returns a field of each convolution of a state-space layer."""
    return tuple(f"{path}.{name}.{field}" for name in ("value_conv", "key_conv", "query_conv"))


def mamba_biases(path: str) -> tuple[str, ...]:
    """Returns the biases of all maps of a state-space layer."""
    return tuple(f"{path}.{name}.bias" for name in ("gate", "value", "key", "query", "delta", "out"))


def mamba(there: str, here: str) -> tuple[str, ...]:
    """Returns the rows of a state-space layer, whose maps are one tensor there."""
    maps = [f"{here}.{name}" for name in ("gate", "value", "key", "query", "delta")]
    axes = ("h p", "h p", "g n", "g n", "h")
    filters = list(zip(convs(here, "weight"), convs(here, "bias"), ("h p", "g n", "g n"), strict=True))
    return (
        f"{there}.in_proj.weight: ({' + '.join(axes)}) d = "
        + ", ".join(f"{to}.weight: d {each}" for to, each in zip(maps, axes, strict=True)),
        f"{there}.in_proj.bias: ({' + '.join(axes)}) = "
        + ", ".join(f"{to}.bias: {each}" for to, each in zip(maps, axes, strict=True)),
        f"{there}.conv1d.weight: (h p + g n + g n) 1 w = "
        + ", ".join(f"{weight}: w {each}" for weight, _, each in filters),
        f"{there}.conv1d.bias: (h p + g n + g n) = " + ", ".join(f"{bias}: {each}" for _, bias, each in filters),
        f"{there}.dt_bias: h = {here}.step_bias: h",
        f"{there}.A_log: h = {here}.log_rate: h",
        f"{there}.D: h = {here}.skip: h",
        f"{there}.norm.weight: m = {here}.norm.scale: m",
        f"{there}.out_proj.weight: d (h p) = {here}.out.weight: h p d",
        f"{there}.out_proj.bias: d = {here}.out.bias: d",
    )
