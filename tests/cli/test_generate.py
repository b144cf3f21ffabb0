# SPDX-License-Identifier: Apache-2.0
"""`generate`: what it refuses."""

from dovetail.cli import main


def test_generate_refuses_more_tokens_than_there_are_positions(capsys, tmp_path):
    assert main(["train", "gpt2-tiny", "steps=1", "input.batch_size=2", f"directory={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    assert main(["generate", str(tmp_path / "run"), "whale" * 20, "tokens=40"]) == 2
    assert capsys.readouterr() == (
        "",
        "dovetail generate: model.position (LearnedPosition): a sequence of 139 tokens, but max_length is 128.\n"
        "  Use a seq_len of at most that, a shorter prompt, fewer new tokens, or a larger max_length.\n",
    )
