# SPDX-License-Identifier: Apache-2.0
"""From a trained model to a directory that transformers, vLLM and others load."""

import contextlib
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers

from dovetail.checkpoint.hf import OutTensor, WeightMap, read_beside, weight_map, write_tensors
from dovetail.config import ConfigError, missing_fields
from dovetail.data import ByteTokenizer, HuggingFaceTokenizer, TextInput, Tokenizer
from dovetail.models import CausalLM
from dovetail.module import abstract, init_run_state, merged
from dovetail.optim import by_path
from dovetail.progress import phase
from dovetail.train import Trainer

from .._published_name import PREFIX, check_target
from ._directory import BESIDE
from ._published import IGNORED, Published, published_as

DTYPES = ("float32", "bfloat16", "float16")  # Of an export.
_PREDICTIONS = "predictions["
_CONFIG, _GENERATION, _TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
_LIBRARY = "tokenizer.json"


class Plan(NamedTuple):
    """What an export writes, before any weight is read."""

    weights: WeightMap
    files: Mapping[str, bytes]  # All but the weights.
    dtype: str
    about: str
    notes: Sequence[str]


def plan_export(cfg: Trainer.Config, files: Mapping[str, bytes] | None, dtype: str | None) -> Plan:
    """Returns what an export of a run with these files writes; raises if its model cannot be published."""
    model = cfg.model
    if not isinstance(model, CausalLM.Config):
        raise ConfigError(f"model: {type(model).__qualname__} cannot be published, only a CausalLM.")
    files = _own_files(cfg) if files is None else files
    origin = _json(files.get(_CONFIG) or _published_config(cfg))
    family, fields = published_as(model, origin.get("model_type"))
    built = model.build(path="model")
    tree = by_path(merged(abstract(built), jax.eval_shape(lambda: init_run_state(built))))
    shapes = {path: tuple(leaf.shape) for path, leaf in tree.items() if not path.startswith(_PREDICTIONS)}
    stored = origin.get("dtype") or origin.get("torch_dtype")
    dtype = dtype or (stored if stored in DTYPES else DTYPES[0])
    notes = ["predictions of further tokens are not part of the format, and left out"] if model.predictions else []
    known = _carried(family, model, origin, fields) if origin.get("model_type") == family.model_type else {}
    length = {}
    if isinstance(cfg.input, TextInput.Config) and "n_positions" not in fields:  # Which is another name for it.
        length = {"max_position_embeddings": cfg.input.seq_len}
    config = {**length, **known, **_token_ids(cfg, files, origin), **fields, "dtype": dtype, "torch_dtype": dtype}
    config.pop("transformers_version", None)
    others, more = _tokenizer_files(cfg, files)
    out = {**others, _CONFIG: _text(config)}
    if _GENERATION not in out:
        ids = {name: value for name, value in config.items() if name in _IDS and value is not None}
        out[_GENERATION] = _text({"_from_model_config": True, **ids})
    count = sum(int(np.prod(shape)) for shape in shapes.values())
    about = f"{family.architecture}, {count:,} parameters in {dtype}"
    return Plan(weight_map(family.weights, model.stack, shapes), out, dtype, about, [*notes, *more])


_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def export(plan: Plan, params: Any, directory: str, *, max_shard_bytes: int) -> list[str]:
    """Writes a directory; all of it is there in the end, or nothing. Returns lines that say what it is."""
    check_target(directory)
    target, leaves, dtype = Path(directory).absolute(), by_path(params), jnp.dtype(plan.dtype)

    def made(name: str) -> np.ndarray:
        with np.errstate(over="ignore"):
            tensor = plan.weights.write(name, dtype, _values(leaves))
        if dtype == np.float16 and np.isinf(tensor).any():
            raise ConfigError(f"{name} has values that float16 does not reach. Use --dtype bfloat16, or float32.")
        return tensor

    tensors = [
        OutTensor(name, tensor.shape, dtype, lambda name=name: made(name))
        for name, tensor in plan.weights.tensors.items()
    ]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _new_directory(target) as temporary:
            for name, content in plan.files.items():
                with open(temporary / name, "xb") as out:
                    out.write(content)
                    out.flush()
                    os.fsync(out.fileno())
            with phase("writing the weights"):
                write_tensors(temporary, tensors, max_shard_bytes=max_shard_bytes)
    except OSError as e:
        raise ConfigError(f"--to: {directory!r} cannot be written: {e.strerror or e}. Nothing is left of it.") from e
    size = sum(file.stat().st_size for file in target.iterdir())
    shown = f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
    return [f"{directory}: {plan.about}, {shown}", *(f"  {note}" for note in plan.notes)]


@contextlib.contextmanager
def _new_directory(target: Path) -> Iterator[Path]:
    """Yields a directory beside the target, which in the end becomes the target; if that fails, it is removed."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".partial", dir=target.parent))
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)

    def interrupted(number: int, frame: Any) -> None:  # Ctrl-C may end the process at once, without an exception.
        shutil.rmtree(temporary, ignore_errors=True)
        signal.signal(number, before)
        signal.raise_signal(number)

    try:
        if in_main and before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, interrupted)
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        if target.exists():
            target.rmdir()
        temporary.rename(target)
    finally:
        if in_main:
            signal.signal(signal.SIGINT, before)
        shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _values(leaves: Mapping[str, Any]) -> Any:
    """Returns the function that gives the part of a parameter at an index, in the host's memory."""

    def value(path: str, index: tuple[Any, ...]) -> np.ndarray:
        leaf = leaves[path]
        if len(leaf.devices()) == 1:
            return np.asarray(leaf)[index]  # On a CPU this is no copy.
        return np.asarray(leaf[index] if index else leaf)

    return value


def _carried(
    family: Published, model: CausalLM.Config, origin: Mapping[str, Any], fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what a model's own config.json said that has no effect, or none on it: sizes of layers it has not."""
    more = {name: value for name, value in origin.items() if name not in fields}
    try:
        if family.read("config.json", {**more, **fields}).model == family.read("config.json", fields).model:
            return more
    except ConfigError:
        pass
    return {name: value for name, value in more.items() if name in IGNORED or name in family.ignored}


def _published_config(cfg: Trainer.Config) -> bytes | None:
    """Returns the config.json of the published model that a run starts from, if it is there."""
    sources = cfg.init_from if isinstance(cfg.init_from, tuple) else (cfg.init_from,)
    for source in sources:
        if source is not None and source.path.startswith(PREFIX):
            return read_beside(Path(source.path.removeprefix(PREFIX)), _CONFIG)
    return None


def _own_files(cfg: Trainer.Config) -> Mapping[str, bytes]:
    """Returns the files of the tokenizer that the config of a run names."""
    tokenizer = _tokenizer_of(cfg)
    return {} if tokenizer is None else tokenizer.build(path="input.tokenizer").files()


def _tokenizer_of(cfg: Trainer.Config) -> Tokenizer.Config | None:
    """Returns the tokenizer that the config of a run names, if it does so in full."""
    found = cfg.input.tokenizer if isinstance(cfg.input, TextInput.Config) else None
    return None if found is None or missing_fields(found) else found


def _token_ids(cfg: Trainer.Config, files: Mapping[str, bytes], origin: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ids of special tokens, as the origin had them or as the tokenizer has them."""
    if any(name in origin for name in _IDS) or not isinstance(cfg.input, TextInput.Config):
        return {}
    named = _tokenizer_of(cfg)
    if named is None:
        return dict.fromkeys(_IDS)
    tokenizer = named.build(path="input.tokenizer", files=files or None)
    return {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id}


def _tokenizer_files(cfg: Trainer.Config, files: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """Returns the files of a tokenizer, as transformers reads them, and what there is to say."""
    found = {name: files[name] for name in (_LIBRARY, *BESIDE) if name in files and name != _CONFIG}
    tokenizer = cfg.input.tokenizer if isinstance(cfg.input, TextInput.Config) else None
    if isinstance(tokenizer, ByteTokenizer.Config):
        return {**found, **_bytes_files()}, []
    if _LIBRARY not in found:
        return found, ["without a tokenizer.json: the tokenizer of the run is of another kind"]
    if _TOKENIZER not in found:
        special = {name: getattr(tokenizer, name, None) for name in _TOKENS}
        if not isinstance(tokenizer, HuggingFaceTokenizer.Config):
            special = {"eos_token": "<eos>"}
        found[_TOKENIZER] = _tokenizer_config(special)
    return found, []


_TOKENS = ("bos_token", "eos_token", "pad_token")


def _tokenizer_config(special: Mapping[str, str | None]) -> bytes:
    named = {name: token for name, token in special.items() if token is not None}
    return _text({"tokenizer_class": "PreTrainedTokenizerFast", **named})


def _bytes_files() -> dict[str, bytes]:
    """Returns `ByteTokenizer` as files of Hugging Face: a token for each byte, then the special ones.

    The library writes a byte as a character that can be seen: itself, or one from 256 on, in the order of bytes.
    """
    seen = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = iter(range(256, 512))
    vocabulary = {chr(byte if byte in seen else next(hidden)): byte for byte in range(256)}
    special = {name: f"<{name.removesuffix('_token')}>" for name in _TOKENS}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens(list(special.values()))  # In the order of the ids: bos, eos, pad.
    return {_LIBRARY: library.to_str(pretty=True).encode(), _TOKENIZER: _tokenizer_config(special)}


def _json(content: bytes | None) -> dict[str, Any]:
    """Returns what a config.json says that a run carries; nothing if it is none."""
    try:
        found = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()
