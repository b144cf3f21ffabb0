# SPDX-License-Identifier: Apache-2.0
"""Recipes: how a model is trained. Each function returns the config of a trainer for a model of any family."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from dovetail.config import REQUIRED, ConfigError
from dovetail.data import (
    ByteTokenizer,
    HuggingFaceTokenizer,
    Input,
    JsonLines,
    PreparedDataset,
    ShippedCorpus,
    ShippedTokenizer,
    Source,
    Split,
    TextDataset,
    TextInput,
    Tokenizer,
    source_of,
)
from dovetail.models import CausalLM
from dovetail.optim import AdamW, CosineSchedule, Learner, Muon, WeightDecay
from dovetail.serve import Sampler, Sampling
from dovetail.train import HeldOutLoss, InitFrom, Trainer

from .hf import Directory, open_directory

_EVAL = "eval"  # The evaluator whose data is that of the run, held out.


def pretrain(
    name: str,
    model: CausalLM.Config,
    *,
    seq_len: int,
    batch_size: int | None = None,
    steps: int = 500_000,
    peak: float = 3e-4,
) -> Trainer.Config:
    """Pre-training on data that was prepared, with the settings that most published models share.

    The data is yours, and so is the tokenizer that it was prepared with. `on_text` puts raw text in its place.

    Args:
        batch_size: of sequences; None: as many as make 4 million tokens.
        peak: the highest learning rate.
    """
    return Trainer.Config(
        model=model,
        learner=_learner(peak, warmup_steps=2000),
        input=TextInput.Config(
            batch_size=batch_size or 2**22 // seq_len,
            seq_len=seq_len,
            tokenizer=None,
            dataset=PreparedDataset.Config(),
        ),
        steps=steps,
        directory=f"runs/{name}",
        compute_dtype="bfloat16",
    )


def finetune(name: str, *, weights: bool = True) -> Trainer.Config:
    """Training that starts from a published model, `hf:DIRECTORY` or `hf:ORG/NAME`, on your text.

    It computes in float32, unless hardware or you say otherwise, and writes as its generation_config.json says.

    Args:
        weights: whether those of a repository are downloaded, too.
    """
    found = open_directory(name, weights=weights)
    tokenizer, adds_bos = HuggingFaceTokenizer.Config().set(**found.special), False
    if found.has_tokenizer:
        file = str(found.path / "tokenizer.json")
        tokenizer = tokenizer.set(file=file, beside=found.beside, add_special=True)
        built = tokenizer.build(path="input.tokenizer", files=found.files)
        adds_bos = built.bos_id is not None and built.encode_prompt("a")[:1].tolist() == [built.bos_id]
    return Trainer.Config(
        model=found.model,
        learner=_learner(1e-5, warmup_steps=0),
        input=TextInput.Config(
            batch_size=8,
            seq_len=min(_longest(found), _FINETUNED),
            tokenizer=tokenizer,
            dataset=TextDataset.Config(
                source=JsonLines.Config(), add_bos=adds_bos, add_eos="eos_token" in found.special
            ),
        ),
        evaluators={"sample": Sampler.Config(sampling=_sampling(found))},
        init_from=InitFrom(path=f"hf:{found.path}", weights=found.family.weights),
        steps=1000,
        directory=f"runs/{_run_name(name, found.path)}",
    )


_FINETUNED = 1024  # Tokens of a sequence, at most, unless you say otherwise.
_HOTTEST = 10**6  # A temperature with which all tokens are as likely.


def _run_name(name: str, path: Path) -> str:
    """Returns a name for a run from a published model: that of its directory, or of the repository."""
    place = name.removeprefix("hf:")
    last = path.resolve().name if Path(place).expanduser().is_dir() else place.rpartition("/")[2]
    return re.sub(r"[^\w.]+", "-", last).strip("-.") or "published"


def _longest(found: Directory) -> int:
    """Returns how many positions a published model has, by its config.json."""
    for name in ("max_position_embeddings", "n_positions"):
        value = found.fields.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise ConfigError(f"{found.path / 'config.json'}: {name} is {value!r:.60}, expected at least 1.")
        if value is not None:
            return value
    return _FINETUNED


def _sampling(found: Directory) -> Sampling:
    """Returns how a generation_config.json draws tokens; greedily, unless it says `do_sample`."""
    given = found.generation

    def number(name: str, fits: Callable[[Any], bool], expected: str, default: Any = None) -> Any:
        value = given.get(name, default)
        if value is None or (type(value) in (int, float) and fits(value)):
            return value
        raise ConfigError(f"{found.path / 'generation_config.json'}: {name} is {value!r:.60}, expected {expected}.")

    temperature = number("temperature", lambda x: 0 <= x <= _HOTTEST, f"from 0 to {_HOTTEST}", 1.0)
    top_k = number("top_k", lambda x: type(x) is int and x >= 0, "a whole number, 0 or more", 50)
    top_p = number("top_p", lambda x: 0 < x <= 1, "more than 0, at most 1")
    min_p = number("min_p", lambda x: 0 <= x <= 1, "from 0 to 1")
    stop = _ends(found)
    if given.get("do_sample") is not True:
        return Sampling(temperature=0.0, stop=stop)
    temperature = 1.0 if temperature is None else float(temperature)
    return Sampling(temperature=temperature, top_k=top_k or None, top_p=top_p, min_p=min_p or None, stop=stop)


def _ends(found: Directory) -> tuple[int, ...] | None:
    """Returns the tokens that end a text: of generation_config.json, or else of config.json."""
    for file, values in {"generation_config.json": found.generation, "config.json": found.fields}.items():
        value = values.get("eos_token_id")
        ends = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(each) is int and 0 <= each < 2**31 for each in ends):
            raise ConfigError(f"{found.path / file}: eos_token_id is {value!r:.60}, expected an id, or several.")
        if ends:
            return tuple(ends)
    return None


def tiny(name: str, model: CausalLM.Config) -> Trainer.Config:
    """A few seconds on text that comes with dovetail, to see that a model of this structure learns."""
    return Trainer.Config(
        model=model,
        learner=_learner(4e-3, warmup_steps=10),
        input=_moby_dick("train", ByteTokenizer.Config(), batch_size=8, seq_len=64),
        steps=100,
        directory=f"runs/{name}",
    )


def tiny_lm(name: str, model: CausalLM.Config) -> Trainer.Config:
    """Two minutes on a laptop: it learns from Moby Dick to write sentences that look like it."""
    tokenizer = ShippedTokenizer.Config()
    return Trainer.Config(
        model=model,
        learner=_learner(1e-2, warmup_steps=30).set(optimizer=Muon.Config()),
        input=_moby_dick("train", tokenizer, batch_size=8, seq_len=128),
        evaluators={
            "eval": HeldOutLoss.Config(
                input=_moby_dick("held-out", tokenizer, batch_size=16, seq_len=128, shuffle=False, epochs=1),
                every=300,
            ),
            "sample": Sampler.Config(prompt="The whale", sampling=Sampling(temperature=0.7), every=300),
        },
        steps=600,
        directory=f"runs/{name}",
        save_every=300,
    )


def on_text(cfg: Trainer.Config, files: Sequence[str]) -> Trainer.Config:
    """Returns a run on your text: plain, JSON Lines or Parquet files, by their ending; the last of it is held out.

    The tokenizer stays; where there is none, you have to name it. The run has a directory of its own, named after the
    first file.
    """
    source = source_of(files, "text", to_split=True)
    train, held_out = (Split.Config(source=source).set(split=split) for split in ("train", "held-out"))
    home = "runs/text" if cfg.directory is REQUIRED else cfg.directory
    read = _reading(cfg.input, train)
    if read.tokenizer is None:  # A tokenizer.json does not say which token ends a document: that is asked for, too.
        read = read.set(tokenizer=HuggingFaceTokenizer.Config(eos_token=REQUIRED))
    return cfg.set(
        input=read,
        evaluators={**cfg.evaluators, _EVAL: _held_out(cfg, held_out)},
        directory=f"{home}-{_name_of(files[0])}",
    )


def on_data(cfg: Trainer.Config, places: Sequence[str]) -> Trainer.Config:
    """Returns a run on prepared data, with the tokenizer that it was prepared with; the last of it is held out.

    The run has a directory of its own, named after that of the data, the first one of several.
    """
    base = _text_input(cfg.input).set(tokenizer=None)
    held_out = _held_out_data(cfg.set(input=base), places, "held-out")
    home = "runs/data" if cfg.directory is REQUIRED else cfg.directory
    return cfg.set(
        input=base.set(dataset=_prepared(base, places).set(part="train"), streams=None),
        evaluators={**cfg.evaluators, _EVAL: held_out},
        directory=f"{home}-{_name_of(places[0])}",
    )


def eval_on_data(cfg: Trainer.Config, places: Sequence[str]) -> Trainer.Config:
    """Returns a run that is evaluated on prepared data, all of it, and on nothing else."""
    return cfg.set(evaluators={_EVAL: _held_out_data(cfg, places, "all")})


def _held_out_data(cfg: Trainer.Config, places: Sequence[str], part: Literal["all", "held-out"]) -> HeldOutLoss.Config:
    """Returns what evaluates a run on a part of prepared data: as the run does, where it does."""
    old, tokenizer = _evaluator(cfg), _text_input(cfg.input).tokenizer
    base = _text_input(old.input)
    dataset = _prepared(base, places).set(part=part, epochs=1, shuffle=False)
    return old.set(input=base.set(tokenizer=tokenizer, dataset=dataset, streams=None, num_workers=0))


def _prepared(base: TextInput.Config, places: Sequence[str]) -> PreparedDataset.Config:
    """Returns the data set of an input with prepared data in its place."""
    path = places[0] if len(places) == 1 else list(places)
    if isinstance(base.dataset, PreparedDataset.Config):
        return base.dataset.set(path=path)
    packer = getattr(base.dataset, "packer", None)
    return PreparedDataset.Config(path=path) if packer is None else PreparedDataset.Config(path=path, packer=packer)


def _evaluator(cfg: Trainer.Config) -> HeldOutLoss.Config:
    """Returns what evaluates a run on what is held out, or one like it."""
    there = cfg.evaluators.get(_EVAL)
    return there if isinstance(there, HeldOutLoss.Config) else HeldOutLoss.Config(input=cfg.input, every=500)


def eval_on_text(cfg: Trainer.Config, files: Sequence[str]) -> Trainer.Config:
    """Returns a run that is evaluated on your text, all of it, and on nothing else."""
    return cfg.set(evaluators={_EVAL: _held_out(cfg, source_of(files, "text"))})


def _held_out(cfg: Trainer.Config, source: Source.Config) -> HeldOutLoss.Config:
    """Returns what evaluates a run on a source: as the run does, where it does."""
    old = _evaluator(cfg)
    return old.set(input=_reading(old.input, source, once=True))


def _reading(base: Input.Config, source: Source.Config, *, once: bool = False) -> TextInput.Config:
    """Returns an input with another source, which ends after its last document, or never."""
    base = _text_input(base)
    dataset = base.dataset if isinstance(base.dataset, TextDataset.Config) else TextDataset.Config()
    if isinstance(base.dataset, PreparedDataset.Config):
        dataset = dataset.set(packer=base.dataset.packer)
    if not once:
        return base.set(dataset=dataset.set(source=source))
    return base.set(dataset=dataset.set(source=source, epochs=1, shuffle=False), streams=None, num_workers=0)


def _text_input(base: Input.Config) -> TextInput.Config:
    if not isinstance(base, TextInput.Config):
        raise ConfigError(f"input: expected TextInput.Config, to put text into; found {type(base).__qualname__}.")
    return base


def _name_of(pattern: str) -> str:
    """Returns a name for files: that of the file, or of the directory where a glob has none."""
    for part in reversed(Path(pattern).parts):
        if name := re.sub(r"\W+", "-", part.partition(".")[0]).strip("-"):
            return name
    return "text"


def _learner(peak: float, *, warmup_steps: int) -> Learner.Config:
    return Learner.Config(
        optimizer=AdamW.Config(b2=0.95),
        schedule=CosineSchedule.Config(peak=peak, warmup_steps=warmup_steps, final_ratio=0.1),
        weight_decay=WeightDecay.Config(rate=0.1),
    )


def _moby_dick(
    split: str, tokenizer: Tokenizer.Config, *, batch_size: int, seq_len: int, **fields: Any
) -> TextInput.Config:
    dataset = TextDataset.Config(source=ShippedCorpus.Config().set(split=split)).set(**fields)
    return TextInput.Config(batch_size=batch_size, seq_len=seq_len, tokenizer=tokenizer, dataset=dataset)
