# SPDX-License-Identifier: Apache-2.0
"""Groups of parameters, from their specs: which are matrices, and which a path pattern means."""

import dataclasses
import difflib
import re
from typing import Any

import jax

from dovetail.config import ConfigError
from dovetail.module import ParamSpec

VOCAB_AXIS = "vocab"


def is_matrix(spec: ParamSpec) -> bool:
    """Whether a parameter maps inputs to outputs. Norms, biases and embeddings do not.

    An embedding declares no `in_dims`; one that does is known by its input axis, the vocabulary.
    """
    ins = [spec.axes[dim] for dim in spec.in_dims]
    return bool(spec.in_dims and spec.out_dims) and VOCAB_AXIS not in ins


def is_hidden_matrix(spec: ParamSpec) -> bool:
    """Whether a parameter is a matrix between hidden activations: neither embedding nor output layer."""
    return is_matrix(spec) and VOCAB_AXIS not in spec.axes


def by_path(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree of dicts by their paths, as in `{"decoder.layer.ffn.up.weight": leaf}`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {".".join(str(key.key) for key in keys): leaf for keys, leaf in leaves}


def matching(pattern: str, paths: list[str], where: str, what: str = "no parameter") -> list[str]:
    """Returns the paths that fit a pattern, `*` standing for any characters; raises if there are none."""
    regex = re.compile(".*".join(map(re.escape, pattern.split("*"))))
    found = [path for path in paths if regex.fullmatch(path)]
    if not found:
        near = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.0)
        lines = "".join(f"\n    {path}" for path in near)
        raise ConfigError(
            f"{where}: {pattern!r} fits {what}. Nearest are:{lines}\n"
            "  A pattern is compared with the whole path; * stands for any characters."
        )
    return found


def frozen_except(patterns: tuple[str, ...], specs: Any, where: str) -> Any:
    """Returns specs in which all parameters are frozen but those that fit a pattern, and were not before."""
    paths = by_path(specs)
    trained = {path for pattern in patterns for path in matching(pattern, list(paths), where)}
    new = [spec if path in trained else dataclasses.replace(spec, frozen=True) for path, spec in paths.items()]
    return jax.tree.unflatten(jax.tree.structure(specs), new)
