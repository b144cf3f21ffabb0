# SPDX-License-Identifier: Apache-2.0
"""A model whose caches are in pages, with the kernels that read them: the best that there are on a platform."""

from collections.abc import Mapping
from typing import Any

from dovetail.config import replace_all
from dovetail.nn import DenseCache, PagedCache
from dovetail.ops import (
    AttentionKernel,
    NativePagedAttention,
    PagedAttention,
    PreferredAttention,
    RaggedPagedAttention,
    TritonPagedAttention,
)

# By platform, the best first; `PagedAttention`, which runs on all of them, comes after these.
_KERNELS: Mapping[str, tuple[AttentionKernel.Config, ...]] = {
    "tpu": (RaggedPagedAttention.Config(),),
    "cuda": (TritonPagedAttention.Config(),),  # For single tokens, and guesses; not for prompts.
    "cpu": (NativePagedAttention.Config(),),
}
# How these want keys and values to lie.
_CACHES: Mapping[str, PagedCache.Config] = {"tpu": PagedCache.Config(paired=True, lanes=128)}


def in_pages(cfg: Any, page: int, platform: str) -> Any:
    """Returns the config of a model with pages of so many tokens."""
    cache = _CACHES.get(platform, PagedCache.Config()).set(page=page)
    paged = replace_all(DenseCache.Config, cache, missing="ok")(cfg)
    kernels = (*_KERNELS.get(platform, ()), PagedAttention.Config())

    def reads_pages(old: AttentionKernel.Config) -> AttentionKernel.Config:
        return PreferredAttention.Config(kernels=(*kernels, old))

    return replace_all(AttentionKernel.Config, reads_pages, missing="ok")(paged)
