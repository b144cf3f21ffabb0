# SPDX-License-Identifier: Apache-2.0
"""Files of the user's own: run when the user names them, in nobody's place, and never because a run names them."""

import json
import sys
from pathlib import Path

import jax
import pytest

from dovetail.checkpoint import Checkpointer
from dovetail.cli import _code, main
from dovetail.cli._code import load_code, load_file, own_modules
from dovetail.config import ConfigError
from dovetail.train import Program
from dovetail.train._record import write_record

OWN = """
import json
from pathlib import Path

from beside import RATIO
from dovetail.config import replace_all
from dovetail.nn import DenseFeedForward, FeedForward
from support.runs import tiny

json.dumps({})  # The one of the standard library, whatever this file is called.


class Scaled(FeedForward):
    class Config(FeedForward.Config):
        inner: FeedForward.Config = DenseFeedForward.Config(hidden_dim=16)
        ratio: float = RATIO

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self.inner = self.child("inner", cfg.inner.set(dim=cfg.dim))

    def forward(self, x, context=None):
        return self.inner(x) * self.cfg.ratio


def run():
    cfg = tiny(Path(__file__).parent).set_in("evaluators.sample.tokens", 3)
    return cfg.set_in("model.stack.layer.ffn", Scaled.Config())
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """Forgets what a test has loaded."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(_code, "_files", {})
    monkeypatch.setattr(_code, "_packages", set())
    yield
    for name in sys.modules.keys() - before.keys():
        if name.partition(".")[0] in ("beside", "own", "json_py", "_7b", "counted"):
            del sys.modules[name]


@pytest.fixture
def own(tmp_path) -> Path:
    """A file with a layer and a recipe, called as a module of the standard library is, and one beside it."""
    (tmp_path / "beside.py").write_text("RATIO = 0.5\n")
    (tmp_path / "json.py").write_text(OWN)
    return tmp_path / "json.py"


def test_a_file_takes_the_place_of_no_module_and_imports_what_is_beside_it(own):
    module = load_file(own)
    assert sys.modules["json"] is json
    assert module.__name__ == "json_py"
    assert module.Scaled.Config().ratio == 0.5
    assert {"json_py", "beside"} == own_modules()
    assert load_file(own) is module  # Run once.


def test_a_file_keeps_its_name_if_that_is_free(tmp_path):
    (tmp_path / "own.py").write_text("")
    assert load_file(tmp_path / "own.py").__name__ == "own"
    (tmp_path / "7b.py").write_text("")
    assert load_file(tmp_path / "7b.py").__name__ == "_7b"


@pytest.mark.parametrize(
    "text, message",
    [
        ("x = (", r"own\.py:1: SyntaxError: '\(' was never closed"),
        ("\nimport nothing_of_this_name", r"own\.py:2: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
    ],
)
def test_a_file_that_cannot_be_run_is_one_error_with_its_line(text, message, tmp_path):
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_file(tmp_path / "own.py")
    assert "own" not in sys.modules
    for name, why in (("nowhere", "No module named"), ("", "ValueError: Empty module name"), ("..x", "TypeError")):
        with pytest.raises(ConfigError, match=f"^--code {name}: cannot be imported: {why}"):
            load_code(name)
    with pytest.raises(ConfigError, match=r"there is no file '.*gone\.py'"):
        load_code(str(tmp_path / "gone.py"))


@pytest.fixture
def made(own) -> Path:
    """A run of the user's own layer, as it is before its first step."""
    cfg = load_file(own).run()
    state = Program(cfg).init(jax.random.key(0))
    directory = Path(cfg.directory)
    checkpoints = Checkpointer.Config(directory=str(directory / "checkpoints"), asynchronous=False).build()
    with cfg.input.build().iterator() as batches:
        checkpoints.save(0, state, config=cfg, data_state=batches.get_state())
    write_record(directory, cfg)
    for name in ("json_py", "beside"):
        del sys.modules[name]
    _code._files.clear()
    return directory


def test_a_run_does_not_run_code_unless_the_user_says_so(made, own, capsys):
    for argv in (["generate", str(made), "It was"], ["eval", str(made)], ["train", str(made)], ["show", str(made)]):
        assert main(argv) == 2
        assert capsys.readouterr().err == (
            f"dovetail {argv[0]}: {made}: its config names code that is not dovetail's: json_py ({own}).\n"
            f"  Code from a run is only run if you say so. If you trust it: --code {own}\n"
        )
    assert "json_py" not in sys.modules
    assert main(["show", str(made), "--full", "--code", str(own)]) == 0
    assert "model.stack.layer.ffn = json_py.Scaled.Config" in capsys.readouterr().out


def test_a_run_with_a_layer_of_ones_own_is_generated_from_and_goes_on(made, own, capsys):
    assert main(["generate", str(made), "It was", "--code", str(own)]) == 0
    assert capsys.readouterr().out.startswith("It was")
    own.write_text(own.read_text() + "\n")
    again = ["train", str(made), "steps=1", "evaluators={}", "--code", str(own)]
    assert main(again) == 0
    assert f"{own} is not as it was when the run was trained (sha256 " in capsys.readouterr().err
    assert main([*again, "seed=3"]) == 2
    assert "  seed: 0 -> 3\n" in capsys.readouterr().err
