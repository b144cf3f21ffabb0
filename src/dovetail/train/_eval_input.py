# SPDX-License-Identifier: Apache-2.0
"""The data to evaluate on, as the config of a run says."""

from collections.abc import Mapping
from typing import Any

from dovetail.config import ConfigError
from dovetail.data import Input


def eval_input_of(cfg: Any, tokenizer_files: Mapping[str, bytes] | None = None) -> Input | None:
    """Returns the input that `eval_input` of a trainer describes, if there is one; it must have an end.

    `tokenizer_files` are those of the input to train on; the same tokenizer is not read again.
    """
    if cfg.eval_input is None:
        return None
    same = cfg.eval_input.tokenizer == cfg.input.tokenizer
    data: Input = cfg.eval_input.build(path="eval_input", tokenizer_files=tokenizer_files if same else None)
    if data.is_endless:
        raise ConfigError(
            "eval_input: its data has no end, and so would an evaluation. Use a data set that ends, as with\n"
            "  eval_input.dataset.epochs=1."
        )
    return data
