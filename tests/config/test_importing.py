# SPDX-License-Identifier: Apache-2.0
"""Import paths: the way from an object to its name and back, and where the way is closed."""

import functools
import math
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import optax.contrib
import pytest

from dovetail.config import ConfigError
from dovetail.config._importing import import_object, import_path
from support.configs import Dense, Kind, Norm, power


class Maker:
    """A class with methods of all sorts."""

    class Inner:
        """A class in a class."""

    @classmethod
    def make(cls) -> "Maker":
        """Returns a new one."""
        return cls()

    @staticmethod
    def build() -> int:
        """Returns a number."""
        return 3


PATHS = [
    (power, "support.configs:power"),
    (Norm.Config, "support.configs:Norm.Config"),
    (Dense.forward, "support.configs:Dense.forward"),
    (Kind, "support.configs:Kind"),
    (int, "builtins:int"),
    (math.sqrt, "math:sqrt"),
    (str.upper, "builtins:str.upper"),
    (Maker.Inner, f"{__name__}:Maker.Inner"),
    (Maker.make, f"{__name__}:Maker.make"),
    (Maker.build, f"{__name__}:Maker.build"),
    (jax.nn.relu, "jax.nn:relu"),
    (jax.nn.silu, "jax.nn:silu"),
    (jax.jit, "jax:jit"),
    (jnp.tanh, "jax.numpy:tanh"),
    (jnp.add, "jax.numpy:add"),
    (jnp.bfloat16, "jax.numpy:bfloat16"),
    (jax.lax.add, "jax.lax:add"),
    (jax.random.normal, "jax.random:normal"),
    (jax.nn.initializers.zeros, "jax.nn.initializers:zeros"),
    (np.add, "numpy:add"),
    (np.float32, "numpy:float32"),
    (np.linalg.norm, "numpy.linalg:norm"),
    (ml_dtypes.float8_e4m3fn, "ml_dtypes:float8_e4m3fn"),
    (optax.adamw, "optax:adamw"),
    (optax.GradientTransformation, "optax:GradientTransformation"),
    (optax.contrib.dpsgd, "optax.contrib:dpsgd"),  # `optax.dpsgd` is there too, and warns.
]


@pytest.mark.parametrize("obj, path", PATHS, ids=[path for _, path in PATHS])
def test_path_is_the_public_one_and_leads_back(obj, path):
    assert import_path(obj) == path
    found = import_object(path)
    assert found == obj
    assert type(found) is type(obj)


def _outer():
    def local():
        pass

    return local


NAMELESS = {
    "lambda": lambda x: x,
    "local function": _outer(),
    "partial": functools.partial(power),
    "bound method": Maker().__repr__,
    "instance": Maker(),
    "jitted lambda": jax.jit(lambda x: x),
    "closure of optax": optax.constant_schedule(1.0),
}


@pytest.mark.parametrize("name", NAMELESS)
def test_object_that_no_path_leads_back_to_has_none(name):
    obj = NAMELESS[name]
    with pytest.raises(ConfigError) as e:
        import_path(obj)
    assert str(e.value) == (
        f"{obj!r} cannot be found again by an import path, so a config holding it could not be saved.\n"
        "  Define it by name at the top level of a module, or wrap what makes it: config_for(make, ...)."
    )


def test_name_that_means_something_else_now_is_not_a_path(monkeypatch):
    old = Maker.Inner
    monkeypatch.setattr(Maker, "Inner", int)
    with pytest.raises(ConfigError, match=r"^<class '.*Maker\.Inner'> cannot be found again by an import path"):
        import_path(old)


@pytest.mark.parametrize(
    "path",
    ["", "numpy", "numpy:", ":add", "numpy.add", "numpy:a b", "numpy:add:b", "nu mpy:add", "numpy:add()", ".numpy:add",
     "numpy:add\n", "numpy.:add", "numpy:.add", "numpy/add:x", "1numpy:add"],
)  # fmt: skip
def test_text_that_is_no_path_is_refused(path):
    with pytest.raises(ConfigError) as e:
        import_object(path)
    assert str(e.value) == f"{path!r} is not an import path. Write 'module:name', as in 'jax.nn:silu'."


def test_module_that_is_not_there_is_named():
    with pytest.raises(ConfigError) as e:
        import_object("nowhere.at_all:x")
    assert str(e.value) == "cannot import module 'nowhere.at_all' of 'nowhere.at_all:x': No module named 'nowhere'."


def test_name_that_is_not_there_suggests_the_nearest():
    with pytest.raises(ConfigError) as e:
        import_object("jax.nn:sillu")
    assert str(e.value) == "module jax.nn has no 'sillu'. Did you mean 'silu'?"
    with pytest.raises(ConfigError) as e:
        import_object("support.configs:Norm.Confg")
    assert str(e.value) == "<class 'support.configs.Norm'> has no 'Confg'. Did you mean 'Config'?"


def test_module_that_fails_to_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('out of order')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as e:
        import_object("broken_module:x")
    assert str(e.value) == "cannot import module 'broken_module' of 'broken_module:x': out of order."


def test_path_may_not_go_through_another_module():
    with pytest.raises(ConfigError) as e:
        import_object("support.configs:math.sqrt")
    text = "'support.configs:math.sqrt' goes through the module 'math'. Name a function or class where it is defined."
    assert str(e.value) == text


@pytest.mark.parametrize("path", ["jax:config.update", "support.configs:square.__globals__", "numpy:__builtins__.get"])
def test_path_goes_through_classes_only(path):
    with pytest.raises(ConfigError) as e:
        import_object(path)
    assert repr(path) in str(e.value)


# With `allow`.


@pytest.mark.parametrize("path", ["support.configs:power", "support.configs:Norm.Config"])
def test_module_at_or_below_an_allowed_one_is_allowed(path):
    assert import_object(path, allow=["support"]) is import_object(path)


@pytest.mark.parametrize(
    "allow, path, refused",
    [
        (("jax",), "os:system", "os:system"),
        (("jax", "numpy"), "builtins:eval", "builtins:eval"),
        (("jax",), "jaxlib:version", "jaxlib:version"),
        (("support.conf",), "support.configs:power", "support.configs:power"),
        (("support.configs",), "support:configs", "support:configs"),
        (("support",), "support.configs:partial_alias", None),
        ((), "math:sqrt", "math:sqrt"),
    ],
)
def test_module_outside_the_allowed_ones_is_refused(allow, path, refused, monkeypatch):
    if refused is None:  # A name in an allowed module for something from elsewhere.
        monkeypatch.setattr(sys.modules["support.configs"], "partial_alias", functools.partial, raising=False)
        refused = "functools:partial_alias"
    with pytest.raises(ConfigError) as e:
        import_object(path, allow=allow)
    assert str(e.value) == (
        f"{refused} is not among what a config file may refer to.\n"
        f"  If you trust the file, pass allow=(..., {refused.partition(':')[0].partition('.')[0]!r})."
    )


def test_module_that_is_not_allowed_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "forbidden_module.py").write_text("def f(): pass")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^forbidden_module:f is not among what"):
        import_object("forbidden_module:f", allow=["forbidden_modul", "forbidden_module2", "forbidden"])
    assert "forbidden_module" not in sys.modules
    import_object("forbidden_module:f", allow=["forbidden_module"])
    assert sys.modules.pop("forbidden_module")


@pytest.mark.parametrize("path", ["{package}.__main__:f", "{package}.__main__.deeper:f"])
def test_main_program_of_a_package_is_never_run(path, tmp_path, monkeypatch):
    package = tmp_path / "some_program"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "some_program", None)
    monkeypatch.delitem(sys.modules, "some_program")
    with pytest.raises(ConfigError):
        import_object(path.format(package="some_program"), allow=["some_program"])
    assert not (package / "ran").exists()


def test_a_name_that_was_says_what_it_is_now():
    with pytest.raises(ConfigError) as e:
        import_object("dovetail.nn:RepeatedBlock.Config")
    assert str(e.value) == "module dovetail.nn has no 'RepeatedBlock'. It is now Repeat."
