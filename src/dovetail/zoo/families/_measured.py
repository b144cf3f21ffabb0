# SPDX-License-Identifier: Apache-2.0
"""The models whose steps others have measured, by the names that they give them.

What is not in the zoo is built here from its parts, as far as time depends on it: layers, sizes and experts, not how
weights start or which positions a head sees.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from dovetail.config import REQUIRED, ConfigError, replace_all
from dovetail.models import CausalLM, MultiTokenPrediction
from dovetail.nn import (
    Attention,
    Block,
    Context,
    DenseFeedForward,
    DenseLinear,
    FeedForward,
    GatedFeedForward,
    Layer,
    Linear,
    Mamba2,
    MoEFeedForward,
    NoRotary,
    Sequence,
    TopKRouter,
)

from .._catalogue import RECIPES, model
from ._deepseek_v3 import deepseek_v3
from ._gemma3 import gemma3
from ._gpt_neox import gpt_neox
from ._llama import llama
from ._mixtral import mixtral


def squared_relu(x: Array) -> Array:
    """Returns the square of what is above 0."""
    return jax.numpy.square(jax.nn.relu(x))


class LatentFeedForward(FeedForward):
    """Computes `outer(inner(into(x))) + shared(x)`: experts that work in fewer dimensions, as in Nemotron 3 Super."""

    class Config(FeedForward.Config):
        latent_dim: int = REQUIRED
        into: Linear.Config = DenseLinear.Config()
        inner: FeedForward.Config = REQUIRED
        outer: Linear.Config = DenseLinear.Config()
        shared: FeedForward.Config = REQUIRED

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        wide, narrow = ((cfg.dim,), ("embed",)), ((cfg.latent_dim,), (None,))
        self.into = self.child("into", _between(cfg.into, wide, narrow))
        self.inner = self.child("inner", cfg.inner.set(dim=cfg.latent_dim))
        self.outer = self.child("outer", _between(cfg.outer, narrow, wide))
        self.shared = self.child("shared", cfg.shared.set(dim=cfg.dim))

    def forward(self, x: Array, context: Context | None = None) -> Array:
        return self.outer(self.inner(self.into(x), context)) + self.shared(x, context)


def _between(to: Linear.Config, source: tuple[Any, Any], target: tuple[Any, Any]) -> Linear.Config:
    return to.set(in_shape=source[0], in_axes=source[1], out_shape=target[0], out_axes=target[1])


def _nemotron(pattern: str, dim: int, heads: int, mamba_heads: int, experts: FeedForward.Config) -> CausalLM.Config:
    """Returns a hybrid of single layers: M is Mamba 2, E experts, * attention.

    Reference: NVIDIA, Nemotron 3 (arXiv:2512.20848), and the published config files.
    """
    attention = Attention.Config(num_heads=heads, num_kv_heads=2, head_dim=128, rotary=NoRotary.Config())
    mamba = Mamba2.Config(num_heads=mamba_heads, head_dim=64, num_groups=8, state_dim=128, norm_over="group")
    alone: dict[str, Any] = {"ffn": None, "ffn_norm": None}
    kinds: dict[str, Layer.Config] = {
        "M": Block.Config(mixer=mamba, **alone),
        "*": Block.Config(mixer=attention, **alone),
        "E": Block.Config(mixer=None, mixer_norm=None, ffn=experts),
    }
    return CausalLM.Config(
        vocab_size=131_072, dim=dim, stack=Sequence.Config(layers=tuple(kinds[letter] for letter in pattern))
    )


def _experts(hidden: int, number: int, top_k: int, shared: int | None = None) -> MoEFeedForward.Config:
    dense = None if shared is None else DenseFeedForward.Config(hidden_dim=shared, activation=squared_relu)
    return MoEFeedForward.Config(
        hidden_dim=hidden,
        num_experts=number,
        router=TopKRouter.Config(top_k=top_k),
        activation=squared_relu,
        shared=dense,
    )


def _nemotron_nano() -> CausalLM.Config:
    pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    return _nemotron(pattern, 2688, 32, 64, _experts(1856, 128, 6, shared=3712))


def _nemotron_super() -> CausalLM.Config:
    pattern = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
    shared = DenseFeedForward.Config(hidden_dim=5376, activation=squared_relu)
    experts = LatentFeedForward.Config(latent_dim=1024, inner=_experts(2688, 512, 22), shared=shared)
    found = _nemotron(pattern, 4096, 32, 128, experts)
    attention = Attention.Config(num_heads=32, num_kv_heads=2, head_dim=128, rotary=NoRotary.Config())
    ahead = MultiTokenPrediction.Config(block=Block.Config(mixer=attention, ffn=experts))
    return found.set(predictions=(ahead, ahead))


def _kimi_k2() -> CausalLM.Config:
    sizes: dict[str, Any] = {**RECIPES["deepseek-v3"].model, "num_heads": 64, "num_experts": 384, "num_dense_layers": 1}
    return deepseek_v3(**{**sizes, "vocab_size": 163_840, "num_groups": 1, "top_groups": 1})


def _deepseek_v3_mtp() -> CausalLM.Config:
    return deepseek_v3(**{**RECIPES["deepseek-v3"].model, "num_predictions": 1})


def _llama4_scout() -> CausalLM.Config:
    sizes: dict[str, Any] = {"num_layers": 48, "num_heads": 40, "num_kv_heads": 8, "hidden_dim": 8192}
    sparse = mixtral(vocab_size=202_048, dim=5120, num_experts=16, top_k=1, **sizes)
    sparse = sparse.set_in("stack.layer.ffn.router.normalize", False)
    return sparse.set_in("stack.layer.ffn.shared", GatedFeedForward.Config(hidden_dim=8192))


def _gemma4(layers: int, dim: int, heads: int, hidden: int) -> CausalLM.Config:
    sizes: dict[str, Any] = {"num_kv_heads": heads // 2, "head_dim": 256, "query_scale": 256.0, "window": 1024}
    return gemma3(vocab_size=262_144, dim=dim, num_layers=layers, num_heads=heads, hidden_dim=hidden, **sizes)


def _gemma4_26b() -> CausalLM.Config:
    dense = _gemma4(30, 2816, 16, 2112)
    router = TopKRouter.Config(top_k=8)
    shared = GatedFeedForward.Config(hidden_dim=2112)
    experts = MoEFeedForward.Config(hidden_dim=704, num_experts=128, router=router, shared=shared)
    return replace_all(FeedForward.Config, lambda _: experts)(dense)


def _honeycrisp_3b() -> CausalLM.Config:
    sizes: dict[str, Any] = {"num_heads": 24, "num_kv_heads": 8, "hidden_dim": 8192}
    return llama(vocab_size=49_152, dim=3072, num_layers=26, tied=True, **sizes)


# By pattern, of names in lower case, the first that is found in it.
_OTHERS: tuple[tuple[str, Callable[[], CausalLM.Config]], ...] = (
    (r"nemotron.*nano", _nemotron_nano),
    (r"nemotron.?3.?super", _nemotron_super),
    (r"kimi.?k2", _kimi_k2),
    (r"deepseek.?v?3.*(w/o mtp|671b)|^deepseek-v3$", lambda: model("deepseek-v3")),  # MaxText's predict one token.
    (r"deepseek.?v?3", _deepseek_v3_mtp),
    (r"llama.?4.*scout", _llama4_scout),
    (r"gemma.?4.?26b", _gemma4_26b),
    (r"gemma.?4.?31b", lambda: _gemma4(60, 5376, 32, 21_504)),
    (r"honeycrisp.?3b", _honeycrisp_3b),
)
# Names of others for a family of the zoo: what is found, and what is read instead.
_SPELLINGS = (
    (r"\(.*?\)", " "),
    (r"\b\d+-node\b", " "),
    (r"fuji-(\d+)b v[12]", r"llama2-\1b"),
    (r"fuji-(\d+)b v3", r"llama3-\1b"),
    (r"gpt.?oss", "gpt-oss"),
    (r"\bmoe\b", " "),
    (r"llama3(\.1)?[^.\d]*405b", "llama3.1-405b"),
    (r"llama[- ]?3(\.[13])?[^.\d]*70b", "llama3-70b"),
    (r"[\s_]+", "-"),
)


def measured_model(name: str) -> CausalLM.Config:
    """Returns the config of the model that others call so.

    >>> measured_model("LLAMA3_70B") == model("llama3-70b")
    True
    """
    text = name.lower()
    shape = _maxtext_default(text) or _megatron_gpt(text)
    if shape is not None:
        return shape
    for pattern, make in _OTHERS:
        if re.search(pattern, text):
            return make()
    for pattern, other in _SPELLINGS:
        text = re.sub(pattern, other, text.strip())
    words = _words(text)
    found = [entry for entry in RECIPES if _words(entry)[: len(words)] == words]
    if not found:
        raise ConfigError(f"the shape of {name!r} is not known.")
    return model(min(found, key=len))


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9.]+|(?<=[a-z])(?=\d)", name) if word]


def _maxtext_default(name: str) -> CausalLM.Config | None:
    """Returns the model that a text such as `default-32B (emb8192,L32,h64x128,mlp28672,vocab32000)` describes."""
    match = re.search(r"emb(\d+),l(\d+),h(\d+)x(\d+),mlp(\d+),vocab(\d+)", name)
    if match is None:
        return None
    dim, layers, heads, head_dim, hidden, words = map(int, match.groups())
    sizes: dict[str, Any] = {"num_heads": heads, "num_kv_heads": heads, "hidden_dim": hidden}
    found = llama(vocab_size=words, dim=dim, num_layers=layers, **sizes)
    return found.set_in("stack.layer.mixer.head_dim", head_dim)


def _megatron_gpt(name: str) -> CausalLM.Config | None:
    """Returns the model that a text such as `GPT-7.1B (L30,h4096,heads32,vocab131072)` describes."""
    match = re.search(r"l(\d+),h(\d+),heads(\d+),vocab(\d+)", name)
    if match is None:
        return None
    layers, dim, heads, words = map(int, match.groups())
    sizes: dict[str, Any] = {"num_heads": heads, "hidden_dim": 4 * dim}
    return gpt_neox(vocab_size=words, dim=dim, num_layers=layers, order="sequence", **sizes)


def assumed_batch(system: str, name: str) -> tuple[int, int] | None:
    """Returns the length and the number of sequences of a step, where only the code of others says it; else None."""
    if system == "AXLearn" and "qwen3" in name.lower():
        return 32_768, 512  # Of qwen.py, 2026.
    return None
