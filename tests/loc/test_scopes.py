# SPDX-License-Identifier: Apache-2.0
"""Children and their configs are followed through names, containers, loops, closures and helper methods."""

import pytest

from dovetail.loc.encapsulation import check_source


def codes(source: str) -> list[str]:
    return [f.code for f in check_source(source, "block.py")]


PLACES = [
    *("-{}", "not {}", "x < {}", "x + {}", "x and {}", "({},)", "[{}]", "{{{}}}", "{{{}: x}}"),
    *("{{x: {}}}", "{{**{}}}", "x[{}]", "x[{}:]", "x[0, {}:]", "x[{}] = 1", "x[{}] += 1", "x += {}"),
    *("del x[{}]", "x = y = {}", "x: int = {}", "f(*{})", "f(a={})", "f(**{})", "f'{{x:{{{}}}}}'"),
    *("(y := {})", "x if {} else i", "{} if x else i", "lambda y={}: y", "lambda: {}", "return {}"),
    *("[y for y in x if {}]", "[y for y in {}]", "({} for y in x)", "{{x: {} for y in x}}", "yield"),
    *("yield {}", "yield from {}", "raise {}", "raise E from {}", "assert x, {}", "with {}: pass"),
    *("if x: pass\nelif {}: pass", "while {}: pass", "while x: pass\nelse: {}"),
    *("for y in x: {}", "for y in x: pass\nelse: {}", "match {}:\n    case 1: pass"),
    *("match x:\n    case y if {}: pass", "match x:\n    case 1: {}", "match x:\n    case {}: pass"),
    *("try: {}\nexcept E: pass", "try: pass\nexcept {}: pass", "try: pass\nexcept E: {}"),
    *("try: pass\nexcept E: pass\nelse: {}", "try: pass\nfinally: {}", "try: {}\nexcept* E: pass"),
    *("try: pass\nexcept* E as e: {}", "async def f():\n    async for y in {}: pass"),
    *("async def f():\n    async with {}: pass", "async def f():\n    await {}"),
    *("def f(y=x, *, z={}): pass", "@f({})\ndef g(): pass", "@{}\ndef g(): pass"),
]


@pytest.mark.parametrize("place", PLACES)
def test_every_part_of_every_statement_is_looked_at(block, place):
    assert codes(block(place.format("self.ffn.w"))) == ["E1"] * place.count("{}")


# Ways to give a child another name; each binds `a` to a child and nothing else.
ALIASES = [
    "a = self.ffn",
    "b = a = self.ffn",
    "a = self.ffn if i else self.layers",
    "a = self.layers if i else self.ffn",
    "a: FeedForward = self.ffn",
    "b = self.ffn\na = b",
    "me = self\na = me.ffn",
    "a, b = self.ffn, x",
    "b, (a, c) = x, (self.ffn, x)",
    "b, *c = x, self.ffn\na = c[0]",
    "b, *c = x, self.ffn, x\na = c[0]",
    "[a, b] = [self.ffn, 1]",
    "a, b = self.layers",
    "if (a := self.ffn) is None: pass",
    "print(a := self.ffn)",
    "a = (b := self.ffn)",
    "a = (self.experts | {})['k']",
    "a = (self.ffn,)[5]",
    "def get():\n    yield self.ffn\na = next(get())",
    "def get():\n    yield from self.layers\na = next(get())",
    "a = self.ffn if i else None",
    "a = self.ffn or self.norm",
    "a = None\nif i:\n    a = self.ffn",
    "a = None\nwhile i:\n    a = self.ffn",
    "a = None\ntry:\n    a = self.ffn\nexcept ValueError:\n    pass",
    "if i:\n    a = self.ffn\nelse:\n    raise ValueError",
    "a = self.layers[i]",
    "a = self.layers[0]",
    "a = self.layers[1:][0]",
    "a = self.experts['x']",
    "a = self.experts.get('x')",
    "a = (self.ffn, x)[0]",
    "a = {'f': self.ffn}['f']",
    "a = list(self.layers)[0]",
    "a = (self.layers + [self.norm])[0]",
    "a = [x, *self.layers][1]",
    "a = next(iter(self.layers))",
    "a = dict(zip(x, self.layers))['k']",
    "a = dict(self.experts)['k']",
    "a = self.layers.copy().pop()",
    "a = getattr(self, 'ffn')",
    "a = cast(FeedForward, self.ffn)",
    "a = (lambda: self.ffn)()",
    "def get():\n    return self.ffn\na = get()",
    "for a in self.layers: pass",
    "for b in self.layers: a = b",
    "for i, a in enumerate(self.layers): pass",
    "for b, a in zip(x, self.layers): pass",
    "for i, (b, a) in enumerate(zip(x, self.layers)): pass",
    "for a in reversed(self.layers): pass",
    "for a in (self.ffn, self.norm): pass",
    "for a in [*self.layers, self.ffn]: pass",
    "for a in self.experts.values(): pass",
    "for k, a in self.experts.items(): pass",
    "for a in (layer for layer in self.layers if layer): pass",
    "for a in sorted(self.layers, key=id): pass",
    "a = [layer for layer in self.layers][0]",
    "a = {k: v for k, v in self.experts.items()}['k']",
    "a = [layer for pair in zip(self.layers, self.layers) for layer in pair][0]",
    "found = []\nfor layer in self.layers:\n    found.append(layer)\na = found[0]",
    "found = {}\nfound['k'] = self.ffn\na = found['k']",
    "found = {}\nfound.setdefault('k', []).append(self.ffn)\nfound['k'].append(self.ffn)\na = found['k'][0]",
    "found = deque()\nfound.append(self.ffn)\na = found.popleft()",
    "found = []\nfound += self.layers\na = found[0]",
    "match self.ffn:\n    case a: pass",
]
USES = [
    ("a.w", "E1"),
    ("def f(y): return a.w", "E1"),
    ("(lambda y: a.w)(x)", "E1"),
    ("[a.w for _ in x]", "E1"),
    ("a.w = 1", "E1"),
    ("a.cfg", "E2"),
    ("a._w()", "E4"),
    ("isinstance(a, MoE)", "E5"),
    ("vars(a)", "E6"),
    ("a(x)", None),
    ("a.prefill(x)", None),
    ("a = x\na.w", None),
    ("for a in x: a.w", None),
    ("del a\na.w", None),
    ("def f(a): return a.w", None),
    ("async def f(a): return a.w", None),
    ("async def f():\n    async for a in x: a.w", None),
    ("try: pass\nexcept E as a: a.w", None),
    ("try: pass\nexcept* E as a: a.w", None),
    ("(lambda a: a.w)(x)", None),
    ("[a.w for a in x]", None),
    ("with x as a: a.w", None),
    ("def a(): pass\na.w", None),
    ("class a: pass\na.w", None),
    ("import a\na.w", None),
]


@pytest.mark.parametrize("alias", ALIASES)
def test_a_child_is_followed_under_another_name_until_that_is_rebound(block, alias):
    for use, code in USES:
        assert codes(block(f"{alias}\n{use}")) == ([code] if code else []), use


@pytest.mark.parametrize(
    "statements",
    [
        "a = self.ffn\na = a(x)\na.shape",
        "if i:\n    a = self.ffn\n    return a(x)\na.shape",
        "if i:\n    a = self.ffn\nelse:\n    a = self.norm\na = x\na.shape",
        "for a in self.layers:\n    a = a(x)\n    a.shape",
        "a, b = self.ffn, x\nb.shape",
        "a, *b = self.ffn, x\nb[0].shape",
        "for a, b in zip(self.layers, x): b.shape",
        "for i, a in enumerate(self.layers): i.real",
        "for k, v in self.experts.items(): k.upper",
        "found = {}\nfound['k'] = self.ffn\nfor k in found: k.upper",
        "found = defaultdict(list)\nfound.update({'k': self.ffn})\nfor k in found: k.upper",
        "out = [a(x) for a in self.layers]\nout[0].shape",
        "a = self.ffn(x)\na.shape",
        "a = self.weight\na.T",
        "if i:\n    a = self.ffn\n    raise ValueError\na.shape",
        "if i:\n    a = self.ffn\n    if x: return 1\n    else: return 2\na.shape",
        "a = self.ffn\ntry: pass\nexcept ValueError as a: a.args",
        "a = (self.ffn, x) if i else (self.norm, x)\na[1].shape",
    ],
)
def test_what_a_child_returns_is_not_the_child(block, statements):
    assert codes(block(statements)) == []


@pytest.mark.parametrize(
    "statements",
    [
        "while i:\n    if x: a.w\n    a = self.ffn",
        "a = x\nfor _ in x:\n    if i: a.w\n    a = self.ffn",
        "try:\n    return x\nfinally:\n    self.ffn.w",
        "if i:\n    a = self.ffn\n    if x: a = self.norm\n    else: return 2\na.w",
        "def f(y, a=self.ffn): return a.w",
        "def f(y, *, a=self.ffn): return a.w",
        "return [lambda y, a=a: a.w for a in self.layers]",
    ],
)
def test_a_child_is_followed_round_loops_past_returns_and_into_defaults(block, statements):
    assert codes(block(statements)) == ["E1"]


@pytest.mark.parametrize(
    "declaration, use",
    [
        ("self.a = self.child('a', cfg.ffn)", "self.a.w"),
        ("self._a = self.child('a', cfg.ffn)", "self._a.w"),
        ("self.a = self.b = self.child('a', cfg.ffn)", "self.b.w"),
        ("self.a: FeedForward = self.child('a', cfg.ffn)", "self.a.w"),
        ("self.a = self.child('a', cfg.maybe) if cfg.maybe else None", "self.a.w"),
        ("self.a = None\nif cfg.maybe is not None:\n    self.a = self.child('a', cfg.maybe)", "self.a.w"),
        ("self.a = cfg.maybe and self.child('a', cfg.maybe)", "self.a.w"),
        ("self.a, self.b = self.child('a', cfg.ffn), 1", "self.a.w"),
        ("a = self.child('a', cfg.ffn)\nself.a = a", "self.a.w"),
        ("child = self.child\nself.a = child('a', cfg.ffn)", "self.a.w"),
        ("self.a = [self.child('a', cfg.ffn)]", "self.a[0].w"),
        ("self.a = (self.child('a', cfg.ffn), 1)", "self.a[0].w"),
        ("self.a = {'k': self.child('a', cfg.ffn)}", "self.a['k'].w"),
        ("self.a = tuple(self.child('a', c) for c in cfg.layers)", "self.a[i].w"),
        ("self.a = list(map(self.child, 'ab', cfg.layers))", "self.a[i].w"),
        ("self.a = []\nfor c in cfg.layers:\n    self.a.append(self.child('a', c))", "self.a[i].w"),
        (
            "self.a: list[Layer] = []\nself.a.extend(self.child('a', c) for c in cfg.layers)",
            "for b in self.a: b.w",
        ),
        ("self.a = []\nself.a += [self.child('a', cfg.ffn)]", "self.a[i].w"),
        ("self.a = {}\nfor k in cfg.experts:\n    self.a[k] = self.child(k, cfg.ffn)", "self.a['k'].w"),
        ("self.a = {}\nself.a.update(k=1)\nself.a.update({'k': self.child('a', cfg.ffn)})", "self.a['k'].w"),
        ("self.a = [None] * 3\nself.a[0] = self.child('a', cfg.ffn)", "for b in self.a: b.w"),
        (
            "self.a = [[self.child('a', c) for c in cfg.layers] for _ in range(3)]",
            "for b in self.a:\n    for c in b: c.w",
        ),
        (
            "layers = []\nfor c in cfg.layers:\n    layers.append(self.child('a', c))\nself.a = layers",
            "self.a[0].w",
        ),
        ("setup = lambda: self.child('a', cfg.ffn)\nself.a = setup()", "self.a.w"),
    ],
)
def test_a_child_is_recognised_however_it_is_declared(block, declaration, use):
    assert codes(block(forward=use, init=declaration)) == ["E1"]
    assert codes(block(forward=use.replace(".w", "(x)"), init=declaration)) == []


HELPERS = """\
class Block(Module):
    class Config(Module.Config):
        ffn: FeedForward.Config = REQUIRED

    def __init__(self, cfg, **kwargs):
        super().__init__(cfg, **kwargs)
        self._declare(cfg)
        self.made = self._make(cfg.ffn)

    def _declare(self, config):
        self.a = self.child("a", config.ffn)
        config.ffn.dim  # E3

    def _make(self, ffn):
        ffn.dim  # E3
        return self.child("made", ffn)

    def _layers(self):
        yield self.a
        yield from (self.made,)

    @property
    def first(self):
        return self.a

    def _run(self, layer, *, other=None):
        return layer.w + other.w  # E1 E1

    def forward(self, x):
        self.a.w, self.made.w, self.first.w  # E1 E1 E1
        for layer in self._layers():
            layer.w  # E1
        return self._run(self.a, other=self.made)
"""


def test_an_argument_of_another_objects_method_is_not_one_of_ours():
    methods = "    def _run(self, a): a.w\n    def forward(self, x): x._run, other._run(self.child())\n"
    assert codes(f"class A(Module):\n{methods}") == ["E4", "E4"]


def test_a_static_method_has_no_self():
    methods = "    @staticmethod\n    def f(x): x._y\n    @staticmethod\n    def g(): pass\n    def h(x): x._y\n"
    assert [f.line for f in check_source(f"class A(Module):\n{methods}", "a.py")] == [3]


def test_what_a_later_method_says_of_an_attribute_counts():
    later = "    def setup(self):\n        self.core, self.a = jax.core, self.child()\n"
    source = f"import jax\nclass A(Module):\n    def forward(self):\n        self.core._x, self.a.w\n{later}"
    assert codes(source) == ["E1"]


def test_helper_methods_declare_take_and_return_children():
    found = check_source(HELPERS, "block.py")
    marked = {i: line.split("# ")[1].split() for i, line in enumerate(HELPERS.split("\n"), 1) if "# " in line}
    assert {line: [f.code for f in found if f.line == line] for line in marked} == marked
    assert len(found) == sum(map(len, marked.values()))


@pytest.mark.parametrize(
    "statement",
    [
        "for c in cfg.layers: c.dim",
        "for i, c in enumerate(cfg.layers): c.dim",
        "for k, c in cfg.experts.items(): c.dim",
        "[c.dim for c in self.cfg.experts.values()]",
        "self.cfg.layers[-1].dim",
        "c = cfg.ffn\nc.dim",
        "cfg.ffn.set(dim=cfg.ffn.dim)",
        "cfg.ffn.set",
        "cfg.ffn.set(dim=3).dim",
        "cfg.ffn.dim = 3",
        "cfg = self.cfg\ncfg.ffn.dim",
        "(self.cfg.maybe or self.cfg.ffn).dim",
        "self.kept = cfg.ffn\nself.kept.dim",
        "cfg.ffn._dim",
    ],
)
def test_a_childs_config_is_followed_like_a_child(block, statement):
    assert codes(block(statement)) == ["E3"]


@pytest.mark.parametrize(
    "parameter, expected",
    [
        ("cfg", ["E3"]),
        ("cfg: Config", ["E3"]),
        ("cfg: 'Block.Config'", ["E3"]),
        ("cfg: Module.Config", ["E3"]),
        ("cfg: config.ConfigBase", ["E3"]),
        ("cfg: Other.Config", []),
        ("cfg: 'Other.Config'", []),
        ("other", []),
    ],
)
def test_a_parameter_is_the_own_config_by_name_unless_its_type_says_otherwise(block, parameter, expected):
    name = parameter.split(":")[0]
    source = block().replace("x, i=0, cfg=None", parameter).replace("        pass\n", "")
    assert codes(f"{source.rstrip()}\n        {name}.ffn.dim\n") == expected


def test_the_first_parameter_of_init_is_the_own_config_by_any_name(block):
    assert codes(block(init="c.ffn.dim").replace("cfg: Config", "c")) == ["E3"]


def test_methods_of_config_may_not_look_into_the_configs_of_children(block):
    method = "        def validate(self):\n            self.ffn.dim, self.dim, self._x, self.ffn.set(dim=1)\n"
    source = block().replace("    def __init__", f"{method}\n    def __init__")
    assert codes(source) == ["E3"]
