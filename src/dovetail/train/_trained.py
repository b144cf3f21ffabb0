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
from dovetail.data import Input, Tokenizer
from dovetail.models import CausalLM, Sampling
from dovetail.optim import LearnerState
from dovetail.parallel import Batch
from dovetail.progress import phase

from ._program import Program
from ._step import TrainState


class Sample(NamedTuple):
    """A prompt with its continuation, and what that took."""

    text: str
    tokens: int  # New ones, with the one that ended the text.
    seconds: float  # Without those for compilation.


class Trained(NamedTuple):
    """A model, its parameters (their moving average, where the learner keeps one), its tokenizer, the steps it made.

    It computes as the run did: on its mesh, in its dtype, with its kernels.
    """

    program: Program
    params: Any
    tokenizer: Tokenizer
    step: int

    @property
    def model(self) -> CausalLM:
        """The model, as it is on the mesh of the run."""
        return self.program.model

    def evaluate(self, data: Input) -> dict[str, float]:
        """Returns loss and accuracy per token over all of an input, as the trainer reports them."""
        with phase("evaluating"):
            return evaluate(self.program.eval_step(), self.params, self.program.devices.batches(data))

    def sample(self, prompt: str, *, seed: int, max_new: int, sampling: Sampling) -> str:
        """Returns the prompt with a continuation."""
        return self.timed_sample(prompt, seed=seed, max_new=max_new, sampling=sampling).text

    def timed_sample(self, prompt: str, *, seed: int, max_new: int, sampling: Sampling) -> Sample:
        """Returns the prompt with a continuation, and the time of drawing it."""
        sampling = with_stop(sampling, self.tokenizer)
        inputs = (self.params, *_prompt(self.tokenizer, prompt), jax.random.key(seed))
        run = self.program.generate(max_new, sampling, inputs)
        start = time.perf_counter()
        with phase("generating"):
            drawn = np.asarray(run(*inputs))
        seconds = time.perf_counter() - start
        new = _new(drawn, sampling)
        return Sample(_text(self.tokenizer, inputs[1], new), len(new), seconds)


def with_stop(sampling: Sampling, tokenizer: Tokenizer) -> Sampling:
    """Returns how to sample with what ends a text: by default the end-of-text token of the tokenizer, if it has one."""
    if sampling.stop is not None or tokenizer.eos_id is None:
        return sampling
    return sampling.set(stop=(tokenizer.eos_id,))


def continued(
    run: Callable[..., Any], params: Any, tokenizer: Tokenizer, prompt: str, seed: int, sampling: Sampling
) -> str:
    """Returns a prompt with the continuation that `run`, made by `Program.generate`, gives."""
    ids, lengths = _prompt(tokenizer, prompt)
    drawn = run(params, ids, lengths, jax.random.key(seed))
    return _text(tokenizer, ids, _new(drawn, with_stop(sampling, tokenizer)))


def _prompt(tokenizer: Tokenizer, prompt: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a batch of one prompt, and its length."""
    ids = tokenizer.encode(prompt)[None]
    if not ids.size:
        raise ConfigError("the prompt is empty. Give it at least one token.")
    return ids, np.asarray([ids.shape[1]])


def _new(drawn: Any, sampling: Sampling) -> list[int]:
    """Returns the tokens of the only row, up to the one that ends it."""
    tokens = np.asarray(drawn)[0]
    ends = np.flatnonzero(np.isin(tokens, sampling.stop or ()))
    return tokens[: ends[0] + 1 if len(ends) else None].tolist()


def _text(tokenizer: Tokenizer, ids: np.ndarray, new: list[int]) -> str:
    # A model may have more words than its tokenizer has tokens; before it has learned, it may draw one of those.
    return tokenizer.decode([*ids[0].tolist(), *(token for token in new if token < tokenizer.vocab_size)])


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

    It lies on the mesh of that config, which need not be the one that the run was saved from.

    Args:
        files: those of the tokenizer, from the checkpoint; by default they are read where the config says.
        step: of the checkpoint; the newest by default.
    """
    program = Program(cfg, batch=Batch(rows=0, tokens=0))  # No batch of a training step, so none that must be split.
    directory = str(Path(cfg.directory) / "checkpoints")
    with phase("restoring the checkpoint"), Checkpointer.Config(directory=directory).build() as checkpointer:
        state: TrainState = checkpointer.restore(_published(program.abstract_state(), cfg), step, partial=True).state
    tokenizer = cfg.input.tokenizer.build(path="input.tokenizer", files=files)
    return Trained(program, averaged(state, cfg), tokenizer, int(state.step))


def averaged(state: TrainState, cfg: Any) -> Any:
    """Returns the parameters to evaluate and to publish: their moving average where the learner keeps one."""
    return state.learner.ema if cfg.learner.ema is not None else state.params


def _published(state: TrainState, cfg: Any) -> TrainState:
    """Returns the part of a state that is needed to use the model."""
    if cfg.learner.ema is None:
        return TrainState(state.step, state.params, None)  # pyright: ignore[reportArgumentType] (a part of the tree)
    nothing: Any = dict.fromkeys(LearnerState._fields)
    return TrainState(state.step, None, LearnerState(**nothing)._replace(ema=state.learner.ema))
