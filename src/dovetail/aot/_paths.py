# SPDX-License-Identifier: Apache-2.0
"""From the names that JAX gives to operations to the paths of the config that made them."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

_WORD = re.compile(r"[^/().]+")
_ARGUMENT = re.compile(r"state\.(params|learner)\b(.*)")


def config_path(op_names: Iterable[str], tree: Mapping[str, Any]) -> str:
    """Returns the longest path that the names lead to; empty if they lead nowhere.

    Modules run in scopes that have their names, so that an operation is called
    `jit(step)/jvp(model)/stack/while/body/layer/ffn/up/dot_general`. What JAX puts in between is skipped.

    Args:
        tree: names below `model`, nested, such as the specs of its parameters.
    """
    return max((_path(name, tree) for name in op_names), key=lambda path: path.count("."), default="")


def is_kept(op_names: Iterable[str]) -> bool:
    """Whether the forward pass made it, so that in the backward pass it is an activation that was kept."""
    return any("jvp(" in name and "transpose(" not in name for name in op_names)


def _path(op_name: str, tree: Mapping[str, Any]) -> str:
    argument = _ARGUMENT.match(op_name)
    if argument is not None:
        words = re.findall(r"\w+(?:\[\d+\])?", argument[2])
        return ".".join(("model", *_below(words, tree))) if argument[1] == "params" else "learner"
    words = _WORD.findall(op_name)
    if "model" in words:
        return ".".join(("model", *_below(words[words.index("model") + 1 :], tree)))
    return "learner" if "learner" in words else ""


def _below(words: Iterable[str], tree: Any) -> Iterable[str]:
    for word in words:
        if isinstance(tree, Mapping) and isinstance(tree.get(word), Mapping):
            yield word
            tree = tree[word]
