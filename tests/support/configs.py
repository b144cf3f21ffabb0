# SPDX-License-Identifier: Apache-2.0
"""Small components, functions and random config trees for the tests of `dovetail.config`. Standard library only.

`Model` holds `Block`s, a block holds a `Norm` and a `FeedForward`: an interface with the implementations `Dense`,
`Mixture` and `Identity`. `trees()` makes arbitrary trees of `Record`s.
"""

import abc
import enum
import functools
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import dovetail
from dovetail.config import REQUIRED, Component, ConfigBase, Incomplete

TESTS = Path(__file__).resolve().parents[1]
SOURCES = Path(dovetail.__file__).resolve().parents[1]


def square(x: float) -> float:
    """Returns `x * x`."""
    return x * x


def cube(x: float) -> float:
    """Returns `x * x * x`."""
    return x * x * x


def power(x: float, exponent: float = 2.0) -> float:
    """Returns `x ** exponent`."""
    return x**exponent


class Kind(enum.Enum):
    """What a model is for."""

    CAUSAL = "causal"
    MASKED = "masked"


class Level(enum.IntEnum):
    """An enum whose members are also numbers, one of them falsy."""

    LOW = 0
    HIGH = 1


def child(cfg: ConfigBase, *path: str) -> Any:
    """Builds a child as modules do: a parent goes on after an incomplete one, so that the rest is found too."""
    try:
        return cfg.build(path=".".join(filter(None, path)))
    except Incomplete:
        return None


class Norm(Component):
    """A leaf."""

    class Config(Component.Config):
        """The size, set by the parent, and a constant."""

        dim: int = REQUIRED
        eps: float = 1e-6


class FeedForward(Component, abc.ABC):
    """An interface."""

    class Config(Component.Config):
        """What a block may assume."""

        dim: int = REQUIRED
        dropout: float = 0.0

    @abc.abstractmethod
    def forward(self, x: float) -> float:
        """Returns something."""


class Dense(FeedForward):
    """An implementation with a field that the parent does not set."""

    class Config(FeedForward.Config):
        """The size of the hidden layer and its activation."""

        hidden: int = REQUIRED
        activation: Callable[[float], float] = square

    def forward(self, x: float) -> float:
        """Applies the activation."""
        return self.cfg.activation(x)


class Mixture(FeedForward):
    """An implementation with a child of the same interface."""

    class Config(FeedForward.Config):
        """How many of what."""

        num_experts: int = 2
        expert: FeedForward.Config = Dense.Config(hidden=3)

    def __init__(self, cfg: Config, *, path: str = "") -> None:
        super().__init__(cfg, path=path)
        self.expert = child(cfg.expert.set(dim=cfg.dim), path, "expert")

    def forward(self, x: float) -> float:
        """Asks the expert."""
        return self.expert.forward(x)


class Identity(FeedForward):
    """An implementation without a Config of its own."""

    def forward(self, x: float) -> float:
        """Returns `x`."""
        return x


class Block(Component):
    """A parent of two children; it fills their `dim`."""

    class Config(Component.Config):
        """A size and two children."""

        dim: int = REQUIRED
        norm: Norm.Config = Norm.Config()
        ffn: FeedForward.Config = Dense.Config(hidden=8)

    def __init__(self, cfg: Config, *, path: str = "") -> None:
        super().__init__(cfg, path=path)
        self.norm = child(cfg.norm.set(dim=cfg.dim), path, "norm")
        self.ffn = child(cfg.ffn.set(dim=cfg.dim), path, "ffn")


class Model(Component):
    """A parent of children in a list, a tuple and a dict."""

    class Config(Component.Config):
        """Children in containers, and plain values."""

        name: str = "model"
        kind: Kind = Kind.CAUSAL
        sizes: list[int] = [1, 2]
        blocks: list[Block.Config] = [Block.Config(dim=4), Block.Config(dim=6)]
        norms: tuple[Norm.Config, Norm.Config] = (Norm.Config(dim=1), Norm.Config(dim=2))
        heads: dict[str, FeedForward.Config] = {"main": Identity.Config(dim=4)}

    def __init__(self, cfg: Config, *, path: str = "") -> None:
        super().__init__(cfg, path=path)
        self.blocks = [child(block, path, f"blocks[{i}]") for i, block in enumerate(cfg.blocks)]
        self.norms = [child(norm, path, f"norms[{i}]") for i, norm in enumerate(cfg.norms)]
        self.heads = {name: child(head, path, f"heads.{name}") for name, head in cfg.heads.items()}


class Record(ConfigBase):
    """A record that holds anything."""

    value: Any = None
    other: Any = None
    items: list[Any] = []
    table: dict[Any, Any] = {}


class Twin(ConfigBase):
    """A record with the fields of `Record`, which it is not equal to."""

    value: Any = None
    other: Any = None
    items: list[Any] = []
    table: dict[Any, Any] = {}


def atoms() -> st.SearchStrategy[Any]:
    """Values without parts: a few that are easily confused, and arbitrary ones."""
    confusable = [None, True, False, 0, 1, 0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, "", "1", "None", "a.b", "$x"]
    named = [REQUIRED, Kind.CAUSAL, Kind.MASKED, Level.LOW, Level.HIGH, square, cube, Norm, Record, int, float]
    return st.sampled_from([*confusable, *named]) | st.integers() | st.floats() | st.text(max_size=5)


def keys() -> st.SearchStrategy[Any]:
    """Keys of dicts: names, odd texts and numbers."""
    texts = st.sampled_from(["a", "b", "a-b", "", "it's", 'say "x"', "both ' and \"", "back\\slash", "new\nline", "$x"])
    return texts | st.text(max_size=3) | st.integers(-2, 2)


def containers(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists, tuples and dicts of what `inside` makes."""
    lists = st.lists(inside, max_size=3)
    return lists | lists.map(tuple) | st.dictionaries(keys(), inside, max_size=3)


def values() -> st.SearchStrategy[Any]:
    """Values without configs in them."""
    partials = st.builds(functools.partial, st.just(power), exponent=atoms())
    sets = st.frozensets(st.integers(0, 3) | st.sampled_from(["", "a", Kind.CAUSAL, square]), max_size=3)
    return st.recursive(atoms() | partials | sets, containers, max_leaves=4)


def records(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Configs that hold what `inside` makes."""
    return st.builds(
        lambda cls, fields: cls(**fields),
        st.sampled_from([Record, Twin]),
        st.fixed_dictionaries(
            {},
            optional={
                "value": inside,
                "other": inside,
                "items": st.lists(inside, max_size=3),
                "table": st.dictionaries(keys(), inside, max_size=3),
            },
        ),
    )


def trees() -> st.SearchStrategy[Any]:
    """Configs with configs in fields, lists, tuples and dicts."""
    parts = st.recursive(values() | records(values()), lambda part: records(part) | containers(part), max_leaves=4)
    return records(parts)


def reordered(value: Any) -> Any:
    """Returns an equal value in which every dict has its entries in the opposite order."""
    if isinstance(value, (Record, Twin)):
        return type(value)(**{name: reordered(getattr(value, name)) for name in ("value", "other", "items", "table")})
    if type(value) is tuple:
        return tuple(map(reordered, value))
    if isinstance(value, list):
        return [reordered(item) for item in value]
    if isinstance(value, dict):
        return {key: reordered(item) for key, item in reversed(value.items())}
    return value


def run_python(program: str, *args: str, hash_seed: int) -> str:
    """Returns what a fresh Python with another hash seed prints; it can import `support`."""
    result = subprocess.run(
        [sys.executable, "-c", program, *args],
        env={"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": f"{TESTS}:{SOURCES}", "JAX_PLATFORMS": "cpu", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
