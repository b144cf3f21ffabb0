# SPDX-License-Identifier: Apache-2.0
"""A cache of 8-bit integers.

Shape letters: B batch, T time, G key heads, K head dim.
"""

import dataclasses
from collections.abc import Mapping

from jax import Array

from dovetail.ops import Tokens, quantise_rows

from ._cache import Cache, DenseCache, View


class Int8Cache(Cache):
    """Keeps 8-bit integers in another cache, and a scale for each token and head: a half or a quarter of the memory.

    What is kept is off by half a scale at most, which is 1/254 of the largest number of the head, and a bfloat16
    scale. Numbers that are alone, without a dimension, are kept as they are.

    `replace_all(Cache.Config, lambda old: Int8Cache.Config(inner=old))` does it for every attention of a model.
    """

    class Config(Cache.Config):
        inner: Cache.Config = DenseCache.Config()

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self._names = [name for name, shape in cfg.entries.items() if shape]
        entries, axes, dtypes = dict(cfg.entries), dict(cfg.axes), dict(cfg.dtypes)
        for name in self._names:
            entries[_scale(name)], axes[_scale(name)] = cfg.entries[name][:-1], cfg.axes[name][:-1]
            dtypes |= {name: "int8", _scale(name): "bfloat16"}
        kept = {"entries": entries, "axes": axes, "dtypes": dtypes, "window": cfg.window}
        self.inner = self.child("inner", cfg.inner.set(**kept))

    def forward(self, values: Mapping[str, Array], tokens: Tokens) -> View:
        kept = dict(values)
        for name in self._names:
            kept[name], kept[_scale(name)] = quantise_rows(values[name])
        view: View = self.inner(kept, tokens)
        scales = {name: view.values[_scale(name)] for name in self._names}
        return dataclasses.replace(view, values={name: view.values[name] for name in values}, scales=scales)


def _scale(name: str) -> str:
    return f"{name}_scale"
