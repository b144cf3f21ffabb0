# SPDX-License-Identifier: Apache-2.0
"""`Writer`: continues a prompt with the model of a run, on its mesh and in its dtype."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import ConfigError
from dovetail.data import TextInput, Tokenizer
from dovetail.parallel import decoding_layout
from dovetail.progress import phase
from dovetail.train import Program, Trainer

from ._generate import Sampling, generate


class Sample(NamedTuple):
    """A prompt with its continuation, and what that took."""

    text: str
    new: str  # The continuation alone.
    tokens: int  # New ones, with the one that ended the text.
    seconds: float  # Without those for compilation.


class Writer:
    """Writes with a model. Its program is compiled for each length of a prompt, and kept.

    Args:
        tokens: of a continuation, at most.
        sampling: where it names no tokens that end a text, the end-of-text token of the tokenizer does.
    """

    def __init__(self, program: Program, tokenizer: Tokenizer, tokens: int, sampling: Sampling) -> None:
        if not hasattr(program.model, "last_logits"):
            raise ConfigError(
                f"{program.model!r} cannot write text: it has no method `last_logits`, as a language model has."
            )
        self._program, self._tokenizer, self._tokens = program, tokenizer, tokens
        self.sampling = with_stop(sampling, tokenizer)
        self._compiled: dict[int, Callable[..., Any]] = {}

    def write(self, params: Any, prompt: str, seed: int, step: int = 0, *, ids: np.ndarray | None = None) -> Sample:
        """Returns a prompt with a continuation, by the model after a number of steps; `ids` are those of the prompt."""
        ids = (self._tokenizer.encode_prompt(prompt) if ids is None else ids)[None]
        if not ids.size:
            raise ConfigError("the prompt is empty. Give it at least one token.")
        inputs = (params, ids, np.asarray([ids.shape[1]]), jax.random.key(seed), np.int32(step))
        run = self._run(inputs)
        start = time.perf_counter()
        with phase("generating"):
            drawn = np.asarray(run(*inputs))
        seconds = time.perf_counter() - start
        new = new_tokens(drawn, self.sampling)
        text, alone = (text_of(self._tokenizer, each, new) for each in (ids, ids[:, :0]))
        return Sample(text, alone, len(new), seconds)

    def _run(self, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        length = inputs[1].shape[1]
        if length not in self._compiled:
            jitted = jax.jit(self._function(), out_shardings=self._program.devices.everywhere)
            self._compiled[length] = self._program.compile(jitted, *inputs)
        return self._compiled[length]

    def _function(self) -> Callable[..., Any]:
        """Returns the function from parameters, prompts, their lengths, a key and the step to new tokens."""
        program, layout = self._program, decoding_layout(self._program.cfg.mesh)
        options = {"max_new": self._tokens, "sampling": self.sampling, "dtype": program.dtype, "layout": layout}
        parts = 1 if layout is None else layout.shards(layout.activation_axes("batch"))

        def run(params: Any, prompts: Any, lengths: Any, key: Any, step: Any) -> Any:
            count = len(lengths)
            more = -count % parts  # The mesh splits rows: as many as it takes are there several times.
            prompts, lengths = jnp.pad(prompts, ((0, more), (0, 0)), "edge"), jnp.pad(lengths, (0, more), "edge")
            return generate(program.model, params, prompts, lengths, key=key, step=step, **options)[:count]

        return run


def tokenizer_of(cfg: Trainer.Config, files: Mapping[str, bytes] | None) -> Tokenizer:
    """Returns the tokenizer of the run that the config of a trainer describes; of its input, nothing else is read."""
    if not isinstance(cfg.input, TextInput.Config):
        kind = type(cfg.input).__qualname__.removesuffix(".Config")
        raise ConfigError(f"input: {kind} has no tokenizer, without which there is no text. Use a TextInput.")
    named = cfg.input.completed("input").tokenizer
    if named is None:
        raise ConfigError("input.tokenizer: is that of the data, which is not named. Set input.dataset.path=...")
    return named.build(path="input.tokenizer", files=files)


def with_stop(sampling: Sampling, tokenizer: Tokenizer) -> Sampling:
    """Returns how to sample with what ends a text: by default the end-of-text token of the tokenizer, if it has one."""
    if sampling.stop is not None or tokenizer.eos_id is None:
        return sampling
    return sampling.set(stop=(tokenizer.eos_id,))


def new_tokens(drawn: Any, sampling: Sampling) -> list[int]:
    """Returns the tokens of the only row, up to the one that ends it."""
    tokens = np.asarray(drawn)[0]
    ends = np.flatnonzero(np.isin(tokens, sampling.stop or ()))
    return tokens[: ends[0] + 1 if len(ends) else None].tolist()


def text_of(tokenizer: Tokenizer, ids: np.ndarray, new: list[int]) -> str:
    """Returns a prompt `[1, T]` and new tokens as text."""
    # A model may have more words than its tokenizer has tokens; before it has learned, it may draw one of those.
    return tokenizer.decode([*ids[0].tolist(), *(token for token in new if token < tokenizer.vocab_size)])
