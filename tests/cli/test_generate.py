# SPDX-License-Identifier: Apache-2.0
"""`generate`: prompts, chats and the logits of tokens; and what it refuses."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.cli import main, resolve
from dovetail.module import call, specs
from dovetail.optim import by_path
from dovetail.serve import tokenizer_of
from support.directories import CHAT, change_json, logits, write_small
from support.published import random_weights


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A published model with a chat template."""
    directory = tmp_path_factory.mktemp("source") / "small"
    write_small(directory)
    (directory / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    return directory


def test_generate_refuses_more_tokens_than_there_are_positions(capsys, tmp_path):
    run, tokens, out = str(tmp_path / "run"), tmp_path / "tokens.txt", tmp_path / "out.npy"
    assert main(["train", "gpt2-tiny", "steps=1", "input.batch_size=2", f"directory={run}"]) == 0
    capsys.readouterr()
    assert main(["generate", run, "whale" * 20, "tokens=40"]) == 2
    assert capsys.readouterr() == (
        "",
        "dovetail generate: model (CausalLM): a prompt of 100 tokens and 40 new ones, but max_length is 128.\n"
        "  Use a shorter prompt, or fewer new tokens.\n",
    )
    tokens.write_text(" ".join(["7"] * 129), encoding="utf-8")
    assert main(["generate", run, "--tokens", str(tokens), "--logits", str(out)]) == 2
    assert "129" in capsys.readouterr().err
    assert not out.exists()


# Logits of tokens.


def test_logits_are_those_of_the_module_called_directly(source, tmp_path):
    cfg: Any = resolve(f"hf:{source}").cfg
    model, weights = cfg.model.build(), random_weights(cfg.model)
    tree = specs(model)
    params = jax.tree.unflatten(jax.tree.structure(tree), [jnp.asarray(weights[path]) for path in by_path(tree)])
    rows = np.random.default_rng(0).integers(0, 260, (3, 11))
    found = logits(f"hf:{source}", rows, tmp_path)
    assert (found.dtype, found.shape) == (np.float32, (3, 11, 260))
    expected = jax.jit(lambda params, ids: call(model, params, ids)[0])(params, rows.astype(np.int32))
    np.testing.assert_array_equal(found, expected)
    sharded = logits(f"hf:{source}", rows, tmp_path, "--mesh", "data=2,fsdp=2,tensor=2")  # Which 3 rows do not fill.
    np.testing.assert_allclose(sharded, found, rtol=1e-6, atol=1e-5)


def test_blank_lines_are_no_rows_and_what_is_there_is_replaced_under_the_very_name(source, tmp_path, capsys):
    tokens, out = tmp_path / "tokens", tmp_path / "logits.without.ending"
    tokens.write_bytes(b"\n 1\t2  3 \r\n\n4 5 6")
    out.write_text("what was there", encoding="utf-8")
    assert main(["generate", f"hf:{source}", "--tokens", str(tokens), "--logits", str(out)]) == 0
    assert capsys.readouterr() == ("", f"{out}: float32 [2, 3, 260]\n")
    np.testing.assert_array_equal(np.load(out), logits(f"hf:{source}", [[1, 2, 3], [4, 5, 6]], tmp_path))
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        [tokens.name, out.name, "tokens.txt", "logits.npy"]
    )


_NUMBERS = "Expected numbers, a row a line."


@pytest.mark.parametrize(
    "content, said",
    [
        (b"1 2 3\n4 5", "has rows of 2 to 3 tokens, expected rows of one length."),
        (b"", "has no row, expected rows of one length."),
        (b" \n\n", "has no row, expected rows of one length."),
        (b"1 260", "has the token 260, outside the vocabulary of 260."),
        (b"1 -1", "has the token -1, outside the vocabulary of 260."),
        (b"1 99999999999999999999", "has the token 99999999999999999999, outside the vocabulary of 260."),
        (b"1 two", f"cannot be read: invalid literal for int() with base 10: 'two'. {_NUMBERS}"),
        (b"1.0 2", f"cannot be read: invalid literal for int() with base 10: '1.0'. {_NUMBERS}"),
        (b"1,2", f"cannot be read: invalid literal for int() with base 10: '1,2'. {_NUMBERS}"),
        (b"\xff\xfe", "cannot be read: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte. "),
        (b"9" * 5000, "cannot be read: Exceeds the limit (4300 digits) for integer string conversion"),
    ],
)
def test_tokens_that_are_none_are_one_message_and_what_was_there_stays(content, said, source, tmp_path, capsys):
    tokens, out = tmp_path / "tokens.txt", tmp_path / "out.npy"
    tokens.write_bytes(content)
    out.write_text("what was there", encoding="utf-8")
    assert main(["generate", f"hf:{source}", "--tokens", str(tokens), "--logits", str(out)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"dovetail generate: --tokens: {str(tokens)!r} {said}")
    assert printed.err.count("\n") == 1
    assert out.read_text(encoding="utf-8") == "what was there"


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--tokens", "t"], "--tokens and --logits go together: what to read, and where to write what it gives."),
        (["--logits", "o"], "--tokens and --logits go together: what to read, and where to write what it gives."),
        (["--tokens", "gone", "--logits", "o"], "--tokens: there is no 'gone'."),
        (["--tokens", "t", "--logits", "gone/o"], "--logits: there is no directory '{}/gone'."),
        (["--tokens", "t", "--logits", "d"], "--logits: 'd' is a directory, expected the name of a file."),
        (["--tokens", "t", "--logits", "./t"], "--logits: './t' is the file of --tokens. Name another one."),
        (["--tokens", "d", "--logits", "o"], "--tokens: 'd' cannot be read: Is a directory. " + _NUMBERS),
        (["--tokens", "t", "--logits", "t/o"], "--logits: there is no directory '{}/t'."),
        (["--tokens", "t", "--logits", "o", "--chat"], "--chat is for a prompt, not for --tokens."),
        (
            ["--tokens", "t", "--logits", "o", "tokens=3"],
            "tokens=3 is for a prompt, not for --tokens, of which nothing is drawn.",
        ),
        (
            ["--tokens", "t", "--logits", "o", "It was"],
            "'It was' is not an override. Write path=value, as in model.dim=8.",
        ),
        ([], "there is no prompt. Give one, as in: dovetail generate RUN 'Call me'"),
        (["It was", "--step", "3"], "hf:{source} is a published model, which has no steps. Leave out --step."),
    ],
)
def test_options_that_do_not_go_together_are_one_message(argv, said, source, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t").write_text("1 2 3", encoding="utf-8")
    Path("d").mkdir()
    assert main(["generate", f"hf:{source}", *argv]) == 2
    expected = said.replace("{source}", str(source)).replace("{}", str(tmp_path))
    assert capsys.readouterr() == ("", f"dovetail generate: {expected}\n")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["d", "t"]
    assert Path("t").read_text(encoding="utf-8") == "1 2 3"


# Prompts and chats.


def test_the_prompt_may_stand_after_overrides(source, capsys):
    found = []
    for argv in (["It was", "tokens=3"], ["tokens=3", "It was"]):
        assert main(["generate", f"hf:{source}", *argv]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]
    assert found[0].startswith("It was")


def test_a_chat_is_rendered_by_the_template_of_the_model_and_the_answer_alone_is_printed(source, tmp_path, capsys):
    tokenizer = tokenizer_of(resolve(f"hf:{source}").cfg, None)
    ids = [256, *b"user: Who are you?", 257, 256]
    assert tokenizer.encode_with_special("<bos>user: Who are you?<eos><bos>").tolist() == ids
    answer = int(logits(f"hf:{source}", [ids], tmp_path)[0, -1].argmax())
    assert main(["import", str(source), "--to", str(tmp_path / "run")]) == 0
    for name in (f"hf:{source}", str(tmp_path / "run")):
        capsys.readouterr()
        assert main(["generate", name, "Who are you?", "--chat", "--json", "tokens=1"]) == 0
        assert json.loads(capsys.readouterr().out)["text"] == tokenizer.decode([answer])


def test_a_chat_without_a_template_is_refused(source, tmp_path, capsys):
    shutil.copytree(source, tmp_path / "copy")
    (tmp_path / "copy" / "chat_template.jinja").unlink()
    assert main(["generate", f"hf:{tmp_path}/copy", "Hello", "--chat"]) == 2
    assert capsys.readouterr().err.startswith("dovetail generate: the tokenizer has no chat template: ")


def test_a_template_that_reaches_for_more_is_one_message_before_weights_are_read(source, tmp_path, capsys):
    copy, marker = tmp_path / "copy", tmp_path / "harm"
    shutil.copytree(source, copy)
    (copy / "model.safetensors").unlink()
    harm = f"cycler.__init__.__globals__.os.mkdir({str(marker)!r})"
    (copy / "chat_template.jinja").write_text("{{ " + harm + " }}", encoding="utf-8")
    assert main(["generate", f"hf:{copy}", "Hello", "--chat"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(
        "dovetail generate: chat_template.jinja, line 1: the chat template cannot be rendered: SecurityError: "
    )
    assert not marker.exists()


def test_what_a_generation_config_asks_for_and_is_not_done_is_said(source, tmp_path, capsys):
    shutil.copytree(source, tmp_path / "copy")
    change_json(tmp_path / "copy" / "generation_config.json", repetition_penalty=1.1, num_beams=1, typical_p=0.5)
    assert main(["generate", f"hf:{tmp_path}/copy", "It was", "tokens=1"]) == 0
    assert capsys.readouterr().err.startswith(
        "Not done, though generation_config.json asks for it: repetition_penalty=1.1, typical_p=0.5.\n"
    )
