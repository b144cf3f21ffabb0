# SPDX-License-Identifier: Apache-2.0
"""A run that takes seconds, for tests of the trainer and what comes after it."""

from pathlib import Path

from dovetail.data import ByteTokenizer, TextDataset, TextFiles, TextInput
from dovetail.optim import EMA, ConstantSchedule, Learner
from dovetail.serve import Sampler
from dovetail.train import HeldOutLoss, JsonLines, Trainer
from dovetail.zoo.families import llama

TEXT = "\n\n\n".join(f"Chapter {i}. It was a dark and stormy night, the {i}th of them." for i in range(40))


def tiny(directory: Path, steps: int = 6, **fields) -> Trainer.Config:
    """A trainer with everything on that could spoil a resumed run: dropout, shuffling, accumulation, EMA."""
    directory.mkdir(parents=True, exist_ok=True)
    text = directory / "text.txt"
    text.write_text(TEXT, encoding="utf-8")

    def from_text(**options) -> TextInput.Config:
        source = TextFiles.Config(files=[str(text)], separator="\n\n\n")
        dataset = TextDataset.Config(source=source).set(**options)
        return TextInput.Config(batch_size=4, seq_len=32, tokenizer=ByteTokenizer.Config(), dataset=dataset)

    model = llama(vocab_size=260, dim=16, num_layers=2, num_heads=2, num_kv_heads=1, hidden_dim=32, tied=True)
    return Trainer.Config(
        model=model.set_in("stack.layer.dropout.rate", 0.2),
        learner=Learner.Config(schedule=ConstantSchedule.Config(peak=1e-2), ema=EMA.Config(decay=0.9)),
        input=from_text(),
        evaluators={
            "eval": HeldOutLoss.Config(input=from_text(shuffle=False, epochs=1), every=3),
            "sample": Sampler.Config(prompt="It was", tokens=8, every=3),
        },
        steps=steps,
        directory=str(directory / "run"),
        observers=(JsonLines.Config(),),
        num_microbatches=2,
        log_every=1,
        save_every=3,
    ).set(**fields)


def without_samples(cfg: Trainer.Config) -> Trainer.Config:
    """The same run, which writes nothing: that is another program to compile."""
    return cfg.set(evaluators={"eval": cfg.evaluators["eval"]})


def evaluated_at_the_end(cfg: Trainer.Config) -> Trainer.Config:
    """The same run with its held-out loss at the end alone."""
    return without_samples(cfg).set_in("evaluators.eval.every", None)
