# SPDX-License-Identifier: Apache-2.0
"""`config_for`: any function or class, configured by its signature."""

import functools
import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail.config import REQUIRED, ConfigError, FunctionConfig, config_for, fields_of, find, to_text
from support.configs import Kind, Norm, Record, power, square

HERE = __name__
NOTHING = object()


def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Returns what it got."""
    return args, kwargs


def mixed(a: int, /, b: str, c: float = 0.5, *rest: Any, d: bool = False, **more: Any) -> tuple[Any, ...]:
    """Has a parameter of each kind."""
    return a, b, c, rest, d, more


def unplain(a: int, b: Any = NOTHING, c: int = 3) -> tuple[Any, ...]:
    """Has a default that is no config value."""
    return a, b is NOTHING, c


def unplain_rest(a: int, b: Any = NOTHING, *rest: Any, **more: Any) -> tuple[Any, ...]:
    """Has such a default before more positional arguments."""
    return a, b is NOTHING, rest, more


def unplain_positional(a: Any = NOTHING, b: int = 2, /) -> tuple[Any, ...]:
    """Has such a default before a positional-only parameter."""
    return a is NOTHING, b


def typed(
    count: int = 1,
    rate: float = 0.5,
    mode: Literal["a", "b"] = "a",
    kind: Kind = Kind.CAUSAL,
    limit: int | None = None,
    implicit: int = None,  # pyright: ignore[reportArgumentType]  # noqa: RUF013
    sizes: list[int] = [1],  # noqa: B006
    pair: tuple[int, float] = (1, 2.0),
    table: dict[str, int] = {},  # noqa: B006
) -> dict[str, Any]:
    """Returns its arguments."""
    return dict(locals())


def unreadable(x: "Nowhere") -> Any:  # pyright: ignore[reportUndefinedVariable] # noqa: F821
    """Has an annotation that names nothing."""
    return x


def plainly_typed(rate: float, sizes: list[int] = [1], table: dict[str, int] = {}) -> dict[str, Any]:  # noqa: B006
    """Returns its arguments."""
    return {"rate": rate, "sizes": sizes, "table": table}


def takes_config(norm: Norm.Config, norms: list[Norm.Config] | None = None, other: Any = None) -> tuple[Any, ...]:
    """Asks for a config, as a config."""
    return norm, norms, other


def reserved(set: int) -> int:
    """Has a parameter that is the name of a method."""
    return set


@dataclass
class Point:
    """A dataclass."""

    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: int = 2


class Counter:
    """A class with a class method."""

    def __init__(self, start: int, *, step: int = 1) -> None:
        self.at = (start, step)

    @classmethod
    def from_text(cls, text: str) -> "Counter":
        """Reads a number."""
        return cls(int(text))


def error_of(call, *args, **kwargs) -> str:
    with pytest.raises(ConfigError) as e:
        call(*args, **kwargs)
    return str(e.value)


# Signatures.


def test_fields_are_the_parameters_with_their_defaults():
    cfg = config_for(mixed)
    assert repr(cfg) == f"config_for({HERE}.mixed)(a=REQUIRED, b=REQUIRED, c=0.5, rest=(), d=False, more={{}})"
    assert list(fields_of(cfg)) == ["a", "b", "c", "rest", "d", "more"]


@pytest.mark.parametrize(
    "args, fields, got",
    [
        ((1,), {"b": "x"}, (1, "x", 0.5, (), False, {})),
        ((), {"a": 1, "b": "x"}, (1, "x", 0.5, (), False, {})),
        ((1, "x", 2), {}, (1, "x", 2.0, (), False, {})),
        ((1, "x", 2.0, 3, 4), {"d": True}, (1, "x", 2.0, (3, 4), True, {})),
        ((1, "x"), {"rest": (3, 4)}, (1, "x", 0.5, (3, 4), False, {})),
        ((1, "x"), {"e": 5, "f": 6}, (1, "x", 0.5, (), False, {"e": 5, "f": 6})),
        ((1, "x"), {"more": {"e": 5}, "f": 6}, (1, "x", 0.5, (), False, {"e": 5, "f": 6})),
    ],
)
def test_arguments_of_every_kind_reach_the_function(args, fields, got):
    assert config_for(mixed, *args, **fields).build() == got


def test_set_adds_to_what_the_extra_arguments_hold():
    cfg = config_for(mixed, 1, "x", e=5).set(f=6, e=7).set_in("more.g", 8)
    assert cfg.build()[-1] == {"e": 7, "f": 6, "g": 8}


@pytest.mark.parametrize(
    "make, got",
    [
        (lambda: config_for(Point, 1), Point(1, 2, [])),
        (lambda: config_for(Point, x=1, tags=["a"]), Point(1, 2, ["a"])),
        (lambda: config_for(Pair, 1), Pair(1, 2)),
        (lambda: config_for(round, 3.14159, ndigits=2), 3.14),
        (lambda: config_for(math.sqrt, 4.0), 2.0),
        (lambda: config_for(sorted, [2, 1], reverse=True), [2, 1]),
    ],
)
def test_classes_and_builtins_are_called_like_functions(make, got):
    built = make().build()
    assert built == got
    assert type(built) is type(got)


def test_class_methods_can_be_configured():
    assert config_for(Counter.from_text, "3").build().at == (3, 1)
    assert config_for(Counter, 3, step=2).build().at == (3, 2)


def test_jax_functions_can_be_configured():
    got = config_for(jax.nn.gelu, np.dtype("float32"), approximate=False)
    assert list(fields_of(got)) == ["x", "approximate"]
    assert config_for(jnp.zeros, (2,), dtype=jnp.bfloat16).build().dtype == jnp.bfloat16


def test_the_configs_of_one_function_are_of_one_class():
    assert type(config_for(power)) is type(config_for(power, 3))
    assert type(config_for(power)) is not type(config_for(square))
    assert isinstance(config_for(power), FunctionConfig)
    cfg = Record(value=config_for(power), items=[config_for(power, 1), config_for(square)])
    assert [path for path, _ in find(cfg, type(config_for(power)))] == ["value", "items[0]"]


@pytest.mark.parametrize(
    "make, got",
    [
        (unplain, (1, True, 3)),
        (unplain_rest, (1, True, (), {})),
    ],
)
def test_default_that_is_no_config_value_is_left_to_the_function(make, got):
    assert repr(config_for(make, 1).get_in("b")) == "DEFAULT"
    assert config_for(make, 1).build() == got


def test_positional_only_argument_after_such_a_default_reaches_the_function():
    assert config_for(unplain_positional).build() == (True, 2)


def test_more_positional_arguments_after_such_a_default_reach_the_function():
    assert config_for(unplain_rest, 1, 2, 3, 4, e=5).build() == (1, False, (3, 4), {"e": 5})


def test_default_marker_has_no_truth_value():
    with pytest.raises(TypeError) as e:
        bool(config_for(unplain, 1).get_in("b"))
    text = "DEFAULT stands for the callable's own default. It has no truth value: test `value is DEFAULT`."
    assert str(e.value) == text


# partial.


@pytest.mark.parametrize(
    "make, got",
    [
        (functools.partial(mixed, 1), (1, "x", 0.5, (), False, {})),
        (functools.partial(mixed, 1, c=9.0), (1, "x", 9.0, (), False, {})),
        (functools.partial(functools.partial(mixed, 1), e=5), (1, "x", 0.5, (), False, {"e": 5})),
        (functools.partial(mixed, 1, d=False), (1, "x", 0.5, (), False, {})),
    ],
)
def test_partial_is_a_config_of_what_it_wraps(make, got):
    cfg = config_for(make, b="x")
    assert type(cfg) is type(config_for(mixed))
    assert cfg.build() == got


def test_arguments_of_config_for_come_after_and_win_over_those_of_the_partial():
    cfg = config_for(functools.partial(mixed, 1, c=9.0), "x", c=8.0)
    assert cfg.build() == (1, "x", 8.0, (), False, {})


def test_partial_from_optax_is_a_config():
    assert optax.nadam.func is optax.adam
    assert config_for(optax.nadam, 1e-3) == config_for(optax.adam, 1e-3, nesterov=True)


# Refused.


def test_lambdas_and_local_functions_are_refused():
    def local() -> None: ...

    for make in (lambda: 3, local):
        assert error_of(config_for, make) == (
            f"config_for: {make!r} cannot be found again by an import path, so a config holding it could not be saved."
            "\n  Define it by name at the top level of a module, or wrap what makes it: config_for(make, ...)."
        )


def test_callable_without_readable_signature_is_refused():
    text = "builtins.int has no signature that Python can read. Wrap it in a function."
    assert error_of(config_for, int) == text
    assert error_of(config_for, int) == text


def test_parameter_with_the_name_of_a_method_is_refused():
    text = f"{HERE}.reserved: a parameter called 'set' cannot be a field. Wrap it in a function."
    assert error_of(config_for, reserved, 3) == text


@pytest.mark.parametrize(
    "args, fields, text",
    [
        ((1, 2, 3), {}, "support.configs.power: too many positional arguments."),
        ((1,), {"x": 2}, "support.configs.power: x given twice, by position and by name."),
    ],
)
def test_arguments_that_no_call_could_have_are_refused(args, fields, text):
    assert error_of(config_for, power, *args, **fields) == text


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"exponnt": 2}, "support.configs.power has no field 'exponnt'. Did you mean 'exponent'?"),
        ({"zzz": 2}, "support.configs.power has no field 'zzz'. It has: x, exponent."),
        ({"x": "a"}, "support.configs.power.x: expected float, found 'a' (str)."),
        (
            {"exponent": True},
            "support.configs.power.exponent: expected float, found True (bool).",
        ),
    ],
)
def test_unknown_names_and_wrong_types_are_refused_in_config_for_and_in_set(fields, text):
    assert error_of(config_for, power, **fields) == text
    assert error_of(config_for(power).set, **fields) == text


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"count": 1.5}, "count: expected int, found 1.5 (float)."),
        ({"mode": "c"}, "mode: expected one of 'a', 'b', found 'c' (str)."),
        ({"kind": "causal"}, "kind: expected Kind (CAUSAL, MASKED), found 'causal' (str)."),
        ({"limit": "a"}, "limit: expected int | None, found 'a' (str)."),
        ({"implicit": "a"}, "implicit: expected int | None, found 'a' (str)."),
        ({"sizes": (1,)}, "sizes: expected list[int], found (1,) (tuple)."),
        ({"sizes": ["a"]}, "sizes[0]: expected int, found 'a' (str)."),
        ({"pair": (1,)}, "pair: expected tuple[int, float], found (1,) (tuple)."),
    ],
)
def test_plain_annotations_are_enforced(fields, text):
    assert error_of(config_for, typed, **fields) == f"{HERE}.typed.{text}"


def test_annotation_that_cannot_be_read_is_not_enforced():
    assert config_for(unreadable, "a").build() == "a"


def test_default_none_is_allowed_whatever_the_annotation():
    assert config_for(typed, implicit=None, limit=None).build()["implicit"] is None


def test_arguments_of_build_are_refused():
    text = "support.configs.power: set x, scale as fields, not in build()."
    assert error_of(config_for(power).build, x=1, scale=2) == text


def test_missing_arguments_are_reported_together():
    assert error_of(config_for(mixed).build) == (
        f"config_for({HERE}.mixed): 2 required fields are not set:\n"
        "  a: int\n"
        "  b: str\n"
        "  Set them, as in cfg.set_in('a', ...)."
    )


def test_missing_arguments_of_nested_configs_are_reported_with_their_paths():
    cfg = config_for(call, config_for(power), [config_for(square)], key=config_for(mixed, b="x"))
    assert error_of(cfg.build) == (
        f"config_for({HERE}.call): 3 required fields are not set:\n"
        "  args[0].x: float\n"
        "  args[1][0].x: float\n"
        "  kwargs.key.a: int\n"
        "  Set them, as in cfg.set_in('args[0].x', ...)."
    )


# Nested.


def test_configs_among_the_arguments_are_built_first():
    three = config_for(power, 3.0)
    cfg = config_for(call, three, [three, (three,)], {"a": three}, key=three, plain=[1])
    assert cfg.build() == ((9.0, [9.0, (9.0,)], {"a": 9.0}), {"key": 9.0, "plain": [1]})


def test_config_is_built_where_a_plain_value_is_expected():
    assert config_for(power, config_for(power, 3.0), exponent=config_for(square, 2.0)).build() == 9.0**4.0


def test_function_gets_containers_it_may_change():
    args, kwargs = config_for(call, [1, [2]], {"a": [3]}, key=[4]).build()
    built = plainly = config_for(plainly_typed, 1, sizes=[1, 2], table={"a": 1}).build()
    for container in (args[0], args[0][1], args[1]["a"], kwargs["key"], built["sizes"]):
        assert type(container) is list
    for container in (args[1], kwargs, plainly["table"]):
        assert type(container) is dict


def test_function_that_changes_its_argument_does_not_change_the_config():
    cfg = config_for(plainly_typed, 1)
    cfg.build()["sizes"].append(3)
    assert cfg.build()["sizes"] == [1]


def test_parameter_annotated_as_config_gets_the_config():
    norm = Norm.Config(dim=3)
    assert config_for(takes_config, norm, [norm], other=norm).build()[:2] == (norm, [norm])
    assert isinstance(config_for(takes_config, norm, other=norm).build()[2], Norm)
    assert error_of(config_for, takes_config, config_for(power)) == (
        f"{HERE}.takes_config.norm: expected Norm.Config, found config_for(support.configs.power) (a config)."
    )


def test_configs_of_one_function_with_the_same_arguments_are_equal_however_given():
    assert config_for(power, 1, exponent=3) == config_for(power, x=1.0, exponent=3.0)
    assert config_for(mixed, 1, "x", e=1) == config_for(mixed, 1, "x", more={"e": 1})
    assert config_for(power, 1) != config_for(power, 2)
    assert config_for(square, 1) != config_for(power, 1)


def test_text_names_the_function_and_its_arguments():
    assert to_text(config_for(power, config_for(square), exponent=REQUIRED)) == (
        "(root) = config_for(support.configs.power)\n"
        "x = config_for(support.configs.square)\n"
        "x.x = REQUIRED\n"
        "exponent = REQUIRED\n"
    )


def test_chain_of_optax_with_a_schedule_updates_exactly_as_the_real_one():
    schedule = config_for(optax.warmup_cosine_decay_schedule, 0.0, 0.1, warmup_steps=2, decay_steps=10)
    cfg = config_for(
        optax.chain,
        config_for(optax.clip_by_global_norm, 1.0),
        config_for(optax.adamw, schedule, b2=0.95, weight_decay=0.1),
    )
    real = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10), b2=0.95, weight_decay=0.1),
    )
    ours = cfg.build()
    params = {"a": jnp.arange(3.0), "b": jnp.ones((2, 2))}
    got, want = (params, ours.init(params)), (params, real.init(params))
    for step in range(4):
        grads = jax.tree.map(lambda x, scale=step + 1.0: jnp.cos(x) * scale, params)
        got, want = one_step(ours, grads, *got), one_step(real, grads, *want)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert float(jnp.abs(got[0]["a"] - params["a"]).max()) > 0.01


def one_step(optimizer: Any, grads: Any, params: Any, state: Any) -> tuple[Any, Any]:
    with jax.numpy_dtype_promotion("standard"):  # The schedules of optax need it.
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state
