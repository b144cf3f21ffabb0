# SPDX-License-Identifier: Apache-2.0
"""Which classes are modules, through which base classes, and which config fields hold a child's config."""

from pathlib import Path

import pytest

from dovetail.loc.encapsulation import check_paths, check_source

BREACH = "    def __init__(self):\n        self.a = self.child()\n    def f(self):\n        self.a.w\n"


def codes(source: str) -> list[str]:
    return [f.code for f in check_source(source, "block.py")]


@pytest.mark.parametrize(
    "bases",
    [
        "(Module)",
        "(module.Module)",
        "(dt.Module)",
        "(Module, abc.ABC)",
        "(Mixin, Module[T])",
        "(Module, metaclass=M)",
        "(Renamed)",
    ],
)
def test_a_class_that_derives_from_module_is_checked(bases):
    assert codes(f"from dovetail.module import Module as Renamed\nclass A{bases}:\n{BREACH}") == ["E1"]


@pytest.mark.parametrize(
    "source",
    [
        f"class A:\n{BREACH}",
        f"class Module:\n{BREACH}",
        f"class A(Component):\n{BREACH}",
        f"class A(MyModule):\n{BREACH}",
        f"class A(A):\n{BREACH}",
        f"class A(B): pass\nclass B(A):\n{BREACH}",
        f"import torch\nclass A(torch.nn.Module):\n{BREACH}",
        f"from torch import nn\nclass A(nn.Module):\n{BREACH}",
        f"import flax.linen as nn\nclass A(nn.Module):\n{BREACH}",
        f"from flax.linen import Module\nclass A(Module):\n{BREACH}",
        f"from torch.nn import Module as M\nclass A(M):\n{BREACH}",
        f"class A(Component):\n    class Config(Module.Config): pass\n{BREACH}",
        "def f(self):\n    self.a = self.child()\n    self.a.w, x._y",
    ],
)
def test_what_is_no_module_is_not_checked(source):
    assert codes(source) == []


def test_classes_that_seem_to_derive_from_each_other_are_checked_once():
    assert codes(f"class A(B, Module):\n{BREACH}class B(A): pass\n") == ["E1"]


@pytest.mark.parametrize(
    "where",
    ["def f():\n    {}", "class Outer:\n    {}", "if TYPE_CHECKING:\n    {}", "class M(Module):\n    {}"],
)
def test_a_module_is_checked_wherever_it_is_defined(where):
    source = where.format(f"class A(Module):\n{BREACH}".replace("\n", "\n    "))
    assert codes(source) == ["E1"]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_modules_are_recognised_through_base_classes_in_other_files(tmp_path):
    write(
        tmp_path,
        {
            "z.py": "class Base(Module):\n    pass\n",
            "sub/middle.py": "from z import Base\nclass Middle(Base):\n    pass\n",
            "a.py": f"import sub.middle\nclass Leaf(sub.middle.Middle):\n{BREACH}",
            "plain.py": f"class Plain(Other):\n{BREACH}",
        },
    )
    assert [(Path(f.path).name, f.code) for f in check_paths([tmp_path])] == [("a.py", "E1")]
    assert check_paths([tmp_path / "a.py"]) == []


def test_children_and_slots_are_inherited_across_files(tmp_path):
    base = (
        "class Base(Module):\n    class Config(Module.Config):\n        ffn: FeedForward.Config\n        n: A.Config\n"
    )
    base += "    def __init__(self, cfg):\n        self.ffn = self.child('ffn', cfg.ffn)\n"
    leaf = "class Leaf(Base):\n    class Config(Base.Config):\n        n: int\n        m: A.Config\n"
    leaf += "    def forward(self, x):\n        self.ffn.w, self.cfg.ffn.d, self.cfg.m.d, self.cfg.n.real\n"
    write(tmp_path, {"base.py": base, "leaf.py": leaf})
    assert [(f.line, f.col, f.code) for f in check_paths([tmp_path])] == [
        (6, 9, "E1"),
        (6, 21, "E3"),
        (6, 37, "E3"),
    ]


def test_slots_are_inherited_through_the_bases_of_config():
    source = "class A(Module):\n    class Config(Module.Config):\n        ffn: F.Config\n"
    source += "class B(Module):\n    class Other:\n        x: F.Config\n    class Config(A.Config): pass\n"
    source += "    def f(self):\n        self.cfg.ffn.dim, self.cfg.x.dim\n"
    assert [(f.line, f.col) for f in check_source(source, "a.py")] == [(9, 9)]


def test_a_base_class_of_the_same_file_is_preferred(tmp_path):
    write(
        tmp_path,
        {
            "a.py": "class Base(Module):\n    pass\n",
            "b.py": f"class Base:\n    pass\nclass Leaf(Base):\n{BREACH}",
            "c.py": f"import a\nclass Base(a.Base):\n{BREACH}",  # Of its own name, but not its own base.
        },
    )
    assert [Path(f.path).name for f in check_paths([tmp_path])] == ["c.py"]


@pytest.mark.parametrize("config", ["cfg", "self.cfg", "cfg.set(dim=3)", "self.config"])
@pytest.mark.parametrize(
    "annotation, slot",
    [
        ("FeedForward.Config", "slot"),
        ("nn.FeedForward.Config", "slot"),
        ("'FeedForward.Config'", "slot"),
        ("FeedForward.Config | None", "slot"),
        ("None | A.Config | B.Config", "slot"),
        ("Optional[FeedForward.Config]", "slot"),
        ("typing.Union[A.Config, None]", "slot"),
        ("Annotated[FeedForward.Config, 'why']", "slot"),
        ("list[A.Config]", "slot[0]"),
        ("tuple[A.Config, ...]", "slot[0]"),
        ("Sequence[A.Config] | None", "slot[-1]"),
        ("list[list[A.Config]]", "slot[0][0]"),
        ("dict[str, A.Config]", "slot['k']"),
        ("Mapping[str, list[A.Config]]", "slot['k'][0]"),
    ],
)
def test_a_field_of_a_childs_config_is_found_for_every_type_of_slot(block, config, annotation, slot):
    source = block(f"{config}.{slot}.dim").replace("dim: int", f"slot: {annotation}")
    assert codes(source) == ["E3"]
    assert codes(source.replace(f"{slot}.dim", f"{slot}.set(dim=3)")) == []


@pytest.mark.parametrize(
    "annotation",
    ["int", "Callable[[A.Config], int]", "type[A.Config]", "dict[A.Config, int]", "'not ('", "x()"],
)
def test_fields_that_hold_no_config_may_be_looked_into(block, annotation):
    assert codes(block("self.cfg.slot.dim").replace("dim: int", f"slot: {annotation}")) == []
