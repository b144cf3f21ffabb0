# SPDX-License-Identifier: Apache-2.0
"""The error of configs and its nearest-name hint."""

import pytest

from dovetail.config import ConfigError, Incomplete, did_you_mean


@pytest.mark.parametrize(
    "word, options, hint",
    [
        ("hiden_dim", ["eps", "hidden_dim"], " Did you mean 'hidden_dim'?"),
        ("HIDDEN_DIM", ["eps", "hidden_dim"], " Did you mean 'hidden_dim'?"),
        ("causal", ["MASKED", "CAUSAL"], " Did you mean 'CAUSAL'?"),
        ("layers[0].dmi", ["layers", "layers[0].dim", "layers[1].dim"], " Did you mean 'layers[0].dim'?"),
        ("rate", ["eps", "hidden_dim"], ""),
        ("", ["eps"], ""),
        ("eps", [], ""),
    ],
)
def test_hint_names_the_nearest_option_whatever_its_case(word, options, hint):
    assert did_you_mean(word, options) == hint


def test_hint_takes_an_iterator():
    assert did_you_mean("ep", iter(["eps"])) == " Did you mean 'eps'?"


def test_config_error_is_a_value_error_and_incomplete_is_a_config_error():
    assert ConfigError.__mro__[1] is ValueError
    assert Incomplete.__mro__[1] is ConfigError
