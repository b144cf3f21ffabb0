# SPDX-License-Identifier: Apache-2.0
"""Samples while a model is trained: how a language model goes on with a prompt."""

from typing import Any

from dovetail.config import ConfigError
from dovetail.progress import phase
from dovetail.train import Evaluated, Evaluator, Findings, Table

from ._generate import Sampling
from ._writer import Sample, Writer, tokenizer_of


class Sampler(Evaluator):
    """Continues a prompt, with the tokenizer of the run's input. Random numbers follow from the step."""

    class Config(Evaluator.Config):
        prompt: str = ""  # Empty: it writes nothing, and says what `dovetail generate` uses by default.
        more_prompts: tuple[str, ...] = ()  # With some, there is a table with a row for each prompt, too.
        tokens: int = 200  # New ones, at most.
        sampling: Sampling = Sampling(temperature=0.8)

    def __init__(self, cfg: Config, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        cfg.sampling.check()
        if cfg.tokens < 1:
            raise ConfigError(f"{self._path}.tokens: is {cfg.tokens}, expected at least 1.")
        self._writer = Writer(self.program, tokenizer_of(self.program.cfg, self._files), cfg.tokens, cfg.sampling)

    def run(self, at: Evaluated) -> Findings:
        if not self.cfg.prompt:
            return Findings()
        prompts = (self.cfg.prompt, *self.cfg.more_prompts)
        with phase("sampling", len(prompts), unit="prompts") as written:
            samples: list[Sample] = []
            for prompt in prompts:
                samples.append(self._writer.write(at.params, prompt, at.step, at.step))
                written.advance()
        rows = [(prompt, each.new, each.tokens) for prompt, each in zip(prompts, samples, strict=True)]
        tables = {"all": Table(("prompt", "continuation", "tokens"), rows)} if self.cfg.more_prompts else {}
        return Findings(texts={"": samples[0].text}, tables=tables)
