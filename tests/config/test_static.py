# SPDX-License-Identifier: Apache-2.0
"""What a type checker says of configs: pyright reads good and bad lines, and reports exactly the bad ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"

PARTS = """\
import abc
from collections.abc import Callable
from typing import assert_type
from dovetail.config import REQUIRED, Component, FunctionConfig, config_for, find, modify, override, replace_all

def relu(x: float) -> float: ...
def scale(x: float, by: int = 2) -> list[float]: ...

class Norm(Component):
    class Config(Component.Config):
        dim: int = REQUIRED
        eps: float = 1e-6

class FeedForward(Component, abc.ABC):
    class Config(Component.Config):
        dim: int = REQUIRED
    @abc.abstractmethod
    def forward(self, x: float) -> float: ...

class Dense(FeedForward):
    class Config(FeedForward.Config):
        hidden: int = REQUIRED
        activation: Callable[[float], float] = relu
    def forward(self, x: float) -> float: ...

class Identity(FeedForward):
    def forward(self, x: float) -> float: ...

class Block(Component):
    class Config(Component.Config):
        dim: int = REQUIRED
        sizes: list[int] = [1, 2]
        norm: Norm.Config = Norm.Config()
        ffn: FeedForward.Config = Dense.Config(hidden=8)
        layers: list[FeedForward.Config] = []

cfg = Block.Config(dim=4)
"""

GOOD = """\
Norm.Config()
Norm.Config(dim=4, eps=1)
Dense.Config(dim=4, hidden=8, activation=relu)
Identity.Config(dim=4)
Block.Config(ffn=Identity.Config(), layers=[Dense.Config(), Identity.Config()])
Block.Config(norm=REQUIRED)
assert_type(cfg, Block.Config)
assert_type(cfg.dim, int)
assert_type(cfg.norm, Norm.Config)
assert_type(cfg.norm.eps, float)
assert_type(cfg.set(dim=5), Block.Config)
assert_type(Dense.Config().set(dim=5).hidden, int)
assert_type(cfg.set_in("norm.eps", 0.5), Block.Config)
assert_type(Norm.Config().inherit(cfg), Norm.Config)
assert_type(config_for(scale, 1.0), FunctionConfig[list[float]])
assert_type(config_for(scale, 1.0).build(), list[float])
assert_type(config_for(scale).set(by=3).build(), list[float])
assert_type(config_for(Block).build(), Block)
assert_type(find(cfg, Norm.Config), list[tuple[str, Norm.Config]])
assert_type(replace_all(FeedForward.Config, Identity.Config())(cfg), Block.Config)
assert_type(replace_all({Norm.Config: Norm.Config()})(cfg), Block.Config)
assert_type(modify(Norm.Config, lambda norm: norm.set(eps=0.5))(cfg), Block.Config)
assert_type(override(cfg, ["dim=8"]), Block.Config)
hash(cfg)
"""

# Line: rule, part of the message.
BAD = {
    "Norm.Config(dmi=4)": ("reportCallIssue", 'No parameter named "dmi"'),
    "Norm.Config(dim='4')": ("reportArgumentType", '"Literal[\'4\']" is not assignable to "int"'),
    "Norm.Config(4)": ("reportCallIssue", "Expected 0 positional arguments"),
    "Norm.Config(eps=None)": ("reportArgumentType", '"None" is not assignable to "float"'),
    "Block.Config(ffn=Norm.Config())": (
        "reportArgumentType",
        '"snippets.Norm.Config" is not assignable to "snippets.FeedForward.Config"',
    ),
    "Block.Config(layers=[Norm.Config()])": (
        "reportArgumentType",
        '"snippets.Norm.Config" is not assignable to "snippets.FeedForward.Config"',
    ),
    "Block.Config(sizes=['1'])": ("reportArgumentType", '"Literal[\'1\']" is not assignable to "int"'),
    "Dense.Config(activation=3)": ("reportArgumentType", '"Literal[3]" is not assignable to type "(float) -> float"'),
    "Identity.Config(hidden=3)": ("reportCallIssue", 'No parameter named "hidden"'),
    "Identity.Config(dim='4')": ("reportArgumentType", '"Literal[\'4\']" is not assignable to "int"'),
    "cfg.dim = 5": ("reportAttributeAccessIssue", 'Attribute "dim" is read-only'),
    "cfg.norm.eps = 0.5": ("reportAttributeAccessIssue", 'Attribute "eps" is read-only'),
    "cfg.dmi": ("reportAttributeAccessIssue", 'Cannot access attribute "dmi" for class "Config"'),
    "cfg.set(dim=5).dmi": ("reportAttributeAccessIssue", 'Cannot access attribute "dmi" for class "Config"'),
    "cfg.norm.dmi": ("reportAttributeAccessIssue", 'Cannot access attribute "dmi" for class "Config"'),
    "config_for(scale).build().nothing": (
        "reportAttributeAccessIssue",
        'Cannot access attribute "nothing" for class "list[float]"',
    ),
    "replace_all(FeedForward, Identity.Config())": ("reportArgumentType", '"type[FeedForward]" is not assignable'),
    "replace_all(Norm.Config, Norm.Config(), missing='fine')": (
        "reportArgumentType",
        "\"Literal['fine']\" is not assignable to",
    ),
    "modify(Norm.Config, lambda norm: norm.esp)": (
        "reportAttributeAccessIssue",
        'Cannot access attribute "esp" for class "Config"',
    ),
    "class Wrong(Norm.Config): eps: float = '1'": (
        "reportAssignmentType",
        '"Literal[\'1\']" is not assignable to "float"',
    ),
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[int, list[tuple[str, str]]]:
    """What pyright reports by line of PARTS + GOOD + BAD, from one run."""
    root = tmp_path_factory.mktemp("static")
    (root / "snippets.py").write_text("\n".join([*PARTS.splitlines(), *GOOD.splitlines(), *BAD]) + "\n")
    settings = {
        "extraPaths": [str(SRC)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "standard",
        "reportUnusedExpression": False,
        "reportReturnType": False,
    }
    (root / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(root), "--pythonpath", sys.executable]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    found: dict[int, list[tuple[str, str]]] = {}
    for report in json.loads(result.stdout)["generalDiagnostics"]:
        line = report["range"]["start"]["line"] + 1
        found.setdefault(line, []).append((report["rule"], report["message"]))
    return found


def test_good_lines_are_accepted(reports):
    good = len(PARTS.splitlines()) + len(GOOD.splitlines())
    assert {line: found for line, found in reports.items() if line <= good} == {}


@pytest.mark.parametrize("snippet", BAD)
def test_bad_line_is_reported(snippet, reports):
    line = len(PARTS.splitlines()) + len(GOOD.splitlines()) + list(BAD).index(snippet) + 1
    rule, part = BAD[snippet]
    assert [found for found, _ in reports.get(line, [])] == [rule]
    assert part in reports[line][0][1].replace("\u00a0", " ")


def test_nothing_else_is_reported(reports):
    first = len(PARTS.splitlines()) + len(GOOD.splitlines()) + 1
    assert sorted(reports) == list(range(first, first + len(BAD)))
