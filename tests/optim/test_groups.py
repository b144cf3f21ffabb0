# SPDX-License-Identifier: Apache-2.0
"""Which parameters are matrices, and which a pattern means."""

import pytest

from dovetail.config import ConfigError
from dovetail.module import specs as specs_of
from dovetail.optim._groups import by_path, is_hidden_matrix, is_matrix, matching
from support.transformer import decoder


def test_matrices_by_their_specs(specs):
    found = by_path(specs)
    hidden = ["layer.attention.query.weight", "layer.experts.weight", "up.weight"]
    assert sorted(path for path in found if is_hidden_matrix(found[path])) == hidden
    assert sorted(path for path in found if is_matrix(found[path])) == sorted(["head.weight", *hidden])


def test_an_embedding_that_declares_fans_is_known_by_its_vocabulary_axis():
    found = by_path(specs_of(decoder().build()))
    assert found["embedding"].in_dims == (-2,)
    assert not is_matrix(found["embedding"])
    assert is_hidden_matrix(found["stack.layer.ffn.up.weight"])
    assert not is_matrix(found["stack.layer.norm1.scale"])


def test_a_pattern_is_compared_with_the_whole_path():
    paths = ["a.layers[0].w", "a.layers[1].w", "w"]
    assert matching("*w", paths, "here") == paths
    assert matching("w", paths, "here") == ["w"]
    assert matching("a.layers[0].*", paths, "here") == ["a.layers[0].w"]


def test_a_pattern_that_fits_nothing_names_the_nearest_paths():
    with pytest.raises(ConfigError) as e:
        matching("decoder.embeding", ["decoder.norm.scale", "decoder.embedding", "head.weight"], "learner")
    assert str(e.value) == (
        "learner: 'decoder.embeding' fits no parameter. Nearest are:\n"
        "    decoder.embedding\n"
        "    decoder.norm.scale\n"
        "    head.weight\n"
        "  A pattern is compared with the whole path; * stands for any characters."
    )
