# SPDX-License-Identifier: Apache-2.0
"""A trained model as it comes out of the directory of a run: all that is needed to use it, and nothing to train it."""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dovetail.checkpoint import Checkpointer
from dovetail.config import ConfigError
from dovetail.data import Tokenizer
from dovetail.models import CausalLM, Sampling, generate
from dovetail.module import init, specs
from dovetail.optim import Learner, LearnerState
from dovetail.progress import phase

from ._step import TrainState, init_state


class Sample(NamedTuple):
    """A prompt with its continuation, and what that took."""

    text: str
    tokens: int  # New ones.
    seconds: float  # Without those for compilation.


class Trained(NamedTuple):
    """A model, its parameters (their moving average, where the learner keeps one), its tokenizer, the steps it made."""

    model: CausalLM
    params: Any
    tokenizer: Tokenizer
    step: int

    def sample(self, prompt: str, *, seed: int, max_new: int, sampling: Sampling) -> str:
        """Returns the prompt with a continuation."""
        return self.timed_sample(prompt, seed=seed, max_new=max_new, sampling=sampling).text

    def timed_sample(self, prompt: str, *, seed: int, max_new: int, sampling: Sampling) -> Sample:
        """Returns the prompt with a continuation, and the time of drawing it."""
        inputs = (self.params, *_prompt(self.tokenizer, prompt), jax.random.key(seed))
        with phase("tracing"):
            lowered = compiled_generate(self.model, max_new, sampling).lower(*inputs)
        with phase("compiling"):
            run = lowered.compile()
        start = time.perf_counter()
        with phase("generating"):
            drawn = np.asarray(run(*inputs))
        seconds = time.perf_counter() - start
        return Sample(_text(self.tokenizer, inputs[1], drawn), drawn.size, seconds)


def compiled_generate(model: CausalLM, max_new: int, sampling: Sampling, *, jit: Callable[..., Any] = jax.jit) -> Any:
    """Returns `generate` as a function of parameters, prompts, their lengths and a key, compiled by `jit`."""
    return jit(
        lambda params, prompts, lengths, key: generate(
            model, params, prompts, lengths, key=key, max_new=max_new, sampling=sampling
        )
    )


def continued(run: Callable[..., Any], params: Any, tokenizer: Tokenizer, prompt: str, seed: int) -> str:
    """Returns a prompt with the continuation that `run`, made by `compiled_generate`, gives."""
    ids, lengths = _prompt(tokenizer, prompt)
    return _text(tokenizer, ids, run(params, ids, lengths, jax.random.key(seed)))


def _prompt(tokenizer: Tokenizer, prompt: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a batch of one prompt, and its length."""
    ids = tokenizer.encode(prompt)[None]
    if not ids.size:
        raise ConfigError("the prompt is empty. Give it at least one token.")
    return ids, np.asarray([ids.shape[1]])


def _text(tokenizer: Tokenizer, ids: np.ndarray, drawn: Any) -> str:
    # A model may have more words than its tokenizer has tokens; before it has learned, it may draw one of those.
    known = [token for token in np.asarray(drawn)[0].tolist() if token < tokenizer.vocab_size]
    return tokenizer.decode([*ids[0].tolist(), *known])


def evaluate(step: Callable[..., Any], params: Any, batches: Iterable[Any]) -> dict[str, float]:
    """Returns loss and accuracy per token over all of an input; `step` is an `eval_step`, compiled."""
    sums = np.zeros(3)
    for batch in batches:
        sums += np.asarray(jax.device_get(step(params, batch)), np.float64)
    loss, weight, correct = sums.tolist()
    if not weight:
        raise ConfigError("the data to evaluate on holds no token to predict.")
    return {"eval/loss": loss / weight, "eval/accuracy": correct / weight, "eval/tokens": weight}


def load_trained(cfg: Any, *, files: Mapping[str, bytes] | None = None, step: int | None = None) -> Trained:
    """Returns the model of the run that the config of a trainer describes; neither its data nor its optimizer is read.

    Args:
        files: those of the tokenizer, from the checkpoint; by default they are read where the config says.
        step: of the checkpoint; the newest by default.
    """
    model: CausalLM = cfg.model.build(path="model")
    learner: Learner = cfg.learner.build(path="learner", specs=specs(model))
    whole = jax.eval_shape(lambda key: init_state(init(model, key), learner), jax.random.key(0))
    with Checkpointer.Config(directory=str(Path(cfg.directory) / "checkpoints")).build() as checkpointer:
        state: TrainState = checkpointer.restore(_published(whole, cfg), step, partial=True).state
    tokenizer = cfg.input.tokenizer.build(path="input.tokenizer", files=files)
    return Trained(model, averaged(state, cfg), tokenizer, int(state.step))


def averaged(state: TrainState, cfg: Any) -> Any:
    """Returns the parameters to evaluate and to publish: their moving average where the learner keeps one."""
    return state.learner.ema if cfg.learner.ema is not None else state.params


def _published(state: TrainState, cfg: Any) -> TrainState:
    """Returns the part of a state that is needed to use the model."""
    if cfg.learner.ema is None:
        return TrainState(state.step, state.params, None)  # pyright: ignore[reportArgumentType] (a part of the tree)
    nothing: Any = dict.fromkeys(LearnerState._fields)
    return TrainState(state.step, None, LearnerState(**nothing)._replace(ema=state.learner.ema))
