# SPDX-License-Identifier: Apache-2.0
"""Checks, without running anything, that modules touch only public methods of their own children.

    python -m dovetail.loc.encapsulation PATH...

prints one line `path:line:col: CODE message` for each finding below the paths, then a summary. It exits with
0 if there is none, with 1 if there are some, with 2 for a path it cannot use. `self.a` is a child in these:

    E0  the file cannot be read or parsed, so it was not checked
    E1  `self.a.b` is read (a child's parameter, too), assigned, deleted, or a method is handed on uncalled
    E2  `self.a.cfg`: the config of a child
    E3  `cfg.a.x`: inside a child's config; passing it on, `set`, `set_in`, `inherit` and `build` are fine
    E4  `self.a._x`, `other._x`: a private name of anything but the module; dunders count in a child only
    E5  `isinstance(self.a, X)`, `type(cfg.a)`, `self.a.__class__`, `match self.a: case X()`: a kind test
    E6  `getattr(self.a, ...)`, `setattr`, `hasattr`, `delattr`, `vars`: an attribute by name
    E7  a suppression without a reason
    E8  a suppression that suppresses nothing

The comment `# encapsulation: ok, REASON` on a line of the expression suppresses E1 to E6.

A module is a class that derives from a class called `Module`; names are looked up in the same file, then in
all files scanned. Its children are what `self.child(...)` returns, followed through names, tuples, lists,
dicts, loops, comprehensions, closures, and the arguments and results of its own methods.

Blind spots:

- A child is lost when a function that is no method of the class takes it (a local function, a partial,
  `jax.tree.map(lambda layer: layer.weight, self.layers)`) or returns it (`itertools.chain`), when it is kept
  in another object, and when it is found by `vars(self)`, `getattr(self, name)` or `operator.attrgetter`.
- A call of a grandchild, `self.a.b(x)`, looks like a call of the method `b`; so does iterating over or
  subscripting a single child, which is taken for its public protocol.
- Not checked: code outside modules that is handed a module, classes local to a method, what `cfg.a.build()`
  makes, a child that only a subclass declares but its base class uses.
- A local function sees the names bound before it, not after; an `except` those bound before its `try`.
- A config field annotated by an alias of `X.Config` is not seen as a child's, nor is one of a base class that
  is not scanned. A base class that several other files define stands for all of them.

The invocation context checks at run time what this cannot see.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ._classes import Class, Index, config_class
from ._scopes import CONFIG_COPIES, Scopes
from ._values import SELF, Value

_Node = ast.expr | ast.pattern
_BY_NAME = ("getattr", "setattr", "hasattr", "delattr", "vars")
_CONFIG = ("cfg", "config")
_KIND_TESTS = ("isinstance", "issubclass", "type")
_PASS_IT_DOWN = "Declare what both need in this module's own Config and pass it down with `.set(...)`."
_NAMEDTUPLE = ("_replace", "_asdict", "_fields", "_make")
_SUPPRESSION = re.compile(r"#\s*encapsulation:\s*ok\b(?:,\s*(?P<reason>[^\s#].*))?")


@dataclass(frozen=True, order=True)
class Finding:
    """One breach of encapsulation; `str()` gives the line that is printed. Lines and columns count from 1."""

    path: str
    line: int
    col: int
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.col}: {self.code} {self.message}"


class BadPath(ValueError):
    """A path that does not exist or holds no Python."""


def check_source(text: str, filename: str) -> list[Finding]:
    """Returns the findings in one file, in order; base classes elsewhere are unknown."""
    return _check({filename: text}).findings


def check_paths(paths: Iterable[str | Path]) -> list[Finding]:
    """Returns the findings in all Python files below `paths`, by path and line; may raise `BadPath`."""
    return _check(_read(paths)).findings


@dataclass(frozen=True)
class _Report:
    findings: list[Finding]
    num_files: int
    num_modules: int

    def __str__(self) -> str:
        found = f"{len(self.findings)} findings" if len(self.findings) != 1 else "1 finding"
        return f"encapsulation: {found} in {self.num_modules} modules of {self.num_files} files."


class _Rules(Scopes):
    """Collects what one class does that it may not: {node: (code, message)}."""

    def __init__(self, index: Index, cls: Class) -> None:
        super().__init__({**index.packages(cls.filename), cls.name: SELF}, index.slots(cls))
        self.found: dict[_Node, tuple[str, str]] = {}
        self._methods = index.method_names

    def saw_attribute(self, node: ast.Attribute, owner: Value | None, *, called: bool) -> None:
        name, kind = node.attr, owner.kind if owner else None
        if kind in ("child", "slot") and name == "__class__":
            self.found[node] = _kind_test(node)
        elif kind == "child" and not (called and name not in _CONFIG and not name.startswith("_")):
            self.found[node] = self._in_child(node)
        elif kind == "slot" and not (called and name in (*CONFIG_COPIES, "build")):
            self.found[node] = "E3", f"`{_text(node)}` looks inside a child's config. {_PASS_IT_DOWN}"
        elif kind not in ("child", "slot", "self", "package") and _is_private(name):
            part = _text(node.value)
            if part not in ("self", "cls"):  # As in the methods of Config.
                advice = f"Use a public name, or move this to where `{name}` is defined."
                self.found[node] = "E4", f"`{_text(node)}` is private to `{part}`. {advice}"

    def _in_child(self, node: ast.Attribute) -> tuple[str, str]:
        whole, part = _text(node), _text(node.value)
        ask = f"call a public method of `{part}` instead."
        if node.attr in _CONFIG:
            return "E2", f"`{whole}` is the config of the child `{part}`. {_PASS_IT_DOWN}"
        if node.attr.startswith("_"):
            return "E4", f"`{whole}` is private to the child `{part}`: {ask}"
        if not isinstance(node.ctx, ast.Load):
            advice = "Set it by the child's config, where the child is declared."
            return "E1", f"`{whole}` changes the child `{part}` from outside. {advice}"
        if node.attr in self._methods:
            return "E1", f"`{whole}` takes a method out of the child `{part}`: call it instead."
        return "E1", f"`{whole}` reaches into the child `{part}`. Its parameters are its own: {ask}"

    def saw_call(self, node: ast.Call, args: list[Value | None]) -> None:
        if not (isinstance(node.func, ast.Name) and args and args[0] and args[0].kind in ("child", "slot")):
            return
        if node.func.id in _KIND_TESTS:
            self.found[node] = _kind_test(node)
        elif node.func.id in _BY_NAME:
            what = "child" if args[0].kind == "child" else "child's config"
            advice = "Call a public method of it instead." if what == "child" else _PASS_IT_DOWN
            self.found[node] = "E6", f"`{_text(node)}` looks inside a {what} by name. {advice}"

    def saw_class_pattern(self, node: ast.MatchClass, subject: Value | None) -> None:
        if subject and subject.kind in ("child", "slot"):
            self.found[node] = _kind_test(node)


def _kind_test(node: ast.AST) -> tuple[str, str]:
    advice = "Put the difference behind a method of the child's interface and call that."
    return "E5", f"`{_text(node)}` asks what kind of child this is. {advice}"


def _is_private(name: str) -> bool:
    is_dunder = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and not is_dunder and name not in _NAMEDTUPLE


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check(sources: Mapping[str, str | Finding]) -> _Report:
    """Checks texts by filename; what could not be read is a finding already."""
    findings = [found for found in sources.values() if isinstance(found, Finding)]
    texts = {name: re.sub(r"\r\n?", "\n", text) for name, text in sources.items() if isinstance(text, str)}
    parsed = {name: _parse(text, name) for name, text in texts.items()}
    findings += [found for found in parsed.values() if isinstance(found, Finding)]
    trees = {name: tree for name, tree in parsed.items() if isinstance(tree, ast.Module)}
    index, known = Index(trees), dict[Class, _Rules]()
    for name in trees:
        rules = [_rules(index, cls, known) for cls in index.modules if cls.filename == name]
        breaches = {node: found for r in rules for node, found in r.found.items()}
        findings += _unsuppressed(breaches, texts[name], name)
    return _Report(sorted(findings), len(sources), len(index.modules))


def _parse(text: str, filename: str) -> ast.Module | Finding:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # An odd escape in a string is none of our business.
            return ast.parse(text, filename)
    except (SyntaxError, ValueError) as e:
        line, col = getattr(e, "lineno", None) or 1, getattr(e, "offset", None) or 1
        why = e.msg if isinstance(e, SyntaxError) else str(e)
        return Finding(filename, line, col, "E0", f"not checked, since it cannot be parsed: {why}.")


def _rules(index: Index, cls: Class, known: dict[Class, _Rules]) -> _Rules:
    """Walks `cls` after the modules it derives from, until nothing new is learnt about its attributes."""
    if cls in known:
        return known[cls]
    rules = known[cls] = _Rules(index, cls)  # Noted first: a class may, by name, seem its own ancestor.
    ancestors = index.ancestors(cls)
    for base in ancestors:
        if index.is_module(base):
            rules.inherit(_rules(index, base, known))
    family = {name.split(".")[-1] for c in (cls, *ancestors) for name in (c.name, *c.bases)}
    config = config_class(cls.node)
    for _ in range(8):  # Three do, for code that people write.
        before = dict(rules.attrs)
        rules.found.clear()
        rules.walk_methods(cls.node, family)
        if config:
            rules.walk_config_methods(config)
        if rules.attrs == before:
            break
    return rules


def _unsuppressed(breaches: Mapping[_Node, tuple[str, str]], text: str, path: str) -> Iterator[Finding]:
    """Yields the breaches that no comment excuses, and the comments that excuse nothing."""
    lines, used = text.split("\n"), set[int]()
    suppressions = list(_suppressions(text))
    excused = {line for line, _, reason in suppressions if reason}
    for node, (code, message) in breaches.items():
        span = excused.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        used |= span
        if not span:
            col = len(lines[node.lineno - 1].encode()[: node.col_offset].decode(errors="ignore")) + 1
            yield Finding(path, node.lineno, col, code, message)
    for line, col, reason in suppressions:
        if not reason:
            message = "this suppression gives no reason. Write `# encapsulation: ok, REASON`."
            yield Finding(path, line, col, "E7", message)
        elif line not in used:
            yield Finding(path, line, col, "E8", "this suppression suppresses nothing. Delete it.")


def _suppressions(text: str) -> Iterator[tuple[int, int, str]]:
    """Yields (line, column, reason) of each comment that suppresses."""
    if "encapsulation:" not in text:
        return  # Splitting a text into tokens is slow.
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (found := _SUPPRESSION.search(token.string)):
            yield token.start[0], token.start[1] + found.start() + 1, found["reason"] or ""


def _read(paths: Iterable[str | Path]) -> dict[str, str | Finding]:
    """Returns {filename: its text, or why it has none} for all Python files below `paths`."""
    files = {file.resolve(): file for root in paths for file in _files(Path(root))}  # Each file once.
    return {str(file): _text_of(file) for file in files.values()}


def _text_of(file: Path) -> str | Finding:
    try:
        with tokenize.open(file) as f:
            return f.read()
    except (SyntaxError, UnicodeError, OSError) as e:
        return Finding(str(file), 1, 1, "E0", f"not checked, since it cannot be read: {e}.")


def _files(root: Path) -> list[Path]:
    if not root.exists():
        raise BadPath(f"{root}: no such file or directory.")
    if root.is_file() and root.suffix == ".py":
        return [root]
    found = [f for f in sorted(root.rglob("*.py")) if f.is_file()]
    files = [f for f in found if not any(part.startswith(".") for part in f.relative_to(root).parts)]
    if not files:
        raise BadPath(f"{root}: no Python file (*.py) here, so nothing would be checked.")
    return files


def main(argv: Sequence[str] | None = None) -> int:
    """python -m dovetail.loc.encapsulation PATH..."""
    parser = argparse.ArgumentParser(
        prog="python -m dovetail.loc.encapsulation",
        description="Check that modules touch only public methods of their own children.",
        epilog="Suppress one finding with the comment '# encapsulation: ok, REASON' on its line.",
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a Python file, or a directory of them")
    try:
        report = _check(_read(parser.parse_args(argv).paths))
    except BadPath as e:
        print(f"encapsulation: {e}", file=sys.stderr)
        return 2
    for finding in report.findings:
        print(finding)
    print(report)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
