# SPDX-License-Identifier: Apache-2.0
"""The first kernel that computes something is chosen, and what was chosen, and why, can be known."""

import threading

import jax
import jax.numpy as jnp
import pytest

from dovetail.config import ConfigError
from dovetail.ops import (
    BlockwiseAttention,
    Causal,
    Choice,
    CudnnAttention,
    PreferredAttention,
    ReferenceAttention,
    SplashAttention,
    Support,
    Tokens,
    choose,
    kernel_choices,
    note_choice,
)

CUDNN_FIRST = PreferredAttention.Config(kernels=(CudnnAttention.Config(), BlockwiseAttention.Config()))


def attend(kernel, length=4):
    x = jnp.ones((1, length, 2, 4))
    tokens = Tokens(jnp.arange(length)[None])
    return kernel(x, x, x, mask=Causal(), q_tokens=tokens, k_tokens=tokens, scale=1.0, aligned=True)


def test_support_is_true_without_a_reason_against_it():
    assert Support()
    assert not Support("it has no power")


def test_the_first_kernel_that_supports_a_request_is_chosen_and_the_others_reasons_are_kept():
    asked = []

    def supports(kernel):
        asked.append(kernel)
        return Support("" if kernel == 3 else "odd" if kernel == "a" else "even")

    with kernel_choices() as choices:
        assert choose("here", ["a", 2.0, 3, None], supports) == 3
    assert asked == ["a", 2.0, 3]
    assert choices == [Choice("here", "int", (("str", "odd"), ("float", "even")))]
    assert choices[0].is_fallback
    assert str(choices[0]) == "here: int; not str: odd; not float: even"


def test_the_best_kernel_is_no_fallback():
    with kernel_choices() as choices:
        attend(PreferredAttention.Config(kernels=(ReferenceAttention.Config(),)).build(path="mixer.kernel"))
    assert [str(choice) for choice in choices] == ["mixer.kernel: ReferenceAttention"]
    assert not choices[0].is_fallback


def test_a_choice_becomes_known_when_a_program_is_traced():
    run = jax.jit(lambda: attend(CUDNN_FIRST.build(path="mixer.kernel")))
    with kernel_choices() as choices:
        run.trace()
    said = "mixer.kernel: BlockwiseAttention; not CudnnAttention: it runs on cuda, this is cpu"
    assert [str(choice) for choice in choices] == [said]


def test_equal_choices_are_one_and_different_ones_of_one_kernel_are_two():
    fits = PreferredAttention.Config(kernels=(SplashAttention.Config(interpret=True), ReferenceAttention.Config()))
    kernel = fits.build(path="kernel")
    with kernel_choices() as choices:
        for length in (4, 4, 128):
            jax.eval_shape(lambda length=length: attend(kernel, length))
    assert [choice.kernel for choice in choices] == ["ReferenceAttention", "SplashAttention"]


def test_each_of_nested_collections_gets_what_is_chosen_inside_it_and_nothing_is_noted_outside():
    first, second = Choice("a", "X"), Choice("b", "Y")
    with kernel_choices() as outer:
        note_choice(first)
        with kernel_choices() as inner:
            note_choice(second)
    note_choice(Choice("c", "Z"))
    assert (outer, inner) == ([first, second], [second])


def test_threads_do_not_hear_of_each_other():
    with kernel_choices() as choices:
        other = threading.Thread(target=note_choice, args=(Choice("other", "X"),))
        other.start()
        other.join()
    assert choices == []


def test_no_kernel_for_a_request_is_an_error_with_all_reasons():
    cfg = PreferredAttention.Config(kernels=(SplashAttention.Config(interpret=True), CudnnAttention.Config()))
    with pytest.raises(ConfigError) as error:
        attend(cfg.build(path="model.mixer.kernel"))
    assert str(error.value) == (
        "model.mixer.kernel: none of its kernels computes this.\n"
        "  SplashAttention: 4 queries in a row are not a multiple of 128.\n"
        "  CudnnAttention: it runs on cuda, this is cpu.\n"
        "  Add a kernel that does to `kernels`."
    )
