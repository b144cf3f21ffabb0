# SPDX-License-Identifier: Apache-2.0
"""A family as it is published: tables between config.json and a model's config, and between tensors and parameters."""

import dataclasses
import functools
import importlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.config import ConfigError, to_text
from dovetail.models import CausalLM
from dovetail.nn import Attention, LatentAttention, Layer, Mamba2

from ._fields import Field, Fields
from ._tree import Tree

_SHOWN = 8  # Differences in a message.
# Fields that any file may have, and that no model computes with.
_REASONS = {
    "how transformers computes, not what": "attn_implementation _attn_implementation _attn_implementation_autoset "
    "chunk_size_feed_forward torchscript use_bfloat16 tf_legacy_loss pruned_heads",
    "how transformers generates": "use_cache temperature top_k top_p typical_p repetition_penalty length_penalty "
    "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_beams num_beam_groups diversity_penalty "
    "num_return_sequences max_length min_length do_sample early_stopping exponential_decay_length_penalty "
    "forced_bos_token_id forced_eos_token_id remove_invalid_values suppress_tokens begin_suppress_tokens "
    "return_dict_in_generate output_scores",
    "of the tokenizer": "bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id tokenizer_class prefix "
    "decoder_start_token_id",
    "of the file: the tensors say it themselves": "dtype torch_dtype",
    "of classifiers and pipelines": "id2label label2id problem_type finetuning_task task_specific_params",
    "what transformers returns": "output_attentions output_hidden_states output_router_logits return_dict",
    "of the program that wrote it": "transformers_version unsloth_version transformers.js_config _commit_hash",
    "where it was": "_name_or_path _model_name_or_path",
    "names the family": "architectures model_type",
    "false for every decoder": "is_encoder_decoder tie_encoder_decoder cross_attention_hidden_size add_cross_attention",
    "of training from scratch": "initializer_range",
    "of training alone: dropout is set at `dropout` of the model": "attention_dropout hidden_dropout resid_pdrop "
    "embd_pdrop attn_pdrop embedding_dropout residual_dropout classifier_dropout",
    "of training alone: balance_loss of the router": "router_aux_loss_coef",
    "a limit, and not part of the maths": "max_position_embeddings",
}
IGNORED = {name: why for why, names in _REASONS.items() for name in names.split()}
# Parts of a config that a published model does not say, as they do not change what it computes.
_NOT_MATHS = re.compile(
    r"(^|\.)(init|kernel|cache|dropout|loop|chunk|loss_chunk|z_loss|balance_loss|predictions|prediction_weight"
    r"|dispatch|remat)(\.|\[| |$)"
)


class Imported(NamedTuple):
    """What a config.json describes."""

    model: CausalLM.Config
    ignored: dict[str, str]  # Fields that do not change the maths, and why.


@dataclasses.dataclass(frozen=True)
class Published:
    """A family, as transformers knows it."""

    architecture: str
    model_type: str
    template: str  # The recipe with a model of this structure, of whose layers all kinds are there.
    fields: tuple[Field, ...]
    weights: tuple[str, ...]  # Rows, as in `dovetail.checkpoint.weight_map`.
    ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)  # Further fields without effect, and why.
    priority: int = 0  # A model that is of several families is published as one of the highest.

    def read(self, where: str, values: Mapping[str, Any]) -> Imported:
        """Returns the model that a config.json describes; raises for what it says that we do not compute."""
        fields, tree = Fields(where, values), Tree(self._template())
        for name, why in _REFUSED.items():
            if values.get(name) not in (None, {}, []):
                raise fields.refused(name, why)
            fields.read.add(name)
        for field in self.fields:
            field.read(fields, tree)
        known = {**IGNORED, **self.ignored}
        ignored = {name: known[name] for name in values if name not in fields.read and name in known}
        unknown = [name for name in values if name not in fields.read and name not in known]
        if unknown:
            shown = ", ".join(f"{name} = {str(values[name])[:40]}" for name in unknown)
            raise ConfigError(
                f"{where}: fields that dovetail does not know for {self.model_type}: {shown}.\n"
                "  They may change what the model computes, so it is not loaded. If they do not, remove them."
            )
        try:
            model = tree.config()
            model.build()
        except ConfigError as e:
            words = set(re.findall(r"\w+", str(e)))
            named = sorted({name for field in self.fields for name in field.told(words) if name in values})
            says = f"\n  What says so: {', '.join(named)}." if named else ""
            raise ConfigError(f"{where}: describes a model that cannot be built: {e}{says}") from e
        return Imported(model, ignored)

    def write(self, model: CausalLM.Config) -> dict[str, Any]:
        """Returns the config.json of a model; raises a ConfigError if no model of this family is the same."""
        tree = Tree(model)
        tree.layers = [_explicit(layer, model.dim) for layer in tree.layers]
        found: dict[str, Any] = {"architectures": [self.architecture], "model_type": self.model_type}
        for field in self.fields:
            found |= {name: value for name, value in field.write(tree).items() if name not in found}
        again = self.read(self.model_type, found).model
        if differences := _differences(model, again):
            more = len(differences) - _SHOWN
            lines = [*differences[:_SHOWN], *([f"... and {more} more"] if more > 0 else [])]
            raise ConfigError("\n".join(f"  {line}" for line in lines))
        return found

    def _template(self) -> CausalLM.Config:
        from .._catalogue import model

        return model(self.template).set(predictions=())


_REFUSED = {
    "quantization_config": "quantised weights are not implemented here: use the model in bfloat16 or float32",
    "auto_map": "names code of the model's own, which is never run; remove it if transformers has the model without it",
    "compression_config": "quantised weights are not implemented here: use the model in bfloat16 or float32",
}


def families() -> tuple[Published, ...]:
    """Returns all families that have tables."""
    module = importlib.import_module("dovetail.zoo.families")
    return tuple(value for value in vars(module).values() if isinstance(value, Published))


def family_of(where: str, values: Mapping[str, Any]) -> Published:
    """Returns the family of a config.json."""
    kind, named = values.get("model_type"), values.get("architectures") or []
    known = {family.model_type: family for family in families()}
    if not isinstance(kind, str) or kind not in known:
        code = " It has code of its own (auto_map), which is never run." if values.get("auto_map") else ""
        raise ConfigError(
            f"{where}: model_type is {kind!r}, which dovetail does not have.{code}\n"
            f"  It has: {', '.join(sorted(known))}."
        )
    family = known[kind]
    if named and named != [family.architecture]:
        raise ConfigError(
            f"{where}: architectures is {named!r}, expected [{family.architecture!r}] for model_type {kind!r}.\n"
            "  Models with other heads, or for other input than text, are not implemented here."
        )
    return family


def published_as(model: CausalLM.Config, prefer: str | None = None) -> tuple[Published, dict[str, Any]]:
    """Returns a family that a model is of, and its config.json; raises if it is of none.

    `prefer` is a model_type: families overlap, as a Mistral without a window is a Llama.
    """
    problems: dict[str, str] = {}
    for family in sorted(families(), key=lambda each: (each.model_type != prefer, -each.priority, each.model_type)):
        try:
            return family, family.write(model)
        except ConfigError as e:
            problems[family.model_type] = str(e)
        except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError) as e:
            problems[family.model_type] = f"{type(e).__name__}: {e}"
    near = (
        prefer
        if prefer in problems
        else min(problems, key=lambda name: (problems[name].count("\n"), len(problems[name])))
    )
    raise ConfigError(
        f"this model is of no family that can be published. The nearest is {near}, which differs:\n{problems[near]}"
    )


def _differences(model: CausalLM.Config, again: CausalLM.Config) -> list[str]:
    """Returns how two models compute differently, a line each, by the numbers of their layers."""
    found = [_lines(config) for config in (model, again)]
    names = sorted({*found[0], *found[1]})
    return [
        f"{name}: {found[0].get(name, 'nothing')}, there {found[1].get(name, 'nothing')}"
        for name in names
        if found[0].get(name) != found[1].get(name)
    ]


def _lines(model: CausalLM.Config) -> dict[str, str]:
    tree = Tree(model)
    first = tree.layers[0]
    texts = {"": to_text(model.set(stack=first))}  # The stack itself says nothing but its layers.
    for layer, numbers in itertools.groupby(enumerate(tree.layers), key=lambda pair: pair[1]):
        texts |= {f"layer {number}: ": _layer_text(layer, model.dim) for number, _ in numbers}
    found: dict[str, str] = {}
    for prefix, text in texts.items():
        for line in text.splitlines():
            path, _, value = line.partition(" = ")
            if not _NOT_MATHS.search(path) and not (prefix == "" and path.startswith("stack")):
                found[prefix + path] = value
    return found


@functools.lru_cache(maxsize=256)
def _layer_text(layer: Layer.Config, dim: int) -> str:
    return to_text(_explicit(layer, dim))


@functools.lru_cache(maxsize=256)
def _explicit(layer: Layer.Config, dim: int) -> Layer.Config:
    """Returns the config of a layer with what a parent sets and what None stands for."""
    mixer = layer.get_in("mixer") if hasattr(layer, "mixer") else None
    if isinstance(mixer, Attention.Config):
        width = mixer.head_dim or dim // mixer.num_heads
        scale = width**-0.5 if mixer.scale is None else mixer.scale
        mixer = mixer.set(num_kv_heads=mixer.num_kv_heads or mixer.num_heads, head_dim=width, scale=scale)
        if mixer.query_norm is None and mixer.key_norm is None:
            mixer = mixer.set(norm_over="head")  # Without norms it says nothing.
    elif isinstance(mixer, LatentAttention.Config):
        scale = (mixer.nope_dim + mixer.rope_dim) ** -0.5 if mixer.scale is None else mixer.scale
        mixer = mixer.set(scale=scale)
    elif isinstance(mixer, Mamba2.Config):
        mixer = mixer.set(num_heads=mixer.num_heads or 2 * dim // mixer.head_dim)
    return layer if mixer is None else layer.set_in("mixer", mixer)


def ignored_lines(ignored: Mapping[str, str]) -> Sequence[str]:
    """Returns the fields that are not used, those with the same reason in one line."""
    by_reason: dict[str, list[str]] = {}
    for name, why in ignored.items():
        by_reason.setdefault(why, []).append(name)
    return [f"{', '.join(names)}: {why}" for why, names in by_reason.items()]
