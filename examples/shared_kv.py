# SPDX-License-Identifier: Apache-2.0
"""Keys and values shared across layers: every second attention layer uses those of the one before, and has no cache.

Reference: Brandon et al., Reducing Transformer Key-Value Cache Size with Cross-Layer Attention, 2024
(arXiv:2405.12981).

    dovetail train examples/shared_kv.py:run
"""

from dovetail.config import modify
from dovetail.nn import Attention, AttentionVariant, Context, Repeat, View
from dovetail.zoo import recipe


class GivesKV(AttentionVariant):
    """Publishes what its queries attend to."""

    def view(self, view: View | None, context: Context) -> View:
        view = super().view(view, context)
        self.publish("kv", view.values)
        if self.stateful:
            self.publish("kv_tokens", view.tokens)
        return view


class TakesKV(AttentionVariant):
    """Attends to what the last layer with keys and values of its own attends to."""

    def view(self, view: View | None, context: Context) -> View:
        tokens = context.need("kv_tokens") if self.stateful else context.tokens
        return View(context.need("kv"), tokens, aligned=not self.stateful)


def with_shared_kv(cfg: Repeat.Config) -> Repeat.Config:
    """Returns the layers of a stack twice over, the second time with the keys and values of the first."""
    pattern = cfg.layer if isinstance(cfg.layer, tuple) else (cfg.layer,)
    taken = {"variant": TakesKV.Config(), "key": None, "value": None, "key_norm": None}
    gives = modify(Attention.Config, lambda old: old.set(variant=GivesKV.Config()), missing="ok")
    takes = modify(Attention.Config, lambda old: old.set(**taken), missing="ok")
    layers = tuple(change(layer) for change in (gives, takes) for layer in pattern)
    return cfg.set(layer=layers, num_layers=max(cfg.num_layers, len(layers)))


def run():
    return modify(Repeat.Config, with_shared_kv)(recipe("llama3-tiny"))
