# SPDX-License-Identifier: Apache-2.0
"""Exports: a directory is whole or not there, has what came with the model byte for byte, and a tokenizer."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import tokenizers
from safetensors.numpy import load_file

from dovetail.config import REQUIRED, ConfigError
from dovetail.data import ByteTokenizer, HuggingFaceTokenizer
from dovetail.models import MultiTokenPrediction
from dovetail.module import init, init_run_state, merged
from dovetail.train import load_initial
from dovetail.zoo import recipe
from dovetail.zoo.hf import Plan, export, open_directory, plan_export
from dovetail.zoo.recipes import finetune
from support.objectives import Matching
from support.published import golden_configs, random_weights, write_weights

CFG = recipe("llama3-tiny").set_in("model.stack.num_layers", 2)
GB = 10**9


@pytest.fixture(scope="module")
def params() -> Any:
    model = CFG.model.build()
    return merged(init(model, jax.random.key(0)), init_run_state(model))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_export(CFG, None, "float32")


def entries(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_an_export_is_read_as_the_model_it_was_and_says_what_it_is(plan, params, tmp_path):
    lines = export(plan, params, str(tmp_path / "out"), max_shard_bytes=GB)
    size = sum(map(len, entries(tmp_path / "out").values()))
    assert lines == [f"{tmp_path / 'out'}: {plan.about}, {size / 1e6:,.1f} MB"]
    found = open_directory(f"hf:{tmp_path / 'out'}")
    assert found.family.architecture == "LlamaForCausalLM"
    assert plan_export(CFG.set(model=found.model), None, "float32").files == plan.files
    read = load_initial(finetune(f"hf:{tmp_path / 'out'}")).params
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), read, params))


def test_the_rights_of_a_directory_are_those_of_any_new_one(plan, params, tmp_path):
    export(plan, params, str(tmp_path / "out"), max_shard_bytes=GB)
    (tmp_path / "other").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_weights_in_several_files_are_the_same(plan, params, tmp_path):
    export(plan, params, str(tmp_path / "one"), max_shard_bytes=GB)
    export(plan, params, str(tmp_path / "many"), max_shard_bytes=1)
    files = sorted((tmp_path / "many").glob("*.safetensors"))
    assert len(files) == len(plan.weights.tensors)
    many = {name: tensor for file in files for name, tensor in load_file(file).items()}
    one = load_file(tmp_path / "one" / "model.safetensors")
    assert one.keys() == many.keys()
    assert all(np.array_equal(one[name], many[name]) for name in one)


def published(directory: Path, kind: str = "llama", dtype: str = "bfloat16") -> str:
    """Writes a model with all files that travel, as others would."""
    fields = {**golden_configs()[f"{kind}/0"], "vocab_size": 300, "dtype": dtype, "eos_token_id": 257}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    library.add_special_tokens(["<end>"])
    texts = {
        "tokenizer.json": library.to_str(),
        "tokenizer_config.json": '{ "eos_token" :"<end>", "odd":[1,\n2]}',
        "special_tokens_map.json": '{"eos_token":"<end>"}',
        "added_tokens.json": "{}\n\n",
        "generation_config.json": '{"temperature": 0.50, "eos_token_id": [2, 3]}',
        "chat_template.jinja": "{{ messages }}\r\n",
        "tokenizer.model": "\x00\x01 no text",
        "vocab.json": "{}",
        "merges.txt": "a b\n",
        "README.md": "what does not travel",
    }
    for name, text in texts.items():
        (directory / name).write_bytes(text.encode())
    found = open_directory(f"hf:{directory}")
    write_weights(directory, found.model, random_weights(found.model), found.family.weights, dtype)
    return f"hf:{directory}"


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "granitemoehybrid"])
def test_what_is_imported_and_exported_has_the_same_bytes(kind, tmp_path):
    name = published(tmp_path / "in", kind)
    cfg, found = finetune(name), open_directory(name)
    plan = plan_export(cfg, found.files, None)
    export(plan, load_initial(cfg).params, str(tmp_path / "out"), max_shard_bytes=GB)
    before, after = entries(tmp_path / "in"), entries(tmp_path / "out")
    assert before.keys() - after.keys() == {"README.md"}
    assert not after.keys() - before.keys()
    weights = [safetensors.deserialize(files.pop("model.safetensors")) for files in (before, after)]
    assert dict(weights[0]) == dict(weights[1])  # In any order.
    assert {name for name in after if after[name] != before[name]} == {"config.json"}
    old, new = json.loads(before["config.json"]), json.loads(after["config.json"])
    assert new["dtype"] == new["torch_dtype"] == "bfloat16"
    assert {name: new[name] for name in old if name in found.ignored and name != "transformers_version"} == {
        name: value for name, value in old.items() if name in found.ignored and name != "transformers_version"
    }
    assert found.family.read("x", new).model == found.model


def test_a_run_that_names_its_files_exports_them_without_their_content_at_hand(tmp_path):
    name = published(tmp_path / "in")
    cfg = finetune(name)
    assert plan_export(cfg, None, None) == plan_export(cfg, open_directory(name).files, None)


class Failing:
    """Raises at the so-manieth call of a function, and counts."""

    def __init__(self, function: Any, at: int, error: BaseException) -> None:
        self.function, self.at, self.error, self.calls = function, at, error, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("seed", range(8))
def test_a_disk_that_is_full_at_any_time_leaves_nothing(seed, plan, params, tmp_path, monkeypatch):
    counted = Failing(os.fsync, -1, OSError())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counted)
        export(plan, params, str(tmp_path / "whole"), max_shard_bytes=10_000)
    at = random.Random(seed).randint(1, counted.calls)
    error = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", Failing(os.fsync, at, error))
    with pytest.raises(ConfigError) as e:
        export(plan, params, str(tmp_path / "out"), max_shard_bytes=10_000)
    where = str(tmp_path / "out")
    assert str(e.value) == f"--to: {where!r} cannot be written: No space left on device. Nothing is left of it."
    assert [file.name for file in tmp_path.iterdir()] == ["whole"], f"failed at {at} of {counted.calls}"


@pytest.mark.parametrize("name", ["mkdtemp", "chmod", "rename"])
def test_a_directory_that_cannot_be_made_leaves_nothing(name, plan, params, tmp_path, monkeypatch):
    places = {"mkdtemp": "tempfile.mkdtemp", "chmod": "os.chmod", "rename": "pathlib.Path.rename"}
    monkeypatch.setattr(places[name], Failing(None, 1, OSError(errno.EACCES, "Permission denied")))
    with pytest.raises(ConfigError, match=r"cannot be written: Permission denied\. Nothing is left of it\.$"):
        export(plan, params, str(tmp_path / "out"), max_shard_bytes=GB)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("at", [1, 5])
@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()])
def test_whatever_a_tensor_raises_comes_through_and_leaves_nothing(error, at, plan, params, tmp_path, monkeypatch):
    failing = Failing(type(plan.weights).write, at, error)
    monkeypatch.setattr(type(plan.weights), "write", lambda *args: failing(*args))
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(type(error)):
        export(plan, params, str(tmp_path / "new" / "out"), max_shard_bytes=GB)
    assert list((tmp_path / "new").iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_export_in_another_thread_leaves_signals_alone(plan, params, tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=export, args=(plan, params, str(tmp_path / "out")), kwargs={"max_shard_bytes": GB})
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is handler
    assert set(entries(tmp_path / "out")) == {*plan.files, "model.safetensors"}


PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, getattr(signal, sys.argv[3]))
import jax
from dovetail.models import MultiTokenPrediction
from dovetail.module import init, init_run_state, merged
from dovetail.zoo import recipe
from dovetail.zoo.hf import export, plan_export
cfg = recipe("llama3-tiny")
model = cfg.model.build()
params = jax.tree.map(lambda x: jax.numpy.zeros(x.shape), jax.eval_shape(
    lambda: merged(init(model, jax.random.key(0)), init_run_state(model))))
plan = plan_export(cfg, None, "float32")
write, calls = type(plan.weights).write, []
def killed(*args):
    calls.append(1)
    if len(calls) == 4:
        print(os.listdir(os.path.dirname(sys.argv[1])), flush=True)
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    return write(*args)
type(plan.weights).write = killed
export(plan, params, sys.argv[1], max_shard_bytes=10**9)
print("done")
"""


@pytest.mark.parametrize(
    "number, handler, code, left",
    [
        ("SIGINT", "SIG_DFL", -signal.SIGINT, []),  # As commands have it.
        ("SIGINT", "default_int_handler", -signal.SIGINT, []),
        ("SIGINT", "SIG_IGN", 0, ["out"]),
        ("SIGKILL", "SIG_DFL", -signal.SIGKILL, [".partial"]),
    ],
)
def test_a_process_that_is_ended_leaves_nothing_under_the_name_of_the_target(number, handler, code, left, tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "out"), number, handler]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if handler == "default_int_handler":
        assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert done.returncode == code, done.stderr
    assert ".partial" in done.stdout.splitlines()[0]
    assert [Path(file).suffix if file.startswith(".") else file for file in os.listdir(tmp_path)] == left


def test_a_directory_with_something_in_it_is_left_alone(plan, params, tmp_path):
    (tmp_path / "empty").mkdir()
    export(plan, params, str(tmp_path / "empty"), max_shard_bytes=GB)
    before = entries(tmp_path / "empty")
    with pytest.raises(ConfigError, match=r"^--to: there is something in .* already\. Name a directory that is new\.$"):
        export(plan, params, str(tmp_path / "empty"), max_shard_bytes=GB)
    assert entries(tmp_path / "empty") == before


def test_values_that_float16_does_not_reach_are_refused_by_the_name_of_their_tensor(params, tmp_path):
    plan = plan_export(CFG, None, "float16")
    export(plan, params, str(tmp_path / "fits"), max_shard_bytes=GB)
    largest = jax.tree.map(jnp.zeros_like, params)
    largest["norm"]["scale"] = largest["norm"]["scale"].at[0].set(65504.0)
    export(plan, largest, str(tmp_path / "most"), max_shard_bytes=GB)
    largest["norm"]["scale"] = largest["norm"]["scale"].at[0].set(-7e4)
    with pytest.raises(ConfigError) as e:
        export(plan, largest, str(tmp_path / "out"), max_shard_bytes=GB)
    assert str(e.value) == (
        "model.norm.weight has values that float16 does not reach. Use --dtype bfloat16, or float32."
    )
    assert sorted(os.listdir(tmp_path)) == ["fits", "most"]


@pytest.mark.parametrize("name", ["llama3-tiny", "mamba2-tiny", "deepseek-v3-tiny"])
def test_a_recipe_from_scratch_has_a_tokenizer_that_writes_its_bytes(name):
    cfg = recipe(name)
    files = plan_export(cfg, None, None).files
    library = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    ours = ByteTokenizer.Config().build()
    for text in (
        "",
        "Hello,  world!\n\t",
        "Wörter, 言葉, 🐳\x00\x7f\u00ad",
        "".join(map(chr, range(0x500))),
        "<eos>"[:4],
    ):
        ids = library.encode(text, add_special_tokens=False).ids
        assert ids == ours.encode(text).tolist()
        assert library.decode(ids, skip_special_tokens=False) == text
    special = json.loads(files["tokenizer_config.json"])
    assert special == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
    }
    ids = {f"{each}_token_id": library.token_to_id(special[f"{each}_token"]) for each in ("bos", "eos", "pad")}
    assert ids == {"bos_token_id": ours.bos_id, "eos_token_id": ours.eos_id, "pad_token_id": ours.pad_id}
    config = json.loads(files["config.json"])
    assert ids.items() <= config.items()
    assert json.loads(files["generation_config.json"]) == {"_from_model_config": True, **ids}
    assert config["max_position_embeddings"] == cfg.get_in("input.seq_len")


def test_predictions_of_further_tokens_are_left_out_with_a_note():
    cfg = recipe("deepseek-v3-tiny").set_in("model.predictions", ())
    plan = plan_export(cfg, None, None)
    assert not plan.notes
    block = cfg.get_in("model.stack.layers[1].layer")
    with_more = cfg.set_in("model.predictions", (MultiTokenPrediction.Config(block=block),))
    more = plan_export(with_more, None, None)
    assert list(more.notes) == ["predictions of further tokens are not part of the format, and left out"]
    assert more.weights.tensors.keys() == plan.weights.tensors.keys()


def test_a_run_without_a_tokenizer_of_this_kind_is_exported_with_a_note():
    cfg = CFG.set_in("input.tokenizer", HuggingFaceTokenizer.Config(file=REQUIRED))
    plan = plan_export(cfg, {}, None)
    assert list(plan.notes) == ["without a tokenizer.json: the tokenizer of the run is of another kind"]
    assert set(plan.files) == {"config.json", "generation_config.json"}


def test_the_dtype_is_the_one_asked_for_or_that_of_the_origin_or_float32(tmp_path):
    assert [plan_export(CFG, None, dtype).dtype for dtype in (None, "bfloat16")] == ["float32", "bfloat16"]
    for dtype, expected in (("float16", "float16"), ("float8", "float32"), (None, "float32"), (["odd"], "float32")):
        files = {"config.json": json.dumps({"model_type": "llama", "torch_dtype": dtype}).encode()}
        assert plan_export(CFG, files, None).dtype == expected


def test_a_model_of_no_family_says_what_differs():
    with pytest.raises(ConfigError) as e:
        plan_export(CFG.set_in("model.logit_cap", 7.0), {"config.json": b'{"model_type": "llama"}'}, None)
    assert str(e.value) == (
        "this model is of no family that can be published. The nearest is llama, which differs:\n"
        "  logit_cap: 7.0, there None"
    )


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"model_type": ["llama"], "dtype": {}}']
)
def test_an_origin_that_cannot_be_read_says_nothing(content):
    assert plan_export(CFG, {"config.json": content}, None).about == plan_export(CFG, {}, None).about


def test_only_a_language_model_can_be_published():
    with pytest.raises(ConfigError, match=r"^model: Matching\.Config cannot be published, only a CausalLM\.$"):
        plan_export(CFG.set(model=Matching.Config()), {}, None)
