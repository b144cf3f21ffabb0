# SPDX-License-Identifier: Apache-2.0
"""`dovetail generate RUN PROMPT`: a model continues a prompt; or, with `--logits`, says what it makes of tokens."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config import ConfigError, split_override

from ._resolve import Run
from ._use import load_run, start_run

if TYPE_CHECKING:
    import numpy as np

    from dovetail.data import Tokenizer


def add_generate(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("directory", help="the directory of a run, or hf:DIRECTORY for a published model")
    parser.add_argument("prompt", nargs="?")
    parser.add_argument("overrides", nargs="*", default=[], metavar="PATH=VALUE", help=_OVERRIDES)
    parser.add_argument("--step", type=int, help="of the checkpoint; the newest by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chat", action="store_true", help="the prompt is what a user says, in the model's template")
    parser.add_argument(
        "--tokens", metavar="FILE", help="token ids in place of a prompt: separated by blanks, a row a line"
    )
    parser.add_argument("--logits", metavar="OUT.npy", help="write the logits of --tokens, float32 [rows, time, vocab]")
    parser.set_defaults(run=_generate)


_OVERRIDE = re.compile(r"[A-Za-z_][\w.\[\]]*=")
_OVERRIDES = "of how it is written, as in tokens=50 or sampling.temperature=0.5; and of the run"


def _generate(args: argparse.Namespace) -> int:
    prompt, overrides = _prompt(args)
    own, others = split_writing(overrides)
    if args.tokens is not None:
        _check_logits(args, own)
    run = start_run(args.directory, others, args.step, args.mesh, args.on)
    if args.tokens is not None:
        return _logits(args, run)
    from dovetail.config import override
    from dovetail.serve import Sampler, Writer, tokenizer_of
    from dovetail.train import escaped, visible

    cfg = run.cfg
    samplers = (each for each in cfg.evaluators.values() if isinstance(each, Sampler.Config))
    how = override(next(samplers, Sampler.Config()), own)
    tokenizer = tokenizer_of(cfg, run.files)
    ids = _chat(tokenizer, prompt) if args.chat else None
    trained = load_run(run, args.step)
    _tell_unused(tokenizer)
    writer = Writer(trained.program, tokenizer, how.tokens, how.sampling)
    found = writer.write(trained.params, prompt, args.seed, trained.step, ids=ids)
    rate = found.tokens / found.seconds
    text = found.new if args.chat else found.text
    if args.json:
        values = {"step": trained.step, "text": text, "tokens": found.tokens, "tokens_per_second": round(rate, 1)}
        print(escaped(json.dumps(values, ensure_ascii=False, indent=2)))
    else:
        print(visible(text), flush=True)
        print(f"{found.tokens} tokens, {rate:,.0f} a second", file=sys.stderr)
    return 0


def _prompt(args: argparse.Namespace) -> tuple[str, list[str]]:
    """Returns the prompt and the overrides; with tokens there is no prompt, and what stands there is an override."""
    if (args.tokens is None) != (args.logits is None):
        raise ConfigError("--tokens and --logits go together: what to read, and where to write what it gives.")
    words = [*([] if args.prompt is None else [args.prompt]), *args.overrides]  # In order, whatever stands between.
    if args.tokens is not None:
        if args.chat:
            raise ConfigError("--chat is for a prompt, not for --tokens.")
        return "", words
    if not words:
        raise ConfigError("there is no prompt. Give one, as in: dovetail generate RUN 'Call me'")
    at = next((i for i, word in enumerate(words) if not _OVERRIDE.match(word)), 0)
    return words[at], words[:at] + words[at + 1 :]


def _chat(tokenizer: "Tokenizer", prompt: str) -> "np.ndarray":
    from dovetail.data import ChatTemplate

    text = ChatTemplate(tokenizer.files()).render([{"role": "user", "content": prompt}])
    return tokenizer.encode_with_special(text)


# What generation_config.json may ask for besides what `sampling` has, and what asks for nothing.
_NEUTRAL = {"repetition_penalty": 1, "no_repeat_ngram_size": 0, "num_beams": 1, "typical_p": 1, "penalty_alpha": 0}


def _tell_unused(tokenizer: "Tokenizer") -> None:
    """Says what the generation_config.json of a model asks for that is not done."""
    try:
        found = json.loads(tokenizer.files().get("generation_config.json", b"{}"))
        unused = [f"{name}={found[name]!r:.20}" for name, no in _NEUTRAL.items() if found.get(name) not in (None, no)]
    except (ValueError, RecursionError, AttributeError):  # Of a run from elsewhere.
        return
    if unused:
        print(f"Not done, though generation_config.json asks for it: {', '.join(unused)}.", file=sys.stderr)


def _check_logits(args: argparse.Namespace, own: Sequence[str]) -> None:
    """Raises if `--logits` cannot work, before anything is read."""
    if own:
        raise ConfigError(f"{own[0]} is for a prompt, not for --tokens, of which nothing is drawn.")
    parent = Path(args.logits).absolute().parent
    if not Path(args.tokens).exists():
        raise ConfigError(f"--tokens: there is no {args.tokens!r}.")
    if not parent.is_dir():
        raise ConfigError(f"--logits: there is no directory {str(parent)!r}.")
    if Path(args.logits).is_dir():
        raise ConfigError(f"--logits: {args.logits!r} is a directory, expected the name of a file.")
    if Path(args.logits).resolve() == Path(args.tokens).resolve():
        raise ConfigError(f"--logits: {args.logits!r} is the file of --tokens. Name another one.")


def _logits(args: argparse.Namespace, run: Run) -> int:
    import numpy as np

    from dovetail.train import Evaluated

    rows = _token_rows(args.tokens, run.cfg.model)
    trained = load_run(run, args.step)
    count, parts = len(rows), trained.program.devices.row_parts
    ids = np.pad(rows, ((0, -count % parts), (0, 0)), "edge")  # The mesh splits rows: as many as that takes.
    found, _ = trained.program.call(Evaluated(trained.step, trained.params), ids, method="forward")
    try:
        with open(args.logits, "wb") as out:  # Under the very name: numpy would add an ending.
            np.save(out, np.asarray(found[:count], np.float32))
    except OSError as e:
        raise ConfigError(f"--logits: {args.logits!r} cannot be written: {e.strerror}.") from e
    print(f"{args.logits}: float32 {list(found[:count].shape)}", file=sys.stderr)
    return 0


def _token_rows(file: str, model: Any) -> "np.ndarray":
    """Returns the token ids in a file, `[rows, time]`."""
    import numpy as np

    try:
        with open(file, encoding="utf-8") as lines:
            rows = [[int(word) for word in line.split()] for line in lines if line.strip()]
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else e
        raise ConfigError(f"--tokens: {file!r} cannot be read: {why}. Expected numbers, a row a line.") from e
    lengths = sorted({len(row) for row in rows})
    if len(lengths) != 1:
        found = f"rows of {lengths[0]} to {lengths[-1]} tokens" if rows else "no row"
        raise ConfigError(f"--tokens: {file!r} has {found}, expected rows of one length.")
    size = getattr(model, "vocab_size", None)
    if size is not None and (outside := [each for row in rows for each in row if not 0 <= each < size]):
        raise ConfigError(f"--tokens: {file!r} has the token {outside[0]}, outside the vocabulary of {size}.")
    return np.asarray(rows, np.int32)


def split_writing(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the overrides of how to write, and those of the run."""
    own = [text for text in overrides if split_override(text)[0].partition(".")[0] in ("tokens", "sampling")]
    return own, [text for text in overrides if text not in own]
