# SPDX-License-Identifier: Apache-2.0
"""Recipes: one function per run, each returning the config of a trainer."""

from dovetail.data import ByteTokenizer, ShippedCorpus, TextDataset, TextInput
from dovetail.optim import AdamW, CosineSchedule, Learner, WeightDecay
from dovetail.train import Trainer

from .families import llama


def tiny_lm() -> Trainer.Config:
    """A byte-level model of 0.8 million parameters, for a few minutes on a laptop.

    It learns from Moby Dick, which comes with dovetail, to write words that look like it.
    """
    steps = 300

    def text(split: str, *, batch_size: int, **fields: object) -> TextInput.Config:
        source = ShippedCorpus.Config(name="moby-dick").set(split=split)
        dataset = TextDataset.Config(source=source).set(**fields)
        return TextInput.Config(batch_size=batch_size, seq_len=256, tokenizer=ByteTokenizer.Config(), dataset=dataset)

    return Trainer.Config(
        model=llama(vocab_size=260, dim=128, num_layers=4, num_heads=4, num_kv_heads=2, hidden_dim=352, tied=True),
        learner=Learner.Config(
            optimizer=AdamW.Config(b2=0.98),
            schedule=CosineSchedule.Config(peak=4e-3, warmup_steps=50, total_steps=steps, final_ratio=0.1),
            weight_decay=WeightDecay.Config(rate=0.1),
        ),
        input=text("train", batch_size=8),
        eval_input=text("held-out", batch_size=16, shuffle=False, epochs=1),
        steps=steps,
        directory="runs/tiny-lm",
        eval_every=150,
        save_every=150,
        sample_prompt="The whale",
    )
