# SPDX-License-Identifier: Apache-2.0
"""What the encapsulation checker finds, what it leaves alone, how it says so, and the command."""

import ast
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.loc.encapsulation import BadPath, Finding, check_paths, check_source, main

READ = "`{0}.{1}` reaches into the child `{0}`. Its parameters are its own: call a public method of `{0}` instead."
TAKEN = "`self.ffn.forward` takes a method out of the child `self.ffn`: call it instead."
CHANGED = (
    "`self.ffn.a` changes the child `self.ffn` from outside. Set it by the child's config, where the child is declared."
)
DOWN = "Declare what both need in this module's own Config and pass it down with `.set(...)`."
CONFIG = "`self.ffn.{0}` is the config of the child `self.ffn`. " + DOWN
FIELD = "`{0}` looks inside a child's config. " + DOWN
PRIVATE = "`self.ffn.{0}` is private to the child `self.ffn`: call a public method of `self.ffn` instead."
ELSEWHERE = "`x._v` is private to `x`. Use a public name, or move this to where `_v` is defined."
KIND = (
    "`{0}` asks what kind of child this is. Put the difference behind a method of the child's interface and call that."
)
BY_NAME = "`{0}` looks inside a child by name. Call a public method of it instead."
FIELD_BY_NAME = "`{0}` looks inside a child's config by name. " + DOWN

BREACH = "    def __init__(self):\n        self.a = self.child()\n    def f(self):\n        self.a.w\n"

# (statement, column, code, message)
FOUND = [
    ("self.ffn.w", 1, "E1", READ.format("self.ffn", "w")),
    ("y = x @ self.ffn.w.T", 9, "E1", READ.format("self.ffn", "w")),
    ("self.ffn.router.score(x)", 1, "E1", READ.format("self.ffn", "router")),
    ("self.ffn.stack[0](x)", 1, "E1", READ.format("self.ffn", "stack")),
    ("f'{self.ffn.w}'", 4, "E1", READ.format("self.ffn", "w")),
    ("self.layers[i].w", 1, "E1", READ.format("self.layers[i]", "w")),
    ("a = self.ffn; a.w", 15, "E1", READ.format("a", "w")),
    ("jax.checkpoint(self.ffn.forward)(x)", 16, "E1", TAKEN),
    ("self.ffn.a = 2.0", 1, "E1", CHANGED),
    ("del self.ffn.a", 5, "E1", CHANGED),
    ("self.ffn.cfg.dim", 1, "E2", CONFIG.format("cfg")),
    ("self.ffn.config", 1, "E2", CONFIG.format("config")),
    ("x * self.cfg.ffn.hidden_dim", 5, "E3", FIELD.format("self.cfg.ffn.hidden_dim")),
    ("cfg.ffn.validate()", 1, "E3", FIELD.format("cfg.ffn.validate")),
    ("self.ffn._w", 1, "E4", PRIVATE.format("_w")),
    ("self.ffn._helper(x)", 1, "E4", PRIVATE.format("_helper")),
    ("self.ffn.__dict__", 1, "E4", PRIVATE.format("__dict__")),
    ("x._v", 1, "E4", ELSEWHERE),
    ("isinstance(self.ffn, MoE)", 1, "E5", KIND.format("isinstance(self.ffn, MoE)")),
    ("issubclass(type(self.ffn), MoE)", 12, "E5", KIND.format("type(self.ffn)")),
    ("self.ffn.__class__ is MoE", 1, "E5", KIND.format("self.ffn.__class__")),
    ("isinstance(cfg.ffn, MoE.Config)", 1, "E5", KIND.format("isinstance(cfg.ffn, MoE.Config)")),
    ("getattr(self.ffn, 'w', None)", 1, "E6", BY_NAME.format("getattr(self.ffn, 'w', None)")),
    ("vars(cfg.ffn)", 1, "E6", FIELD_BY_NAME.format("vars(cfg.ffn)")),
]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def codes(source: str) -> list[str]:
    return [f.code for f in check_source(source, "block.py")]


@pytest.mark.parametrize("statement, col, code, message", FOUND, ids=[row[0] for row in FOUND])
def test_a_breach_is_found_at_its_place_and_says_what_to_do(block, first_line, statement, col, code, message):
    assert check_source(block(statement), "block.py") == [Finding("block.py", first_line, col + 8, code, message)]


@pytest.mark.parametrize(
    "statement, expected",
    [
        ("self.ffn.a.b.c.d", ["E1"]),  # Once: what is further inside follows.
        ("self.ffn.a += 1", ["E1"]),
        ("self.ffn.a[0] = 1", ["E1"]),
        ("self.ffn.a.b = 1", ["E1"]),
        ("x, self.ffn.a = 1, 2", ["E1"]),
        ("for self.ffn.a in x: pass", ["E1"]),
        ("with x as self.ffn.a: pass", ["E1"]),
        ("f = self.ffn.forward", ["E1"]),
        ("jax.lax.map(self.layers[0].forward, x)", ["E1"]),
        ("return lambda x: self.ffn.w * x", ["E1"]),
        ("def f(x):\n    return self.ffn.w", ["E1"]),
        ("async def f(x):\n    await self.ffn.w", ["E1"]),
        ("@self.ffn.wrap\ndef f(x): pass", ["E1"]),
        ("[w for w in self.ffn.stack]", ["E1"]),
        ("{k: self.ffn.w for k in x if self.ffn.v}", ["E1", "E1"]),
        ("assert self.ffn.w, self.ffn.v", ["E1", "E1"]),
        ("self.ffn.cfg.set(dim=3)", ["E2"]),
        ("self.ffn.cfg = 3", ["E2"]),
        ("self.ffn.config()", ["E2"]),
        ("self.ffn._a._b", ["E4", "E4"]),
        ("self.ffn.__call__(x)", ["E4"]),
        ("x.y._z()", ["E4"]),
        ("Point._helper(x)", ["E4"]),
        ("self.layers._items", ["E4"]),
        ("self.cfg._owner", ["E4"]),
        ("x.__mangled, x._trailing__", ["E4", "E4"]),
        ("type(self.ffn) is MoE", ["E5"]),
        ("isinstance(self.layers[0], (A, B))", ["E5"]),
        ("any(isinstance(layer, MoE) for layer in self.layers)", ["E5"]),
        ("type(cfg.layers[0])", ["E5"]),
        ("match self.ffn:\n    case MoE(): pass\n    case Dense() | Sparse(): pass", ["E5", "E5", "E5"]),
        ("match (x, self.ffn):\n    case (1, MoE()): pass", ["E5"]),
        ("match self.ffn:\n    case other: other.w", ["E1"]),
        ("match self.experts:\n    case {'k': a, **rest}: a.w, rest['k'].w", ["E1", "E1"]),
        ("match self.layers:\n    case [a, *rest]: a.w, rest[0].w", ["E1", "E1"]),
        ("hasattr(self.ffn, 'w')", ["E6"]),
        ("setattr(self.ffn, 'w', 1)", ["E6"]),
        ("delattr(self.ffn, 'w')", ["E6"]),
        ("vars(self.ffn)['w']", ["E6"]),
        ("getattr(self.layers[i], x)", ["E6"]),
        ("getattr(self, 'ffn').w", ["E1"]),
        ("type(self).forward(self.ffn.w)", ["E1"]),
    ],
)
def test_a_breach_is_found_wherever_it_stands(block, statement, expected):
    assert codes(block(statement)) == expected


@pytest.mark.parametrize(
    "statement",
    [
        "return self.ffn(x) * self.weight",
        "return self.ffn.prefill(x), self.ffn.copy().shape, self.ffn.values().shape",
        "return self.layers[i].extend(x, time_step=i)",
        "return self.ffn(x).astype(jnp.float32).T",
        "self.weight.T + self.weight.astype(jnp.float32)",
        "self.cfg.dim, self.cfg.activation(x), self.cfg.ffn, cfg.layers[0]",
        "x.shape, x.at[0].set(1)",
        "jnp.foo.bar, jax.nn.silu(x), jax._src.core._private, kernels._fused(x)",
        "super().forward(x)",
        "super()._helper(x)",
        "self._helper(x)",
        "self._cache = x",
        "type(self)._helper(x), self.__class__._helper(x), Block._helper(x)",
        "type(self).__name__, f.__name__, x.__array__()",
        "Point(1, 2)._replace(x=3)._asdict(), Point._fields, Point._make(x)",
        "self.ffn is None, self.ffn == self.norm, bool(self.ffn)",
        "print(self.ffn, len(self.layers), self.experts.keys())",
        "isinstance(x, jax.Array), type(x), isinstance(self.layers, list), getattr(x, 'sharding')",
        "isinstance(self.weight, jax.Array), hasattr(self, 'ffn'), getattr(self, 'weight').T",
        "jax.checkpoint(self.ffn)(x), jax.lax.map(lambda y: self.ffn.prefill(y), x)",
        "functools.partial(self.ffn, training=True)(x)",
        "for batch in self.norm: batch.inputs",
        "with self.ffn.scope() as scope: scope.name",
        "for name in self.experts: name.upper",
        "for name in self.experts | {'k': self.norm}: name.upper",
        "for i, layer in enumerate(self.layers): x = layer(x, i.real)",
        "cfg.ffn.set(dim=3).set_in('a.b', 3).inherit(cfg.maybe).build(path='x')",
        "cfg.maybe is None or cfg.maybe == cfg.ffn",
        "cfg.set(dim=3).dim",
        "cfg.layers.index, len(cfg.layers), cfg.experts.items()",
        "match self.ffn:\n    case None: pass\n    case _: pass",
        "match x:\n    case Point(x=1): pass",
        "match self.layers:\n    case list(): pass",
        "import PIL, jax.core as core\nPIL._imaging, core._x",
    ],
)
def test_what_a_module_may_do_is_not_found(block, statement):
    assert codes(block(statement)) == []


# Places, suppressions, files that are not Python.


def test_lines_and_columns_are_those_an_editor_shows(block, first_line):
    source = block("y = (\n    'ü€😀', self.ffn.w,\n    self\n    .ffn\n    .v\n)")
    assert [(f.line, f.col) for f in check_source(source, "b.py")] == [(first_line + 1, 20), (first_line + 2, 13)]
    assert [f.line for f in check_source(source.replace("\n", "\r\n"), "b.py")] == [first_line + 1, first_line + 2]
    assert [f.line for f in check_source(source.replace("\n", "\r"), "b.py")] == [first_line + 1, first_line + 2]


def test_findings_are_in_order_of_place(block):
    found = check_source(block("self.ffn.b, self.ffn._a\nself.ffn.cfg"), "b.py")
    assert found == sorted(found)
    assert [f.code for f in found] == ["E1", "E4", "E2"]


@pytest.mark.parametrize(
    "comment, expected",
    [
        ("# encapsulation: ok, the exporter walks the tree", []),
        ("#encapsulation:ok,why", []),
        ("# noqa: SLF001  # encapsulation: ok, why", []),
        ("# encapsulation: ok", ["E1", "E7"]),
        ("# encapsulation: ok,", ["E1", "E7"]),
        ("# encapsulation: ok, # noqa", ["E1", "E7"]),
        ("# encapsulation: ok because I say so", ["E1", "E7"]),
        ("# encapsulation: okay, sure", ["E1"]),
        ("# type: ignore", ["E1"]),
        ("; '# encapsulation: ok, in a string'", ["E1"]),
    ],
)
def test_a_suppression_needs_a_reason(block, comment, expected):
    assert codes(block(f"self.ffn.w  {comment}")) == expected


def test_a_suppression_covers_every_finding_on_its_line_and_no_other(block, first_line):
    statements = "self.ffn.w, self.ffn.cfg  # encapsulation: ok, why\nself.ffn.v"
    assert [(f.line, f.code) for f in check_source(block(statements), "b.py")] == [(first_line + 1, "E1")]


@pytest.mark.parametrize("line", range(4))
def test_a_suppression_may_stand_on_any_line_of_the_expression(block, line):
    lines = ["isinstance(", "    self.ffn,", "    MoE,", ")"]
    lines[line] += "  # encapsulation: ok, why"
    assert codes(block("\n".join(lines))) == []


def test_suppressions_that_are_bare_or_unused_say_so():
    source = "x = 1  # encapsulation: ok, why\ny = 2  # encapsulation: ok\n"
    assert [str(f) for f in check_source(source, "b.py")] == [
        "b.py:1:8: E8 this suppression suppresses nothing. Delete it.",
        "b.py:2:8: E7 this suppression gives no reason. Write `# encapsulation: ok, REASON`.",
    ]


def test_a_syntax_error_is_a_finding_and_other_files_are_still_checked(tmp_path):
    write(tmp_path, {"a.py": "x = = 1\n", "b.py": f"class B(Module):\n{BREACH}"})
    broken, breach = check_paths([tmp_path])
    assert (broken.line, broken.col, broken.code) == (1, 5, "E0")
    assert broken.message == "not checked, since it cannot be parsed: invalid syntax."
    assert breach.code == "E1"


@pytest.mark.parametrize("content", [b"x = '\xff'", b"# coding: klingon\n", b"x = 1\0"])
def test_a_file_that_is_no_text_is_a_finding(tmp_path, content):
    (tmp_path / "a.py").write_bytes(content)
    (found,) = check_paths([tmp_path])
    assert (found.line, found.code) == (1, "E0")
    assert found.message.startswith("not checked, since it cannot be ")


def test_a_directory_may_be_called_like_a_file(tmp_path):
    write(tmp_path, {"pkg.py/a.py": f"class A(Module):\n{BREACH}"})
    assert [f.code for f in check_paths([tmp_path])] == [f.code for f in check_paths([tmp_path / "pkg.py"])] == ["E1"]


def test_an_imported_package_may_be_in_capitals():
    assert codes("import PIL\nclass A(Module):\n    def f(self):\n        PIL._imaging, PIL.Image._new") == ["E4"]


def test_odd_escapes_in_strings_raise_no_warning(block):
    assert codes(f"x = '\\d'\n{block('self.ffn.w')}") == ["E1"]


@pytest.mark.parametrize("text", ["", "\n", "# only a comment", "\f", "x = 1"])
def test_nothing_is_found_in_nothing(text):
    assert codes(text) == []


# The blind spots that the module's docstring admits to. Whoever cures one of these deletes it there too.


@pytest.mark.parametrize(
    "statements",
    [
        "def f(a): return a.w\nf(self.ffn)",
        "jax.tree.map(lambda layer: layer.w, self.layers)",
        "functools.partial(lambda a: a.w, self.ffn)()",
        "for a in itertools.chain(self.layers, self.layers): a.w",
        "box = Box(self.ffn)\nbox.content.w",
        "vars(self)['ffn'].w",
        "getattr(self, i).w",
        "operator.attrgetter('ffn.w')(self)",
        "self.ffn.grandchild(x)",
        "self.ffn[0].w",
        "for a in self.ffn: a.w",
        "export(self)",
        "class Local:\n    def f(self, a=self.ffn): return a.w",
        "cfg.ffn.build().w",
        "self.declared_by_a_subclass.w",
        "def f(): return a.w\na = self.ffn",
        "try:\n    a = self.ffn\nexcept ValueError:\n    a.w",
    ],
)
def test_blind_spots_are_those_documented(block, statements):
    assert codes(block(statements)) == []


# Properties.

NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True).map("child_{}".format)
UNRELATED = [
    "y = x",
    "assert x is not None",
    "if i:\n    y = i",
    "for y in range(3): print(y)",
    "y = self.ffn(x)",
]


class Rename(ast.NodeTransformer):
    """Gives the child `ffn` and its slot another name."""

    def __init__(self, name: str):
        self.name = name

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        node.attr = self.name if node.attr == "ffn" else node.attr
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name) and node.target.id == "ffn":
            node.target.id = self.name
        return node


@given(st.sampled_from([row[0] for row in FOUND]), NAMES)
def test_the_name_of_a_child_does_not_matter(block, statement, name):
    tree = ast.parse(block(statement))
    before = check_source(ast.unparse(tree), "b.py")
    after = check_source(ast.unparse(Rename(name).visit(tree)), "b.py")
    assert [(f.line, f.code) for f in after] == [(f.line, f.code) for f in before]
    assert [f.message for f in after] == [f.message.replace(".ffn", f".{name}") for f in before]


@given(
    st.lists(st.sampled_from([(row[0], row[2]) for row in FOUND]), min_size=1, max_size=4),
    st.lists(st.sampled_from(UNRELATED), max_size=4),
    st.randoms(use_true_random=False),
)
def test_unrelated_statements_change_nothing(block, first_line, breaches, unrelated, random):
    statements = [(s, None) for s in unrelated] + breaches
    random.shuffle(statements)
    found = check_source(block("\n".join(s for s, _ in statements)), "b.py")
    lines = itertools.accumulate((s.count("\n") + 1 for s, _ in statements), initial=first_line)
    expected = [(line, code) for line, (_, code) in zip(lines, statements, strict=False) if code]
    assert [(f.line, f.code) for f in found] == expected


@given(st.sampled_from(["if i:", "for _ in x:", "while i:", "with x:", "try:", "def f(y):", "match i:\n    case 1:"]))
def test_a_breach_is_found_once_however_deep_it_is_nested(block, head):
    body, depth = "self.ffn.w", 3
    for _ in range(depth):
        indent = "    " * (1 + head.count("\n"))
        body = f"{head}\n{indent}" + body.replace("\n", f"\n{indent}")
        body += "\nfinally: pass" if head == "try:" else ""
    assert codes(block(body)) == ["E1"]


@pytest.mark.parametrize("module", ["argparse", "ast", "dataclasses", "enum", "inspect", "tarfile", "asyncio.tasks"])
def test_any_python_can_be_walked(module):
    """Takes every class of a module of the standard library for a dovetail module, and every value for a child."""
    tree = ast.parse(Path(__import__(module, fromlist=["x"]).__file__).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            node.bases = [ast.Name("Module")]
        elif isinstance(node, ast.Assign):
            node.value = ast.BoolOp(ast.Or(), [ast.parse("self.child()", mode="eval").body, node.value])
    source = ast.unparse(tree)
    found = {(f.line, f.code) for f in check_source(source, module)}
    assert found >= set(plain_reads(ast.parse(source)))


def plain_reads(tree: ast.Module):
    """Yields where a method reads `self.a.b` of a child `a`: written anew, and for this simplest form only."""
    for cls in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
        methods = [m for m in cls.body if isinstance(m, ast.FunctionDef) and m.args.args[:1]]
        methods = [m for m in methods if m.args.args[0].arg == "self" and not m.decorator_list]
        nodes = [n for m in methods for n in ast.walk(m)]
        assigned = [t for n in nodes if isinstance(n, ast.Assign) for t in n.targets]
        children = {ast.unparse(t) for t in assigned if isinstance(t, ast.Attribute) and ast.unparse(t.value) == "self"}
        called = {n.func for n in nodes if isinstance(n, ast.Call)}
        for n in (n for n in nodes if isinstance(n, ast.Attribute) and n not in called):
            if ast.unparse(n.value) in children and not n.attr.startswith("_"):
                yield n.lineno, "E1"


# The command.

CLEAN = "class A(Module):\n    def __init__(self):\n        self.a = self.child()\n"


def test_the_command_prints_findings_and_a_summary_and_exits_with_1(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"src/a.py": f"class A(Module):\n{BREACH}", "src/deep/b.py": CLEAN, "src/c.txt": "x"})
    assert main(["src"]) == 1
    assert capsys.readouterr() == (
        "src/a.py:5:9: E1 `self.a.w` reaches into the child `self.a`. Its parameters are its own: "
        "call a public method of `self.a` instead.\n"
        "encapsulation: 1 finding in 2 modules of 2 files.\n",
        "",
    )


def test_the_command_exits_with_0_when_all_is_well(tmp_path, capsys):
    write(tmp_path, {"a.py": CLEAN, "b.py": "", ".venv/c.py": f"class A(Module):\n{BREACH}"})
    assert main([str(tmp_path), str(tmp_path / "a.py"), f"{tmp_path}/../{tmp_path.name}"]) == 0  # Each file once.
    assert capsys.readouterr() == ("encapsulation: 0 findings in 1 modules of 2 files.\n", "")


@pytest.mark.parametrize(
    "name, message",
    [
        ("gone", "no such file or directory."),
        ("empty", "no Python file (*.py) here, so nothing would be checked."),
        ("notes.txt", "no Python file (*.py) here, so nothing would be checked."),
    ],
)
def test_a_bad_path_is_refused_with_exit_2(tmp_path, capsys, name, message):
    write(tmp_path, {"a.py": CLEAN, "notes.txt": ""})
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "a.py"), str(tmp_path / name)]) == 2
    assert capsys.readouterr() == ("", f"encapsulation: {tmp_path / name}: {message}\n")
    with pytest.raises(BadPath, match=name):
        check_paths([tmp_path / name])


def test_the_command_needs_a_path(capsys):
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "required: PATH" in capsys.readouterr().err


def run(*args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parent.parent), "PYTHONWARNINGS": "error"}
    return subprocess.run([sys.executable, *args], env=env, capture_output=True, text=True, check=False)


def test_the_command_runs_as_a_python_module(tmp_path):
    write(tmp_path, {"a.py": f"class A(Module):\n{BREACH}"})
    done = run("-m", "dovetail.loc.encapsulation", str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.endswith("\nencapsulation: 1 finding in 1 modules of 1 files.\n")


def test_the_checker_needs_neither_jax_nor_numpy():
    code = "import sys, dovetail.loc.encapsulation; print(sorted({'jax', 'numpy'} & set(sys.modules)))"
    assert run("-c", code).stdout == "[]\n"
