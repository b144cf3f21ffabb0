# SPDX-License-Identifier: Apache-2.0
"""The data to evaluate on has an end; that it has the tokenizer of the run, tests/cli/test_resolve.py shows."""

import pytest

from dovetail.config import ConfigError
from dovetail.train import eval_input_of
from support.runs import tiny


def test_data_without_an_end_is_refused_before_anything_runs(tmp_path):
    cfg = tiny(tmp_path)
    assert eval_input_of(cfg.set(eval_input=None)) is None
    data = eval_input_of(cfg)
    assert data is not None
    assert not data.is_endless
    with pytest.raises(ConfigError, match=r"(?s)eval_input: its data has no end.*eval_input.dataset.epochs=1"):
        cfg.set_in("eval_input.dataset.epochs", None).build()
