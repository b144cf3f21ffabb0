# SPDX-License-Identifier: Apache-2.0
"""What a name stands for: a run brings its own config and tokenizer."""

import zlib
from pathlib import Path

import jax.numpy as jnp
import pytest

from dovetail.checkpoint import Checkpointer
from dovetail.checkpoint._files import seal, unseal
from dovetail.cli import resolve
from dovetail.config import ConfigError
from dovetail.data import HuggingFaceTokenizer, ShippedTokenizer
from support.runs import tiny


def test_a_run_goes_on_with_the_tokenizer_that_its_checkpoint_carries(tmp_path):
    shipped = ShippedTokenizer.Config(name="moby-dick").build().files()
    file = tmp_path / "tokenizer.json"
    file.write_bytes(shipped["tokenizer.json"])
    cfg = tiny(tmp_path).set_in("model.vocab_size", 4096)
    for path in ("input.tokenizer", "evaluators.eval.input.tokenizer"):
        cfg = cfg.set_in(path, HuggingFaceTokenizer.Config(file=str(file), eos_token="<eos>"))
    files = cfg.build().input.tokenizer.files()
    checkpoints = Checkpointer.Config(directory=f"{cfg.directory}/checkpoints", asynchronous=False).build()
    checkpoints.save(1, {"w": jnp.ones(3)}, config=cfg, files=files)
    file.unlink()
    found = resolve(cfg.directory, ["steps=9"])
    trainer = found.cfg.build(files=found.files)
    assert trainer.input.files() == trainer.evaluators[0].input.files() == files
    other = resolve(cfg.directory, [f"input.tokenizer.file={tmp_path}/new.json"])
    with pytest.raises(ConfigError, match=r"cannot read '.*new\.json'"):  # One that was asked for is read.
        other.cfg.build(files=other.files)
    assert resolve("tiny-lm").files is None


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"$format": 1, "$config": "dovetail.nn:RMSNorm.Config"}'])
def test_a_config_from_elsewhere_that_is_none_of_a_run_is_one_error_that_names_the_run(text, tmp_path):
    cfg = tiny(tmp_path)
    checkpoints = Checkpointer.Config(directory=f"{cfg.directory}/checkpoints", asynchronous=False).build()
    checkpoints.save(1, {"w": jnp.ones(3)}, config=cfg)
    step = Path(checkpoints.store.where) / "step_1"
    (step / "config.json").write_text(text)
    content = unseal((step / "manifest.json").read_bytes())
    content["files"]["config.json"] = {"size": len(text), "crc32": f"{zlib.crc32(text.encode()):08x}"}
    (step / "manifest.json").write_bytes(seal(content))
    with pytest.raises(ConfigError) as e:
        resolve(cfg.directory)
    assert str(e.value).startswith(f"{cfg.directory}: its config cannot be read: ")
