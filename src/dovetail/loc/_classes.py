# SPDX-License-Identifier: Apache-2.0
"""The classes of the scanned files: which are modules, their bases, which fields hold a child's config."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ._values import PACKAGE, SLOT, Value, joined, mapping, seq

_FOREIGN = frozenset({"torch", "flax", "haiku", "equinox"})  # Their `Module` is not ours.
_SAME = frozenset({"Optional", "Union", "Annotated", "Final"})
_SEQUENCES = frozenset({"list", "tuple", "set", "frozenset", "List", "Tuple", "Sequence", "Iterable", "Collection"})
_MAPPINGS = frozenset({"dict", "Dict", "Mapping"})


@dataclass(frozen=True, eq=False)
class Class:
    """A class statement; the dotted names of its bases, and of the owners of the bases of its nested `Config`."""

    node: ast.ClassDef
    filename: str
    bases: tuple[str, ...]
    config_bases: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.node.name


class Index:
    """All classes of the scanned files. Names are looked up in the same file first, then in all files."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self._origins = {filename: dict(_imports(tree)) for filename, tree in trees.items()}
        nodes = [(node, f) for f, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        self._classes = [_class(node, filename, self._origins[filename]) for node, filename in nodes]
        self._by_name: dict[str, list[Class]] = {}
        for cls in self._classes:
            self._by_name.setdefault(cls.name, []).append(cls)
        self.modules = [cls for cls in self._classes if self.is_module(cls)]
        methods = [m for cls in self.modules for m in functions(cls.node) if not is_property(m)]
        self.method_names = {"forward"} | {m.name for m in methods}

    def packages(self, filename: str) -> dict[str, Value]:
        """Returns the imported names that are Python modules; from `from a import b` if `b` is lower case."""
        names = self._origins[filename].items()
        return {name: PACKAGE for name, origin in names if "." not in origin or origin.split(".")[-1].islower()}

    def is_module(self, cls: Class) -> bool:
        """Returns whether `cls` derives from `Module`, through any number of scanned classes."""
        return any(_is_root(base) for c in (cls, *self.ancestors(cls)) for base in c.bases)

    def ancestors(self, cls: Class, *, of_config: bool = False) -> list[Class]:
        """Returns the scanned classes `cls` derives from, nearest first; `of_config`: or its `Config`."""
        found, queue = [cls], [cls]
        while queue:
            here = queue.pop(0)
            for base in here.bases + (here.config_bases if of_config else ()):
                named = [c for c in self._by_name.get(base.split(".")[-1], ()) if c is not here]
                near = [c for c in named if c.filename == here.filename]
                new = [c for c in near or named if c not in found]
                found += new
                queue += new
        return found[1:]

    def slots(self, cls: Class) -> dict[str, Value]:
        """Returns the config fields of `cls` that hold configs of children, inherited ones included."""
        fields: dict[str, Value | None] = {}
        for c in reversed((cls, *self.ancestors(cls, of_config=True))):
            for field in _config_body(c.node):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    fields[field.target.id] = _slot(field.annotation)
        return {name: value for name, value in fields.items() if value}


def functions(cls: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in cls.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def is_property(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(dotted(d).split(".")[-1] in ("property", "cached_property") for d in method.decorator_list)


def config_class(cls: ast.ClassDef) -> ast.ClassDef | None:
    """Returns the nested `class Config`, if there is one."""
    return next((n for n in cls.body if isinstance(n, ast.ClassDef) and n.name == "Config"), None)


def dotted(node: ast.AST) -> str:
    """Returns `a.b.c` for a name, also of `a.b.c[T]` and `"a.b.c"`; an empty string for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr}"
        case ast.Subscript(value=value):
            return dotted(value)
        case ast.Constant(value=str(text)):
            return text
    return ""


def _class(node: ast.ClassDef, filename: str, origins: Mapping[str, str]) -> Class:
    def resolve(base: ast.expr) -> str:
        head, dot, rest = dotted(base).partition(".")
        return origins.get(head, head) + dot + rest

    config = config_class(node)
    owners = [resolve(base).removesuffix(".Config") for base in (config.bases if config else ())]
    return Class(node, filename, tuple(map(resolve, node.bases)), tuple(owners))


def _is_root(base: str) -> bool:
    return base.split(".")[-1] == "Module" and base.split(".")[0] not in _FOREIGN


def _config_body(cls: ast.ClassDef) -> list[ast.stmt]:
    config = config_class(cls)
    return config.body if config else []


def _slot(annotation: ast.expr) -> Value | None:
    """Returns the children's configs that a field of this type holds: `SLOT`, a container of it, or None."""
    match annotation:
        case ast.Constant(value=str(text)):
            try:
                return _slot(ast.parse(text, mode="eval").body)
            except SyntaxError:
                return None
        case ast.Attribute(attr="Config") | ast.Name(id="Config"):
            return SLOT
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return joined(_slot(left), _slot(right))
        case ast.Subscript(value=head, slice=args):
            types = [_slot(arg) for arg in (args.elts if isinstance(args, ast.Tuple) else [args])]
            return _slots_in(dotted(head).split(".")[-1], types)
    return None


def _slots_in(head: str, types: list[Value | None]) -> Value | None:
    held = joined(*types)
    if held is None or head in _SAME:
        return held
    if head in _SEQUENCES:
        return seq(held)
    return mapping(types[-1]) if head in _MAPPINGS and types[-1] else None


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields (name, what it was imported from) for each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (a.asname or a.name.split(".")[0], a.name if a.asname else a.name.split(".")[0]) for a in node.names
            )
        elif isinstance(node, ast.ImportFrom):
            where = "." * node.level + (node.module or "")
            yield from ((a.asname or a.name, f"{where}.{a.name}") for a in node.names)
