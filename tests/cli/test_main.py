# SPDX-License-Identifier: Apache-2.0
"""The command line: exit codes, and the one message of what a user can fix."""

import io
import signal
import subprocess
import sys

import pytest

from dovetail.cli import main
from dovetail.progress import _line


@pytest.mark.parametrize(
    "argv, text",
    [
        (["show", "tiny-ml"], "dovetail show: no recipe is called 'tiny-ml'. Did you mean 'tiny-lm'?\n"),
        (
            ["train", "llama2-7b"],
            "dovetail train: Trainer.Config: 1 required field is not set:\n"
            "  input.dataset.path: str | list[str]\n"
            "    Prepare text once, for runs of any size: dovetail data prepare SOURCE... --tokenizer TOKENIZER --to "
            "PLACE\n"
            "    and give the place: --data PLACE. Or give text, for a small run, and what tokenises it:\n"
            "    --text FILE... input.tokenizer.file=tokenizer.json 'input.tokenizer.eos_token=...'\n"
            "  Add them, as in input.dataset.path=...\n",
        ),
        (
            ["train", "tiny-lm", "steps"],
            "dovetail train: 'steps' is not an override. Write path=value, as in model.dim=8.\n",
        ),
        (["eval", "nowhere"], "dovetail eval: there is no run in 'nowhere': it has no directory 'checkpoints'.\n"),
        (["show", "nowhere.py:f"], "dovetail show: there is no file 'nowhere.py'.\n"),
        (["train", "tiny-lm", "steps=many"], "dovetail train: steps: expected int, found 'many'.\n"),
        (
            ["train", "tiny-lm", "model.stack.num_layer=2"],
            "dovetail train: model.stack.num_layer: model.stack is Repeat.Config, it has no field 'num_layer'. "
            "Did you mean 'model.stack.num_layers'?\n",
        ),
        (
            ["train", "tiny-lm", "learner.schedule=cosine"],
            "dovetail train: learner.schedule: expected Schedule.Config, found 'cosine'. "
            "Did you mean 'CosineSchedule'?\n"
            "  It takes one of: ConstantSchedule, CosineSchedule, InverseSqrtSchedule, LinearSchedule, WSDSchedule."
            " Fields are set as in learner.schedule.peak=...\n",
        ),
    ],
)
def test_what_the_user_can_fix_is_one_message_and_exit_code_2(argv, text, capsys):
    assert main(argv) == 2
    assert capsys.readouterr().err == text


def test_what_can_be_told_without_jax_is_told_before_it_is_imported():
    commands = [
        ["train", "tiny-ml"],
        ["show", "tiny-ml"],
        ["diff", "tiny-lm", "tiny-ml"],
        ["compile", "tiny-ml", "--on", "cpu-1"],
        ["compile", "tiny-lm", "--on", "tpu-v9-8"],
        ["train", "tiny-lm@gpu-h1000-8"],
        ["diff", "tiny-lm", "tiny-lm@tpu-v5p-7"],
        ["eval", ".", "--on", "tpu-v9-8"],
        ["train", "tiny-lm", "steps"],
        ["train", "nowhere.py:f"],
        ["eval", "nowhere"],
        ["generate", "nowhere", "The whale"],
        ["serve", "nowhere"],
    ]
    program = f"""
import sys
sys.modules["jax"] = None  # Whoever imports it fails.
from dovetail.cli import main
for argv in {commands}:
    assert main(argv) == 2, argv
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if not line.startswith(" ")]
    assert [line.split()[1] for line in said] == [f"{argv[0]}:" for argv in commands]


@pytest.mark.parametrize("process, speaks", [("0", True), ("1", False)])
def test_of_several_processes_the_first_one_says_what_is_done(process, speaks, monkeypatch, capfd):
    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    monkeypatch.setenv("JAX_PROCESS_ID", process)
    monkeypatch.setattr(_line, "open", lambda fd, *args, **kwargs: Terminal(io.FileIO(fd, "w")), raising=False)
    monkeypatch.setattr(sys, "argv", ["dovetail", "show", "llama3-tiny"])
    assert main() == 0
    printed = capfd.readouterr()
    assert ("importing ..." in printed.err) == speaks
    assert "importing" not in printed.out


def test_ctrl_c_ends_a_command_at_once_wherever_it_is_and_without_a_trace(tmp_path):
    code = "import gc, signal\ngc.callbacks.append(lambda *_: signal.raise_signal(signal.SIGINT))\ngc.collect()\n"
    (tmp_path / "mine.py").write_text(code)  # Where Python ignores exceptions.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # It may be ignored around us.
    program = f"{heard}; from dovetail.cli import main; main()"
    command = [sys.executable, "-c", program, "show", "llama3-tiny", "--code", str(tmp_path / "mine.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_command_runs_without_standard_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dovetail", "show", "llama3-tiny", "--full"])
    monkeypatch.setattr(sys, "stderr", None)  # As Python has it after `2>&-`.
    assert main() == 0
    assert capsys.readouterr().out.startswith("(root) = dovetail.train.Trainer.Config\n")


def test_a_config_is_read_without_what_only_saving_and_reading_need():
    program = """
import sys
from dovetail.cli import main
assert main(["train", "tiny-lm", "steps=many"]) == 2
slow = {"orbax", "grain", "tensorboardX", "sentencepiece", "pyarrow"} & set(sys.modules)
assert not slow, slow
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_a_mesh_that_does_not_exist_is_told_before_models_are_imported():
    program = """
import sys
from dovetail.cli import main
assert main(["train", "tiny-lm", "--mesh", "tensr=2"]) == 2
assert "dovetail.models" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_a_reader_that_stops_reading_is_no_error():
    program = f"{sys.executable} -c 'from dovetail.cli import main; import sys; sys.exit(main())' list | true"
    done = subprocess.run(program, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""
