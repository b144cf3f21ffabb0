# SPDX-License-Identifier: Apache-2.0
"""Follows children and configs through the methods of a class: names, attributes, containers, loops.

The walk is in the order of execution and joins branches; it tells a subclass of each attribute, call and
class pattern it meets. What is assigned to `self.x` anywhere is remembered for the whole class, as are
results and arguments of the class's own methods, so a class is walked until nothing new is learnt.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping

from ._classes import dotted, functions, is_property
from ._values import CHILD, CONFIG, PACKAGE, SELF, Value, element, is_container, item, joined, mapping, seq

CONFIG_COPIES = ("set", "set_in", "inherit")  # Methods of a config that return another one of the same kind.
_ADDS_ONE = ("append", "appendleft", "insert", "add", "setdefault")
_ADDS_ALL = ("extend", "update")
_TAKES_ONE = ("get", "pop", "popleft", "setdefault")
_SAME_ITEMS = ("list", "tuple", "set", "frozenset", "sorted", "reversed", "iter")
_OWN = {"child": Value("function", (CHILD,)), "cfg": CONFIG, "config": CONFIG, "__class__": SELF}
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Scopes(ast.NodeVisitor):
    """Walks one class. `visit(expr)` returns what the expression may be; `attrs` is what is known of self."""

    def __init__(self, names: Mapping[str, Value], slots: Mapping[str, Value]) -> None:
        self.attrs: dict[str, Value] = {}
        self._slots = slots
        self._names = dict(names)  # The scope being walked.
        self._dead = False  # Whether the code being walked comes after a return or raise.
        self._result: Value | None = None  # What the function being walked may return.

    def inherit(self, base: Scopes) -> None:
        for attr, value in base.attrs.items():
            self._remember(attr, value)

    def saw_attribute(self, node: ast.Attribute, owner: Value | None, *, called: bool) -> None:
        """Is told of each `owner.attr`; `called`: it is the function of a call."""

    def saw_call(self, node: ast.Call, args: list[Value | None]) -> None:
        """Is told of each call with the values of its positional arguments."""

    def saw_class_pattern(self, node: ast.MatchClass, subject: Value | None) -> None:
        """Is told of each `case X(...)`."""

    # Functions.

    def walk_methods(self, cls: ast.ClassDef, family: Iterable[str]) -> None:
        """Walks all methods of `cls`; `family`: the names whose `.Config` is the module's own."""
        for node in functions(cls):
            static = any(dotted(d) == "staticmethod" for d in node.decorator_list)
            args = [*node.args.posonlyargs, *node.args.args]
            known: dict[str, Value | None] = {} if static or not args else {args.pop(0).arg: SELF}
            for i, arg in enumerate([*args, *node.args.kwonlyargs]):
                is_config = arg.arg == "cfg" or (node.name, i) == ("__init__", 0)
                own = CONFIG if is_config and _is_own(arg.annotation, family) else None
                known[arg.arg] = joined(own, *(self.attrs.get(f"{node.name}({key})") for key in (i, arg.arg)))
            result = self._function(node, known)
            self._remember(node.name, result.parts[0] if is_property(node) else result)

    def walk_config_methods(self, cls: ast.ClassDef) -> None:
        """Walks the methods of a nested `class Config`, whose self is the module's own config."""
        for node in functions(cls):
            self._function(node, {arg.arg: CONFIG for arg in node.args.args[:1]})

    def _function(self, node: _Function, known: Mapping[str, Value | None]) -> Value:
        """Walks a body in a scope of its own; `known`: what its parameters are, beside their defaults."""
        a = node.args
        params = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
        values = dict.fromkeys((p.arg for p in params), None) | self._defaults(a)
        for name, value in known.items():
            values[name] = joined(values.get(name), value)
        outer = self._names, self._dead, self._result
        self._names, self._dead, self._result = dict(self._names), False, None
        for name, value in values.items():
            self._set(name, value)
        if isinstance(node, ast.Lambda):
            self._result = self.visit(node.body)
        else:
            self._block(node.body)
        result = Value("function", (self._result,))
        self._names, self._dead, self._result = outer
        return result

    def _defaults(self, a: ast.arguments) -> dict[str, Value | None]:
        named = [*a.posonlyargs, *a.args]
        pairs = [*zip(named[len(named) - len(a.defaults) :], a.defaults, strict=True)]
        pairs += [(arg, d) for arg, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d]
        return {arg.arg: self.visit(default) for arg, default in pairs}

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._set(node.name, self._function(node, {}))

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> Value:
        return self._function(node, {})

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._set(node.name, None)

    # Control flow.

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            self.visit(statement)

    def _branches(self, *arms: Callable[[], object]) -> None:
        """Walks each arm from here; afterwards a name may be what any arm that goes on has left in it."""
        before, ends = self._names, list[dict[str, Value]]()
        for arm in arms:
            self._names, self._dead = dict(before), False
            arm()
            if not self._dead:
                ends.append(self._names)
        self._dead = not ends
        ends = ends or [before]  # A `finally` still runs.
        names = {name for end in ends for name in end}
        merged = {name: joined(*(end.get(name) for end in ends)) for name in names}
        self._names = {name: value for name, value in merged.items() if value}

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, start: Callable[[], object]) -> None:
        for _ in range(2):  # Twice, since what the end of the body binds is there at its top.
            self._branches(lambda: None, lambda: (start(), self._block(node.body)))
        self._block(node.orelse)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._branches(lambda: self._block(node.body), lambda: self._block(node.orelse))

    def visit_While(self, node: ast.While) -> None:
        self._loop(node, lambda: self.visit(node.test))

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        each = element(self.visit(node.iter))
        self._loop(node, lambda: self._bind(node.target, each))

    visit_AsyncFor = visit_For

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        arms = [lambda h=h: self.visit(h) for h in node.handlers]
        self._branches(lambda: self._block([*node.body, *node.orelse]), *arms)
        self._block(node.finalbody)

    def visit_TryStar(self, node: ast.TryStar) -> None:
        self.visit_Try(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._set(node.name, None)
        self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> None:
        subject = self.visit(node.subject)
        arms = [lambda c=c: self._case(c, subject) for c in node.cases]
        self._branches(lambda: None, *arms)

    def _case(self, case: ast.match_case, subject: Value | None) -> None:
        self._pattern(case.pattern, subject)
        if case.guard:
            self.visit(case.guard)
        self._block(case.body)

    def _pattern(self, pattern: ast.pattern, subject: Value | None) -> None:
        inner: Value | None = None
        match pattern:
            case ast.MatchClass():
                self.saw_class_pattern(pattern, subject)
            case ast.MatchStar():
                subject = seq(subject)
            case ast.MatchAs() | ast.MatchOr():
                inner = subject
            case ast.MatchSequence() | ast.MatchMapping():
                inner = item(subject)
        for child in ast.iter_child_nodes(pattern):
            self._pattern(child, inner) if isinstance(child, ast.pattern) else self.visit(child)
        if name := getattr(pattern, "name", None) or getattr(pattern, "rest", None):
            self._set(name, subject)

    def visit_Return(self, node: ast.Return) -> None:
        self._result = joined(self._result, self.visit(node.value) if node.value else None)
        self._dead = True

    def visit_Raise(self, node: ast.Raise) -> None:
        self.generic_visit(node)
        self._dead = True

    def visit_Yield(self, node: ast.Yield) -> None:
        self._result = joined(self._result, seq(self.visit(node.value) if node.value else None))

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        self._result = joined(self._result, self.visit(node.value))

    # Binding.

    def _set(self, name: str, value: Value | None) -> None:
        self._names.pop(name, None)
        if value:
            self._names[name] = value

    def _remember(self, attr: str, value: Value | None) -> None:
        known = joined(self.attrs.get(attr), value)
        if known:
            self.attrs[attr] = known

    def _bind(self, target: ast.expr, value: Value | None) -> None:
        match target:
            case ast.Name(id=name):
                self._set(name, value)
            case ast.Starred(value=rest):
                self._bind(rest, seq(value))
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                parts = (element(value),) * len(targets)
                if value and value.kind == "tuple" and len(value.parts) == len(targets):
                    parts = value.parts
                for each, part in zip(targets, parts, strict=True):
                    self._bind(each, part)
            case ast.Attribute(value=owner, attr=attr):
                held_by = self.visit(owner)
                self.saw_attribute(target, held_by, called=False)
                if held_by == SELF:
                    self._remember(attr, value)
            case ast.Subscript(value=container, slice=key):
                self.visit(key)
                self._add(container, value, mapping)

    def _add(self, container: ast.expr, value: Value | None, if_new: Callable[[Value], Value]) -> None:
        """Notes that `container` may now hold `value`; `if_new`: what it is if nothing is known of it."""
        held = self.visit(container)
        if value:
            make = if_new if held is None else mapping if held.kind == "map" else seq
            self._absorb(container, make(value))

    def _absorb(self, target: ast.expr, more: Value) -> None:
        match target:
            case ast.Name(id=name):
                self._set(name, joined(self._names.get(name), more))
            case ast.Attribute(value=owner, attr=attr) if self.visit(owner) == SELF:
                self._remember(attr, more)
            case ast.Subscript(value=container):
                self._add(container, more, mapping)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            self._bind(target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self._bind(node.target, self.visit(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._bind(node.target, _combined(self.visit(node.target), self.visit(node.value)))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Value | None:
        value = self.visit(node.value)
        self._bind(node.target, value)
        return value

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self.visit(target)
            if isinstance(target, ast.Name):
                self._set(target.id, None)

    def visit_withitem(self, node: ast.withitem) -> None:
        self.visit(node.context_expr)
        if node.optional_vars:
            self._bind(node.optional_vars, None)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._set(alias.asname or alias.name.split(".")[0], PACKAGE)

    # Expressions.

    def visit_Name(self, node: ast.Name) -> Value | None:
        return self._names.get(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> Value | None:
        owner = self.visit(node.value)
        self.saw_attribute(node, owner, called=False)
        return self._attribute(owner, node.attr)

    def _attribute(self, owner: Value | None, name: str) -> Value | None:
        if owner == SELF:
            return joined(self.attrs.get(name), _OWN.get(name))
        if owner == CONFIG:
            return self._slots.get(name)
        return PACKAGE if owner == PACKAGE and not name[0].isupper() else None

    def visit_Subscript(self, node: ast.Subscript) -> Value | None:
        value = self.visit(node.value)
        self.visit(node.slice)
        if isinstance(node.slice, ast.Slice):
            return seq(item(value)) if is_container(value) else None
        match node.slice:
            case ast.Constant(value=int(i)) if value and value.kind == "tuple" and i < len(value.parts):
                return value.parts[i]
            case _:
                return item(value)

    def visit_IfExp(self, node: ast.IfExp) -> Value | None:
        self.visit(node.test)
        return joined(self.visit(node.body), self.visit(node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> Value | None:
        return joined(*map(self.visit, node.values))

    def visit_BinOp(self, node: ast.BinOp) -> Value | None:
        return _combined(self.visit(node.left), self.visit(node.right))

    def visit_Starred(self, node: ast.Starred) -> Value | None:
        return self.visit(node.value)

    def visit_Tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Value:
        values = [self.visit(e) for e in node.elts]
        if any(isinstance(e, ast.Starred) for e in node.elts):
            spread = zip(node.elts, values, strict=True)
            return seq(joined(*(element(v) if isinstance(e, ast.Starred) else v for e, v in spread)))
        return Value("tuple", tuple(values))

    visit_List = visit_Set = visit_Tuple

    def visit_Dict(self, node: ast.Dict) -> Value:
        values = [self.visit(v) for v in node.values]
        for key in filter(None, node.keys):
            self.visit(key)
        return mapping(joined(*(v if k else item(v) for k, v in zip(node.keys, values, strict=True))))

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        return seq(self._comprehension(node.generators, node.elt))

    visit_SetComp = visit_GeneratorExp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> Value:
        return mapping(self._comprehension(node.generators, node.key, node.value))

    def _comprehension(self, generators: list[ast.comprehension], *results: ast.expr) -> Value | None:
        targets = {n.id for g in generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        hidden = {name: self._names.get(name) for name in targets}
        for generator in generators:
            self._bind(generator.target, element(self.visit(generator.iter)))
            for test in generator.ifs:
                self.visit(test)
        *_, value = map(self.visit, results)
        for name, before in hidden.items():
            self._set(name, before)
        return value

    def visit_Call(self, node: ast.Call) -> Value | None:
        owner: Value | None = None
        if isinstance(node.func, ast.Attribute):
            owner = self.visit(node.func.value)
            self.saw_attribute(node.func, owner, called=True)
            function = self._attribute(owner, node.func.attr)
        else:
            function = self.visit(node.func)
        args = [self.visit(arg) for arg in node.args]
        keywords = {k.arg: self.visit(k.value) for k in node.keywords}
        self.saw_call(node, args)
        if isinstance(node.func, ast.Name) and function is None:
            return self._builtin(node.func.id, node, args)
        if isinstance(node.func, ast.Attribute) and owner == SELF:
            for key, value in [*enumerate(args), *keywords.items()]:
                self._remember(f"{node.func.attr}({key})", value)
        elif isinstance(node.func, ast.Attribute):
            return self._method(node.func, owner, args)
        return function.parts[0] if function and function.kind == "function" else None

    def _method(self, func: ast.Attribute, owner: Value | None, args: list[Value | None]) -> Value | None:
        """Returns what a call of `func` may be, for the methods of configs and containers known here."""
        name = func.attr
        if owner and owner.kind in ("config", "slot"):
            return owner if name in CONFIG_COPIES else None
        if owner and not is_container(owner):
            return None
        if name in (*_ADDS_ONE, *_ADDS_ALL) and args:
            added = args[-1] if name in _ADDS_ONE else item(args[0])
            self._add(func.value, added, mapping if name in ("setdefault", "update") else seq)
        if name == "copy":
            return owner
        held = item(owner)
        results = {"values": seq(held), "items": seq(Value("tuple", (None, held)))}
        return held if name in _TAKES_ONE else results.get(name)

    def _builtin(self, name: str, node: ast.Call, args: list[Value | None]) -> Value | None:
        """Returns what `name(*args)` may be, for the builtins that pass on what they are given."""
        first = args[0] if args else None
        match name:
            case "super":
                return SELF
            case "type" if first == SELF:
                return SELF
            case "getattr" if len(args) > 1 and isinstance(node.args[1], ast.Constant):
                return self._attribute(first, str(node.args[1].value))
            case "enumerate":
                return seq(Value("tuple", (None, element(first))))
            case "zip":
                return seq(Value("tuple", tuple(map(element, args))))
            case "map" if first and first.kind == "function":
                return seq(first.parts[0])
            case "dict" if first:
                pair = element(first)
                return mapping(pair.parts[-1] if pair and pair.kind == "tuple" and pair.parts else item(first))
            case "next":
                return element(first)
            case "cast" if first is None and args:
                return args[-1]
            case _ if name in _SAME_ITEMS:
                return seq(element(first))
        return None


def _combined(left: Value | None, right: Value | None) -> Value | None:
    """Returns what `left + right` (or `|`, or `*`) may be: a container of what either holds, or unknown."""
    held = [v if v.kind == "map" else seq(item(v)) for v in (left, right) if v and is_container(v)]
    return joined(*held)


def _is_own(annotation: ast.expr | None, family: Iterable[str]) -> bool:
    """Returns whether a parameter annotated like this may be the module's own config, not that of another."""
    owner, _, name = dotted(annotation).rpartition(".") if annotation else ("", "", "")
    return name != "Config" or not owner or owner.split(".")[-1] in family
