# SPDX-License-Identifier: Apache-2.0
"""Files that mean harm: reading one imports nothing that is not trusted, calls nothing, and ends in a ConfigError."""

import json
import subprocess
import sys
from typing import Any

import pytest

from dovetail.config import ConfigError, from_json, modules_named, to_json
from dovetail.config._importing import import_object
from support.hostile import FUNCTION, ways_to_name


def file_with(value: Any) -> str:
    return json.dumps({"$format": 1, "$config": FUNCTION, "$of": "optax:masked", "inner": value, "mask": [1]})


OUTSIDE = [
    "os:system",
    "posix:system",
    "subprocess:run",
    "subprocess:Popen",
    "builtins:eval",
    "builtins:exec",
    "builtins:open",
    "builtins:getattr",
    "builtins:type",
    "importlib:import_module",
    "pickle:loads",
    "runpy:run_path",
    "sys:exit",
    "jaxevil:f",
    "jax_evil:f",
    "numpyx.linalg:norm",
    "jaxlib:version",
    "__main__:f",
    "tests.config.test_json:Renamed",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_reference_outside_the_trusted_modules_is_refused_whatever_the_tag(path):
    for value in ways_to_name(path):
        with pytest.raises(ConfigError) as e:
            from_json(file_with(value))
        assert str(e.value) == (
            f"{'inner[0]' if value.keys() & {'$set', '$tuple'} else 'inner'}: "
            f"{path} is not among what a config file may refer to.\n"
            f"  If you trust the file, pass allow=(..., {path.partition(':')[0].partition('.')[0]!r})."
        )


@pytest.mark.parametrize("path", OUTSIDE)
def test_reference_at_the_root_is_refused(path):
    for value in ways_to_name(path)[1:4]:
        with pytest.raises(ConfigError) as e:
            from_json(json.dumps({"$format": 1, **value}))
        assert str(e.value).startswith(f"(root): {path} is not among what a config file may refer to.\n")


ROUNDABOUT = [
    "numpy:os.system",
    "numpy.testing._private.utils:os.system",
    "numpy.f2py:os.system",
    "jax._src.xla_bridge:os.system",
    "jax._src.api:inspect.getsource",
    "dovetail.config._importing:importlib.import_module",
    "dovetail.config._importing:sys.exit",
    "dovetail.config:ConfigBase.__init__.__globals__",
    "dovetail.config:ConfigBase.__init__.__builtins__",
    "dovetail.config:ConfigBase.__init__.__globals__.get",
    "dovetail.config:ConfigBase.__init__.__code__",
    "dovetail.config:ConfigBase.__init__.__code__.replace",
    "dovetail.config:ConfigBase.__subclasses__",
    "dovetail.config:ConfigBase.__class__",
    "dovetail.config:ConfigBase.__base__.__subclasses__",
    "dovetail.config:ConfigBase.__mro__",
    "dovetail.config:ConfigBase.__dict__",
    "jax.nn:silu.__class__",
    "jax.nn:silu.__wrapped__.__globals__",
    "jax.nn:silu.__wrapped__.__globals__.get",
    "jax:config.update",
    "jax:__builtins__",
    "jax:__builtins__.get",
    "numpy:__builtins__.get",
    "numpy:__loader__.load_module",
    "numpy:__loader__.get_data",
    "numpy:__spec__.loader",
    "numpy:ndarray.__reduce__.__class__",
    "numpy:eval",
    "builtins:__import__",
    "numpy.f2py.__main__:main",
    "numpy.f2py.__main__.x:main",
]


@pytest.mark.parametrize("path", ROUNDABOUT)
def test_way_from_a_trusted_module_to_something_else_is_closed_whatever_the_tag(path):
    for value in ways_to_name(path):
        with pytest.raises(ConfigError):
            from_json(file_with(value))


@pytest.mark.parametrize(
    "path",
    [
        "dovetail.config._importing:import_object",  # import_object("os:system") needs no permission
        "dovetail.config._json:decode_trusted",
        "numpy.testing._private.utils:runstring",  # is exec
    ],
)
def test_private_function_that_would_run_anything_cannot_be_what_a_config_calls(path):
    with pytest.raises(ConfigError):
        from_json(json.dumps({"$format": 1, "$config": FUNCTION, "$of": path}))


def test_built_file_cannot_run_a_command(tmp_path):
    """Puts together what reading allows: a function that finds `os.system`, and one that calls it."""
    target = tmp_path / "owned"
    find = {"$config": FUNCTION, "$of": "dovetail.config._importing:import_object", "path": "os:system"}
    text = json.dumps(
        {
            "$format": 1,
            "$config": FUNCTION,
            "$of": "jax.tree_util:tree_map",
            "f": find,
            "tree": f"touch {target}",
        }
    )
    with pytest.raises(ConfigError):
        from_json(text).build()
    assert not target.exists()


def test_built_file_cannot_reach_eval(tmp_path):
    """The same, by way of the attributes of a trusted module."""
    target = tmp_path / "owned"
    find = {"$config": FUNCTION, "$of": "numpy:__builtins__.get", "key": "eval"}
    code = f"__import__('pathlib').Path({str(target)!r}).touch()"
    text = json.dumps({"$format": 1, "$config": FUNCTION, "$of": "jax.tree_util:tree_map", "f": find, "tree": code})
    with pytest.raises(ConfigError):
        from_json(text).build()
    assert not target.exists()


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A package `trap_package` and a module `jaxtrap` that leave a file when they are imported."""
    note = tmp_path / "imported"
    leave_note = f"open({str(note)!r}, 'w').close()\ndef f(): pass\n"
    (tmp_path / "trap_package").mkdir()
    for name in ("trap_package/__init__.py", "trap_package/inner.py", "trap_package/__main__.py", "jaxtrap.py"):
        (tmp_path / name).write_text(leave_note)
    monkeypatch.syspath_prepend(tmp_path)
    return note


@pytest.mark.parametrize("path", ["trap_package:f", "trap_package.inner:f", "trap_package.__main__:f", "jaxtrap:f"])
def test_module_outside_the_trusted_ones_is_never_imported(trap, path):
    for value in ways_to_name(path):
        with pytest.raises(ConfigError):
            from_json(file_with(value))
        with pytest.raises(ConfigError):
            from_json(json.dumps({"$format": 1, "$config": path, "value": value}))
    assert not trap.exists()
    assert not {"trap_package", "jaxtrap"} & set(sys.modules)


def test_trap_works(trap):
    subprocess.run([sys.executable, "-c", "import jaxtrap"], cwd=trap.parent, check=True)
    assert trap.exists()


def test_main_program_of_an_allowed_package_is_not_run(tmp_path, monkeypatch):
    package = tmp_path / "allowed_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef f(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for path in ("allowed_package.__main__:f", "allowed_package.__main__.deeper:f"):
        for value in ways_to_name(path):
            with pytest.raises(ConfigError):
                from_json(file_with(value), allow=["allowed_package"])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("depth", [50, 1_000, 100_000])
@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}"), ('{"$tuple":[', "]}")])
def test_deep_nesting_is_read_or_refused_but_does_not_overflow(depth, opening, closing):
    value = opening * depth + "1" + closing * depth
    text = '{"$format": 1, "$config": "support.configs:Record", "value": ' + value + "}"
    if depth <= 50:
        cfg = from_json(text, allow=["support"])
        assert hash(cfg) == hash(from_json(to_json(cfg), allow=["support"]))
    else:
        with pytest.raises(ConfigError, match="nested"):
            from_json(text, allow=["support"])


ODD = {
    "1" * 5000: "111111111... (5000 digits) is not a number that a file may hold",
    str(10**400): "100000000... (401 digits) is not a number that a file may hold",
    str(-(10**400)): "-10000000... (402 digits) is not a number that a file may hold",
    "NaN": "NaN is not a number that a file may hold",
    "-Infinity": "-Infinity is not a number that a file may hold",
    "1e999": "1e999 is not a number that a file may hold",
    '{"a": 1, "b": 2, "a": 3}': "the key 'a' stands twice in one object.",
}


@pytest.mark.parametrize("value", ODD, ids=[name[:12] for name in ODD])
def test_number_that_no_float_holds_and_a_key_that_stands_twice_are_one_clear_error(value):
    text = '{"$format": 1, "$config": "support.configs:Record", "value": [' + value + "]}"
    with pytest.raises(ConfigError) as e:
        from_json(text, allow=["support"])
    assert str(e.value).startswith(f"not a config: {ODD[value]}")


def test_the_longest_number_fits_a_float():
    text = '{"$format": 1, "$config": "support.configs:Norm.Config", "eps": ' + "9" * 308 + "}"
    assert from_json(text, allow=["support"]).eps == 1e308


@pytest.mark.parametrize("value", ['{"$dict": [[1, 2], [1, 3]]}', '{"$dict": [[1, 2], [true, 3]]}', '{"$set": [1, 1]}'])
def test_key_that_stands_twice_in_a_dict_or_set_is_refused(value):
    with pytest.raises(ConfigError, match=r"^value: a (key|value) stands twice in "):
        from_json(f'{{"$format": 1, "$config": "support.configs:Record", "value": {value}}}', allow=["support"])


def test_text_that_could_not_be_written_again_is_refused():
    with pytest.raises(ConfigError, match=r"^not a JSON file: .*surrogate"):
        from_json('{"$format": 1, "$config": "support.configs:Record", "value": "\\ud800"}', allow=["support"])


@pytest.mark.parametrize("text", ["", '{"a"', "[" * 100_000, '{"a": "\\ud800"}', '{"a": 1, "a": 2}', '{"a": NaN}'])
def test_modules_of_a_file_that_is_no_config_get_the_error_that_reading_it_does(text):
    errors: list[str] = []
    for read in (modules_named, from_json):
        with pytest.raises(ConfigError) as e:
            read(text)
        errors.append(str(e.value))
    assert errors[0] == errors[1]


def test_partial_of_a_file_holds_no_config():
    inner = {"$config": "support.configs:Norm.Config"}
    value = {"$partial": {"$import": "jax.nn:gelu"}, "args": [inner], "keywords": {}}
    with pytest.raises(ConfigError, match="no path could name a config there"):
        from_json(json.dumps({"$format": 1, "$config": "support.configs:Record", "value": value}), allow=["support"])


def test_file_cannot_shadow_the_methods_of_a_config():
    for name in ("set", "build", "_explicit", "__dict__", "__class__"):
        with pytest.raises(ConfigError) as e:
            from_json(json.dumps({"$format": 1, "$config": "support.configs:Record", name: 1}), allow=["support"])
        assert f"has no field {name!r}" in str(e.value)


def test_allowed_modules_given_as_one_text_are_refused():
    """`allow="abc"` would mean the modules a, b and c."""
    with pytest.raises((ConfigError, TypeError)) as e:
        from_json('{"$format": 1, "$config": "support.configs:Record"}', allow="support")
    assert str(e.value) == "allow: expected a list of module names, found 'support' (str)."


def test_small_file_does_not_take_exponential_time(monkeypatch):
    """Keys in keys in keys: each is read once."""
    value: Any = {"$import": "support.configs:square"}
    for _ in range(10):
        value = {"$dict": [[value, 1]]}
    seen: list[str] = []
    monkeypatch.setattr(
        "dovetail.config._json.import_object",
        lambda path, *, allow: seen.append(path) or import_object(path, allow=allow),
    )
    from_json(json.dumps({"$format": 1, "$config": "support.configs:Record", "value": value}), allow=["support"])
    assert seen == ["support.configs:Record", "support.configs:square"]
