# SPDX-License-Identifier: Apache-2.0
"""Modules: what they declare, what they may touch, and what they say when a rule is broken."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import REQUIRED, Component, ConfigError, replace_all
from dovetail.module import Module, ModuleError, call, constant, init
from support.loops import Sequence
from support.transformer import Block, DenseFeedForward, FeedForward, Linear, decoder


class Parent(Module):
    """Calls `act(self, x)`, whatever a test puts there."""

    class Config(Module.Config):
        act: Any = REQUIRED
        ffn: FeedForward.Config = DenseFeedForward.Config(hidden_dim=3)

    def __init__(self, cfg: Config, **kwargs):
        super().__init__(cfg, **kwargs)
        self.ffn = self.child("ffn", cfg.ffn.set(dim=2))
        self.param("scale", (2,), axes=("embed",), init=constant(2.0))
        self.state("count", (), axes=(), dtype=jnp.int32)

    def forward(self, x):
        return self.cfg.act(self, x)

    def double(self, x):
        return x * self.scale


def run(act, **kwargs):
    model = Parent.Config(act=act).build()
    return call(model, init(model, jax.random.key(0)), jnp.ones((1, 2)), **kwargs)


def call_grandchild(self, x):
    return self.ffn.up(x)


def read_childs_parameter(self, x):
    return self.ffn.up.weight


def read_childs_config(self, x):
    return x * self.ffn.cfg.hidden_dim


STRANGER = Linear.Config(in_dim=2, out_dim=2).build()


def call_stranger(self, x):
    return STRANGER(x)


def use_undeclared(self, x):
    return x * self.scael


def keep_a_value(self, x):
    self.kept = x


def update_undeclared(self, x):
    self.update("total", x)


def update_count(self, x):
    self.update("count", x)


def read_count(self, x):
    return self.count


def ask_for_randomness(self, x):
    return jax.random.normal(self.rng(), x.shape)


def report_twice(self, x):
    self.summary("size", 1.0)
    self.summary("size", 2.0)


def report_inside_vmap(self, x):
    def row(r):
        self.summary("row", jnp.sum(r))
        return r

    return jax.vmap(row)(x)


def update_inside_scan(self, x):
    def step(carry, _):
        self.update("count", carry)
        return carry, None

    return jax.lax.scan(step, x, length=2)[0]


INSIDE = (
    " inside a JAX transformation (scan, vmap, grad, jit, ...) that the method itself started.\n"
    "  The value could not leave it. Return it from the transformed function and report it outside,\n"
    "  or transform self.lift(method), and self.bring what it leaves."
)
BROKEN_RULES = [
    (
        call_grandchild,
        {},
        ModuleError,
        "(root) (Parent) calls ffn.up (Linear), which is 1 level below its children. A module calls only its own "
        "children.\n  Add a method to the child in between and call that.",
    ),
    (
        call_stranger,
        {},
        ModuleError,
        "(root) (Parent) calls (root) (Linear), which is not its child. A module calls only its own children.\n"
        "  Declare it with self.child(...), or let the common parent call it and pass the result.",
    ),
    (
        read_childs_parameter,
        {},
        ModuleError,
        "(root) (Parent) wants the parameter 'weight' of ffn.up (Linear). A module reads only what is its own.\n"
        "  Give Linear a method that computes what is needed, and call that.",
    ),
    (
        read_childs_config,
        {},
        ModuleError,
        "(root) (Parent) wants the config of ffn (DenseFeedForward). A module reads only what is its own.\n"
        "  Give DenseFeedForward a method that computes what is needed, and call that.",
    ),
    (use_undeclared, {}, AttributeError, "(root) (Parent) has no attribute 'scael'. Did you mean 'scale'?"),
    (
        keep_a_value,
        {},
        ModuleError,
        "(root) (Parent): self.kept cannot be set, a module is fixed once built.\n  Return the value, report it with "
        "self.summary, or declare it with self.state and self.update it.",
    ),
    (
        update_undeclared,
        {"state": {}},
        ModuleError,
        "(root) (Parent) has no state 'total'. Declare it in __init__: self.state('total', ...).",
    ),
    (
        update_count,
        {},
        ModuleError,
        "count: this call keeps no state. Test self.stateful, or pass state=make_state(...).",
    ),
    (
        read_count,
        {"state": {}},
        ModuleError,
        "count: not among the state that call(...) was given. Make it for this module, method and number of\n"
        "  calls: make_state(state_specs(module, params, *inputs, method=..., sizes={...})).",
    ),
    (
        ask_for_randomness,
        {},
        ModuleError,
        "(root) (Parent) needs random numbers. Pass rng=jax.random.key(...) to call(...).",
    ),
    (
        report_twice,
        {},
        ModuleError,
        "(root) (Parent) reports the summary 'size' twice in one call. Give the second another name.",
    ),
    (report_inside_vmap, {}, ModuleError, "(root) (Parent) reports the summary 'row'" + INSIDE),
    (update_inside_scan, {"state": {}}, ModuleError, "(root) (Parent) updates the state 'count'" + INSIDE),
]


@pytest.mark.parametrize("act, kwargs, kind, text", BROKEN_RULES, ids=[act.__name__ for act, *_ in BROKEN_RULES])
def test_breaking_a_rule_in_a_call_says_what_to_do(act, kwargs, kind, text):
    with pytest.raises(kind) as e:
        run(act, **kwargs)
    assert str(e.value) == text


def test_a_module_called_outside_of_call_is_an_error():
    model = Linear.Config(in_dim=2, out_dim=2).build()
    with pytest.raises(ModuleError) as e:
        model(jnp.ones((1, 2)))
    assert str(e.value) == "(root) (Linear): called outside of a call. Use call(module, params, inputs)."
    with pytest.raises(ModuleError) as e:
        model.weight  # noqa: B018
    assert str(e.value) == (
        "(root) (Linear): the parameter 'weight' outside of a call. A module holds no arrays: "
        "use call(module, params, inputs)."
    )


class CallsParent(Module):
    class Config(Module.Config):
        up: Any = None

    def forward(self, x):
        return self.cfg.up[0](x)


PARENT: list[Module] = []


def first_parent(x):
    return PARENT[0](x)


def test_a_child_that_calls_its_parent_is_an_error():
    class Up(Module):
        class Config(Module.Config):
            down: Module.Config = CallsParent.Config()

        def __init__(self, cfg, **kwargs):
            super().__init__(cfg, **kwargs)
            self.down = self.child("down", cfg.down.set(up=[first_parent]))
            PARENT[:] = [self]

        def forward(self, x):
            return self.down(x)

    with pytest.raises(ModuleError) as e:
        call(Up.Config().build(), {}, jnp.ones(2))
    assert str(e.value) == (
        "down (CallsParent) calls (root) (Up), its parent. A module calls only its own children: "
        "pass what is needed as an argument."
    )


def declaring(declare, fields=None):
    """Builds a module whose __init__ runs `declare(self)`."""

    class Declares(Module):
        class Config(Module.Config):
            ffn: FeedForward.Config = DenseFeedForward.Config(dim=2, hidden_dim=3)
            layers: list[Module.Config] = []

        def __init__(self, cfg, **kwargs):
            super().__init__(cfg, **kwargs)
            declare(self)

    return Declares.Config().build()


BAD_DECLARATIONS = {
    "two children of one name": (
        lambda self: [self.child("ffn", self.cfg.ffn) for _ in range(2)],
        ConfigError,
        "(root) (Declares): child 'ffn' is declared twice; the name is already that of a child.",
    ),
    "child and parameter of one name": (
        lambda self: [self.child("ffn", self.cfg.ffn), self.param("ffn", (2, 2), axes=(None, None))],
        ConfigError,
        "(root) (Declares): parameter 'ffn' is declared twice; the name is already that of a child.",
    ),
    "child without a field": (
        lambda self: self.child("mlp", self.cfg.ffn),
        ConfigError,
        "(root) (Declares): child 'mlp' has no field of that name in its config, which has: remat, ffn, layers.\n"
        "  Declare one: config tree and module tree share their names, and replace_all looks into fields.",
    ),
    "child that is no module": (
        lambda self: self.child("ffn", Component.Config()),
        ConfigError,
        "ffn: expected a Module.Config, found Component.Config().",
    ),
    "bad name": (
        lambda self: self.param("a b", (2, 2), axes=(None, None)),
        ConfigError,
        "(root) (Declares): parameter 'a b' is not a name. Use letters, digits and _, "
        "as in 'ffn', 'layers[0]', 'heads.left'.",
    ),
    "reserved name": (
        lambda self: self.state("training", (), axes=()),
        ConfigError,
        "(root) (Declares): state 'training' has a name that Module itself uses. Choose another one.",
    ),
    "axes do not fit": (
        lambda self: self.param("w", (2, 3), axes=("embed",)),
        ConfigError,
        "w: 1 axes ('embed',) for 2 dimensions (2, 3). Name each, or None.",
    ),
    "axes of state do not fit": (
        lambda self: self.state("cache", ("batch", "capacity"), axes=("batch",)),
        ConfigError,
        "cache: 1 axes ('batch',) for 2 dimensions ('batch', 'capacity'). Name each, or None.",
    ),
    "rule for state of a sequence": (
        lambda self: self.state("count", (), axes=(), update_rule=jnp.add),
        ConfigError,
        "count: has an update_rule, which is for state of a run. Set lifetime='run', or leave it out.",
    ),
    "named size of state of a run": (
        lambda self: self.state("mean", ("batch",), axes=("batch",), lifetime="run"),
        ConfigError,
        "mean: state of a run has numbers as sizes, found ('batch',).",
    ),
    "vector without init": (
        lambda self: self.param("b", (2,), axes=("embed",)),
        ConfigError,
        "b: a parameter of shape (2,) has no default initial value. Pass init=...",
    ),
    "array attribute": (
        lambda self: setattr(self, "table", jnp.zeros(2)),
        ModuleError,
        "(root) (Declares): self.table is an array. A module holds none: declare it with self.param.",
    ),
    "attribute that hides a parameter": (
        lambda self: (self.param("w", (2, 3), axes=(None, None)), setattr(self, "w", 1)),
        ModuleError,
        "(root) (Declares): self.w would hide the parameter of that name.",
    ),
    "child not assigned": (
        lambda self: (self.child("ffn", self.cfg.ffn), self.ffn),
        AttributeError,
        "(root) (Declares): assign the child, self.ffn = self.child('ffn', ...).",
    ),
}


@pytest.mark.parametrize("case", BAD_DECLARATIONS)
def test_a_bad_declaration_says_what_to_do(case):
    declare, kind, text = BAD_DECLARATIONS[case]
    with pytest.raises(kind) as e:
        declaring(declare)
    assert str(e.value) == text


def test_forgetting_super_init_says_so():
    class Forgetful(Module):
        def __init__(self, cfg, **kwargs):
            self.param("w", (2, 2), axes=(None, None))

    with pytest.raises(
        AttributeError, match=r"^Forgetful.__init__ must first call super\(\).__init__\(cfg, \*\*kwargs\)\.$"
    ):
        Forgetful.Config().build()


def test_all_missing_fields_of_a_tree_are_reported_at_once():
    block = Block.Config(ffn=DenseFeedForward.Config())
    with pytest.raises(ConfigError) as e:
        Sequence.Config(layers=[block, block.set(dim=4)]).build()
    assert str(e.value) == (
        "Sequence.Config: 3 required fields are not set:\n"
        "  layers[0].dim: int\n"
        "  layers[0].ffn.hidden_dim: int\n"
        "  layers[1].ffn.hidden_dim: int\n"
        "  Set them, as in cfg.set_in('layers[0].dim', ...)."
    )


def test_an_error_inside_a_method_names_the_module_and_its_inputs():
    model = DenseFeedForward.Config(dim=8, hidden_dim=16).build(path="ffn")
    with pytest.raises(TypeError) as e:
        call(model, init(model, jax.random.key(0)), jnp.zeros((2, 6, 9)))
    notes = [note for note in e.value.__notes__ if note.startswith("In module")]
    assert notes == ["In module ffn.up (Linear), method forward(float32[2, 6, 9])."]


def test_parameters_that_do_not_fit_are_named():
    model = Linear.Config(in_dim=2, out_dim=2).build()
    with pytest.raises(ModuleError) as e:
        call(model, {"wieght": jnp.ones((2, 2))}, jnp.ones((1, 2)))
    assert str(e.value) == "weight: not among the parameters that call(...) was given. They hold: ['wieght']."


def own_method_and_child_method(self, x):
    return self.double(self.ffn(x))


def test_a_method_may_call_another_of_its_own_and_those_of_its_children():
    model = Parent.Config(act=own_method_and_child_method).build()
    params = init(model, jax.random.key(0))
    x = jnp.ones((1, 2))
    up, down = (params["ffn"][name]["weight"] for name in ("up", "down"))
    np.testing.assert_allclose(call(model, params, x)[0], 2 * (jax.nn.silu(x @ up) @ down), rtol=1e-6)
    np.testing.assert_allclose(call(model, params, x, method="double")[0], 2 * x)


def test_a_feature_enters_by_replacing_configs_and_nothing_else():
    class Scaled(FeedForward):
        class Config(FeedForward.Config):
            by: float = 3.0

        def forward(self, x, context=None):
            return self.cfg.by * x

    cfg = replace_all(FeedForward.Config, Scaled.Config(), drop=("hidden_dim",))(decoder())
    assert cfg.get_in("stack.layer.ffn") == Scaled.Config()
    params = init(cfg.build(), jax.random.key(0))
    assert "ffn" in params["stack"]["layer"]
    assert params["stack"]["layer"]["ffn"] == {}


def test_a_property_and_a_private_method_are_not_calls_of_a_module():
    class Sized(Module, abc.ABC):
        class Config(Module.Config):
            dim: int = 3

        @property
        def width(self) -> int:
            return 2 * self._half()

        def _half(self) -> int:
            return self._cfg.dim

    assert Sized.Config().build().width == 6
