# SPDX-License-Identifier: Apache-2.0
"""What transformers computes, for comparison: it runs in an interpreter with torch and transformers, without ours.

`peer.py make OUT --family F --seed S --count N` writes `OUT/F-0` to `OUT/F-(N-1)`: a random model as transformers
saves it, and beside it `expected.npz` with logits, loss, gradients and greedy tokens. `peer.py load DIR --tokens FILE
--out OUT.npz` reads any directory, refuses one that does not fit to the last tensor, and writes the same for tokens
of the caller's. Models 1, 3, 5... have the `config.json` of transformers 4, as nearly all published ones have; every
second of those without all fields that say what transformers takes anyway.
"""
# pyright: reportMissingImports=false

import argparse
import copy
import json
import shutil
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cases
import numpy as np
import torch
import transformers
import weights
from huggingface_hub.errors import StrictDataclassError
from safetensors.numpy import load_file, save_file

LENGTH, PROMPT, NEW = 24, 6, 32
MARGIN = 1e-3  # Between the two best logits of each greedy step, of the largest logit: float32 must not decide.
NOISE = 1e-5  # What computing in float64 instead may change, of the largest logit: a router's tie is no test.


def load(directory: Path) -> Any:
    """Returns the model in `directory`, in float32 and plain torch; raises unless each tensor has its one place."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    problems = {name: sorted(map(str, found)) for name, found in info.items() if found}
    if problems:
        raise SystemExit(f"peer: {directory} does not fit {type(model).__name__}: {json.dumps(problems, indent=1)}")
    return model.eval()


def build(directory: Path, values: dict[str, Any], seed: int, index: int) -> Any:
    """Writes a model with made weights to `directory`, and returns it as transformers reads it back."""
    config = transformers.AutoConfig.for_model(**values)
    fresh = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fresh.save_pretrained(directory)
    file = directory / "model.safetensors"
    shapes = {name: value.shape for name, value in load_file(file).items()}
    save_file({name: weights.make(name, shape, seed) for name, shape in shapes.items()}, file, {"format": "pt"})
    path = directory / "config.json"
    written = json.loads(path.read_text())
    if index % 2:
        written = old_style(copy.deepcopy(written))
    if index % 4 == 3:
        written = without_defaults(written)
    path.write_text(json.dumps(written, indent=2) + "\n")
    model = load(directory)
    found, meant = (each.to_dict().get("rope_parameters") for each in (model.config, config))
    if found is not None:
        found.pop("type", None)
    assert found == meant, f"{directory}: read {found}, not {meant}"
    return model


def old_style(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config as transformers 4 wrote it, and as the hub has it."""
    config["torch_dtype"] = config.pop("dtype")
    if config["model_type"] == "granitemoehybrid":
        names = {"linear_attention": "mamba", "full_attention": "attention"}
        config["layer_types"] = [names[name] for name in config["layer_types"]]
    if config.get("time_step_limit") == [0.0, {"__float__": "Infinity"}]:
        config["time_step_limit"] = [0.0, float("inf")]
    config.pop("_sliding_window_pattern", None)
    return without_defaults(_old_ropes(config), "layer_types", "head_dim", "qk_head_dim", "tie_word_embeddings")


def _old_ropes(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config with rope_theta by itself, and rope_scaling only if there is any."""
    ropes, family = config.pop("rope_parameters", None), config["model_type"]
    if ropes is None:
        return config
    near = ropes.get("sliding_attention")
    own = dict(ropes.get("full_attention", ropes))
    if near is not None and family == "gemma3_text":
        config["rope_local_base_freq"] = near["rope_theta"]
    elif near is not None and {near["rope_theta"], own["rope_theta"]} != {500000.0}:
        return config | {"rope_parameters": ropes}  # olmo3: transformers reads another theta for full attention only.
    elif own["rope_type"] == "default" and family == "gpt_oss":
        return config | {"rope_parameters": ropes}  # No scaling means the published one to transformers.
    names = {"rope_theta": "rope_theta", "partial_rotary_factor": "partial_rotary_factor"}
    if family == "gpt_neox":
        names = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    for name, before in names.items():
        if name in own:
            config[before] = own.pop(name)
    if family == "bamba":
        del config["partial_rotary_factor"]  # It is half, whatever the config says.
    if own["rope_type"] == "default":
        return config | {"rope_scaling": None}
    if family == "phi3":
        del own["original_max_position_embeddings"]
        own["type"] = own.pop("rope_type")
    return config | {"rope_scaling": own}


def without_defaults(config: dict[str, Any], *names: str) -> dict[str, Any]:
    """Returns the config without those of `names` (of all, if none) that say what transformers takes anyway."""
    whole = read_config(config)
    for name in names or [name for name in config if name not in ("model_type", "architectures")]:
        less = {other: value for other, value in config.items() if other != name}
        if name in config and read_config(less) == whole:
            config = less
    return config


def read_config(config: dict[str, Any]) -> dict[str, Any] | None:
    """Returns all that transformers knows after it read `config`, or None if it refuses to."""
    try:
        values = transformers.AutoConfig.for_model(**copy.deepcopy(config)).to_dict()
    except (ValueError, TypeError, LookupError, ZeroDivisionError, StrictDataclassError):
        return None
    for ropes in filter(None, [values.get("rope_parameters")]):
        ropes.pop("type", None)  # The first name of `rope_type`, which stays beside it.
    return {name: value for name, value in values.items() if name not in ("dtype", "torch_dtype")}


def logits_of(model: Any, tokens: np.ndarray) -> Any:
    return model(input_ids=torch.tensor(tokens, dtype=torch.long), use_cache=False).logits


def noise(model: Any, tokens: np.ndarray, logits: np.ndarray) -> float:
    """Returns how far float64 is from float32, of the largest logit."""
    with torch.no_grad():
        exact = logits_of(copy.deepcopy(model).double(), tokens).numpy()
    return float(np.abs(exact - logits).max() / np.abs(logits).max())


def gradients(model: Any, loss: Any) -> dict[str, np.ndarray]:
    """Returns the gradient of `loss` for each tensor of the file, in the file's layout; ends the use of `model`."""
    loss.backward()
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    fixed = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)  # What it does to weights on the way to the file, it does to these.
        found = load_file(Path(directory) / "model.safetensors")
    return {name: value for name, value in found.items() if name.rpartition(".")[2] not in fixed}


def sample(names: Sequence[str], layers: int, rng: np.random.Generator) -> list[str]:
    """Returns four names: the embedding, one of the last layer, and two others."""
    embedding = next(
        n for n in names if n.endswith(("embed_tokens.weight", "embed_in.weight", "wte.weight")) or "embeddings" in n
    )
    last = [name for name in names if f".{layers - 1}." in name]
    chosen = [embedding, str(rng.choice(last))]
    others = [name for name in names if name not in chosen]
    return chosen + [str(name) for name in rng.choice(others, min(2, len(others)), replace=False)]


def greedy(model: Any, prompt: np.ndarray, *, cache: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `NEW` tokens after `prompt`, and the logits `[NEW, V]` that they are the best of."""
    config = transformers.GenerationConfig(
        max_new_tokens=NEW, do_sample=False, use_cache=cache, output_logits=True, return_dict_in_generate=True
    )
    ids = torch.tensor(prompt, dtype=torch.long)
    model.generation_config = transformers.GenerationConfig()  # No token ends it.
    found = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    tokens = found.sequences[:, prompt.shape[1] :].numpy().astype(np.int32)
    return tokens, torch.stack(found.logits)[:, 0].numpy()


def margin(steps: np.ndarray) -> float:
    """Returns the least difference between the two best logits of a step, of the largest logit."""
    best = np.sort(steps, axis=-1)
    return float(((best[:, -1] - best[:, -2]) / np.maximum(np.abs(steps).max(-1), 1.0)).min())


def continuation(model: Any, vocab: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns a prompt and its greedy continuation, or why there is none that is well defined.

    Of ten prompts, or as many more as it takes, it is the one with the most different tokens and clear margins.
    """
    kept = copy.deepcopy(model.generation_config)
    best, prompt, most = None, np.zeros((1, PROMPT), np.int32), 0
    for attempt in range(60):
        if attempt >= 10 and best is not None:
            break
        drawn = rng.integers(0, vocab, (1, PROMPT), dtype=np.int32)
        tokens, steps = greedy(model, drawn, cache=True)
        different = len(np.unique(tokens))
        if margin(steps) >= MARGIN and different > most:
            best, prompt, most = (tokens, steps), drawn, different
    again, same = greedy(model, prompt, cache=False)
    model.generation_config = kept
    if best is None:
        return {"prompt": prompt, "greedy_note": np.array("no prompt of 60 has clear margins")}
    if not np.array_equal(best[0], again) or np.abs(best[1] - same).max() > 1e-4 * np.abs(same).max():
        note = "transformers decodes differently with and without its cache"
        return {"prompt": prompt, "greedy_note": np.array(note)}
    return {"prompt": prompt, "greedy": best[0]}


def expected(model: Any, rng: np.random.Generator) -> dict[str, np.ndarray] | None:
    """Returns what transformers computes with `model`, or None if float32 is too short for it."""
    vocab = model.config.vocab_size
    tokens = rng.integers(0, vocab, (2, LENGTH), dtype=np.int32)
    logits = logits_of(model, tokens)
    values = logits.detach().numpy()
    result = {"tokens": tokens, "logits": values, "noise": np.array(noise(model, tokens, values))}
    if not np.isfinite(values).all() or result["noise"] > NOISE:
        return None
    exact = copy.deepcopy(model).double()  # So that what differs from its gradients is not transformers' rounding.
    targets = torch.tensor(tokens[:, 1:], dtype=torch.long)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten())
    result |= {"loss": np.array(loss.item(), np.float32)} | continuation(model, vocab, rng)
    loss = torch.nn.functional.cross_entropy(logits_of(exact, tokens)[:, :-1].flatten(0, 1), targets.flatten())
    slopes = {name: value.astype(np.float32) for name, value in gradients(exact, loss).items()}
    for name in sample(
        sorted(name for name, value in slopes.items() if value.any()), model.config.num_hidden_layers, rng
    ):
        result[f"grad/{name}"] = slopes[name]
    return result


def write(directory: Path, family: str, seed: int, index: int) -> dict[str, np.ndarray]:
    """Writes case `index` of `family`, drawn until float32 can tell right from wrong; returns its `expected.npz`."""
    for attempt in range(20):
        rng = np.random.default_rng([seed, zlib.crc32(family.encode()), index, attempt])
        values = cases.case(family, rng, index)
        own = int(rng.integers(2**31))
        shutil.rmtree(directory, ignore_errors=True)
        model = build(directory, {"model_type": family} | values, own, index)
        result = expected(model, rng)
        if result is not None:
            result |= {"seed": np.array(own), "arguments": np.array(json.dumps(values))}
            np.savez(directory / "expected.npz", **result)  # pyright: ignore[reportArgumentType]
            return result
    raise SystemExit(f"peer: {family} case {index}, seed {seed}: 20 draws, none that float32 computes well.")


def make(args: argparse.Namespace) -> None:
    for family in args.family or cases.FAMILIES:
        for index in range(args.count):
            directory = Path(args.out) / f"{family}-{args.first + index}"
            found = write(directory, family, args.seed, args.first + index)
            kind = json.loads(str(found["arguments"])).get("rope_parameters", {})
            kind = kind.get("full_attention", kind).get("rope_type", "none")
            note = found.get("greedy_note", "greedy ok")
            print(
                f"{directory.name}: rope {kind}, loss {found['loss']:.3f}, noise {found['noise']:.1e}, {note}",
                flush=True,
            )


def check(args: argparse.Namespace) -> None:
    """Writes logits for given rows of tokens (padded with -1 and NaN to one length), and greedy tokens of the first."""
    model = load(Path(args.directory))
    rows = [[int(word) for word in line.split()] for line in Path(args.tokens).read_text().splitlines() if line.strip()]
    longest = max(map(len, rows))
    tokens = np.full((len(rows), longest), -1, np.int32)
    logits = np.full((len(rows), longest, model.config.vocab_size), np.nan, np.float32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
        with torch.no_grad():
            logits[i, : len(row)] = logits_of(model, np.array([row]))[0].numpy()
    prompt = np.array([rows[0][:PROMPT]], np.int32)
    found, steps = greedy(model, prompt, cache=True)
    np.savez(args.out, tokens=tokens, logits=logits, prompt=prompt, greedy=found, margin=margin(steps))


def main(argv: Sequence[str] | None = None) -> int:
    """Writes models with what is expected of them, or checks one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("make", help="write random models and what transformers computes with them")
    one.add_argument("out")
    one.add_argument("--family", action="append", choices=sorted(cases.FAMILIES), help="more than once for several")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--count", type=int, default=4)
    one.add_argument("--first", type=int, default=0, help="the index of the first case")
    one.set_defaults(run=make)
    two = commands.add_parser("load", help="read a directory strictly, and compute with it")
    two.add_argument("directory")
    two.add_argument("--tokens", required=True, help="a file: ids between blanks, a row a line")
    two.add_argument("--out", required=True)
    two.set_defaults(run=check)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    args.run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
