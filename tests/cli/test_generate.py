# SPDX-License-Identifier: Apache-2.0
"""`generate`: what it refuses."""

from dovetail.cli import main


def test_generate_refuses_more_tokens_than_there_are_positions(capsys, tmp_path):
    assert main(["train", "gpt2-tiny", "steps=1", "input.batch_size=2", f"directory={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    assert main(["generate", str(tmp_path / "run"), "whale" * 20, "tokens=40"]) == 2
    assert capsys.readouterr() == (
        "",
        "dovetail generate: model (CausalLM): a prompt of 100 tokens and 40 new ones, but max_length is 128.\n"
        "  Use a shorter prompt, or fewer new tokens.\n",
    )
