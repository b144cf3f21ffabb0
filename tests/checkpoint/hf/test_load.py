# SPDX-License-Identifier: Apache-2.0
"""Weights read from files: on any mesh and in any dtype what they are on one device; nothing is shared with a file."""

import random
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from safetensors.numpy import load_file, save_file

from checkpoint.helpers import mesh
from dovetail.checkpoint.hf import PublishedWeights
from dovetail.config import ConfigError
from dovetail.nn import Repeat, Sequence
from dovetail.progress import phase
from support.counts import counted
from support.published import random_weights, write_weights
from support.stacks import KINDS, ROWS, model_of, shapes_of

SIZES = {"ffn.num_experts": 4, "ffn.hidden_dim": 4, "mixer.num_heads": 4, "mixer.head_dim": 2}
EXPERTS = KINDS["experts"]
for _path, _size in SIZES.items():
    EXPERTS = EXPERTS.set_in(_path, _size)
# Stacked and not stacked, one inside of another, and a pattern with a remainder.
STACK = Sequence.Config(
    layers=(
        KINDS["states"],
        Repeat.Config(layer=EXPERTS, num_layers=4),
        Repeat.Config(layer=Repeat.Config(layer=KINDS["dense"], num_layers=2), num_layers=2),
        Repeat.Config(layer=(KINDS["states"], EXPERTS), num_layers=3),
    )
)
MODEL = model_of(STACK, vocab_size=8, dim=8, head=None)
PARAMS = random_weights(MODEL)
LOOKED_AT = {  # A few of each form, as each shape is a program to compile.
    "embedding.table": [(), ("a",), ("b", "a")],
    "norm.scale": [(), ("a",)],
    "stack.layers[0].mixer.gate.weight": [("a",), (None, "b")],
    "stack.layers[1].layer.ffn.up.weight": [
        ("a",),
        (None, "a"),
        ("b", "a"),
        (("a", "b"),),
        (None, "a", "b"),
        (None, None, None, "a"),
    ],
    "stack.layers[1].layer.mixer.out.weight": [("a", "b"), (None, None, None, "a"), (None, ("b", "a"))],
    "stack.layers[2].layer.layer.ffn.down.weight": [("b",), (None, "b"), (None, None, None, "a")],
    "stack.layers[3].layer[2].mixer.gate.weight": [(None, "a")],
}  # fmt: skip


def opened(directory: Path, model: Any = MODEL, **options) -> PublishedWeights:
    return PublishedWeights(str(directory), ROWS, model.stack, shapes_of(model), **options)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    found = {}
    for dtype in ("float32", "bfloat16", "float16"):
        found[dtype] = tmp_path_factory.mktemp(dtype)
        write_weights(found[dtype], MODEL, PARAMS, dtype=dtype)
    return found


def wanted_on(grid: Any, dtype: Any, rng: random.Random) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns what to ask for, each on one of its shardings that fit a mesh."""
    found = {}
    for path, specs in LOOKED_AT.items():
        shape = PARAMS[path].shape
        fitting = [P(*spec) for spec in specs if _fits(grid, spec, shape)]
        place = NamedSharding(grid, rng.choice(fitting or [P()]))
        found[path] = jax.ShapeDtypeStruct(shape, dtype, sharding=place)
    return found


def _fits(grid: Any, spec: Any, shape: tuple[int, ...]) -> bool:
    axes = [(each,) if isinstance(each, str) else each or () for each in spec]
    if any(axis not in grid.shape for each in axes for axis in each):
        return False
    counts = [int(np.prod([grid.shape[axis] for axis in each])) for each in axes]
    return all(size % count == 0 for size, count in zip(shape, counts, strict=False))


CASES = [
    ("float32", "float32", (8,)),
    ("bfloat16", "float32", (2, 4)),
    ("float16", "bfloat16", (4, 2)),
    ("float32", "bfloat16", (2, 2)),
    ("float16", "float32", (2, 1)),
]


@pytest.fixture(params=["device", "host"])
def place(request, monkeypatch):
    """Where small parts are put together, as large ones are or as they are."""
    if request.param == "device":
        monkeypatch.setattr("dovetail.checkpoint.hf._load._SMALL_BYTES", 0)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("stored, dtype, sizes", CASES, ids=lambda value: str(value))
def test_any_mesh_gives_what_one_device_gives(directories, stored, dtype, sizes):
    rng = random.Random(str(sizes))
    with opened(directories[stored]) as weights:
        assert {info.dtype for info in weights.leaves().values()} == {stored}
        assert {path: info.shape for path, info in weights.leaves().items()} == shapes_of(MODEL)
        wanted = wanted_on(mesh(*sizes), jnp.dtype(dtype), rng)
        counts = []
        with counted(lambda name, count: counts.append((count.done, count.total))), phase("reading"):
            found = weights.read(wanted)
    size = sum(leaf.size * jnp.dtype(dtype).itemsize for leaf in found.values())
    assert counts[-1] == (pytest.approx(size), size)
    assert counts == sorted(counts)
    for path, leaf in found.items():
        assert (leaf.dtype, leaf.sharding) == (wanted[path].dtype, wanted[path].sharding), path
        # The values are exact in all of these dtypes.
        np.testing.assert_array_equal(np.asarray(leaf, np.float32), PARAMS[path], path)


@pytest.mark.usefixtures("place")
def test_the_layers_of_a_pipeline_and_the_experts_of_a_device_are_its_own(directories):
    path = "stack.layers[1].layer.ffn.up.weight"
    wanted = jax.ShapeDtypeStruct(PARAMS[path].shape, jnp.float32, sharding=NamedSharding(mesh(2, 4), P("a", "b")))
    with opened(directories["float32"]) as weights:
        found = weights.read({path: wanted})[path]
    assert {shard.data.shape for shard in found.addressable_shards} == {(2, 1, 8, 4)}
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(shard.data, PARAMS[path][shard.index])


@pytest.mark.usefixtures("place")
def test_all_parameters_come_onto_one_device_rounded_as_numpy_rounds(tmp_path):
    """Values with more digits than the dtypes hold."""
    model = model_of(Repeat.Config(layer=KINDS["dense"], num_layers=2))
    rng = np.random.default_rng(0)
    params = {path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes_of(model).items()}
    one = SingleDeviceSharding(jax.devices()[3])
    write_weights(tmp_path, model, params, dtype="float16")
    with opened(tmp_path, model) as weights:
        wanted = {p: jax.ShapeDtypeStruct(v.shape, jnp.bfloat16, sharding=one) for p, v in params.items()}
        found = weights.read(wanted)
    assert set(found) == set(params)
    for path, leaf in found.items():
        assert leaf.devices() == {jax.devices()[3]}
        np.testing.assert_array_equal(np.asarray(leaf), params[path].astype(np.float16).astype(jnp.bfloat16), path)


@pytest.mark.usefixtures("place")
def test_files_of_float64_are_read_as_float32(tmp_path):
    model = model_of(KINDS["dense"])
    params = random_weights(model)
    write_weights(tmp_path, model, params, dtype="float64")
    with opened(tmp_path, model) as weights:
        assert {info.dtype for info in weights.leaves().values()} == {"float32"}
        found = weights.read({"norm.scale": jax.ShapeDtypeStruct((6,), jnp.float32)})
    np.testing.assert_array_equal(found["norm.scale"], params["norm.scale"])


@pytest.mark.usefixtures("place")
def test_a_parameter_whose_tensors_are_of_several_dtypes_has_the_widest(tmp_path):
    model = model_of(Repeat.Config(layer=KINDS["dense"], num_layers=2))
    params = random_weights(model)
    write_weights(tmp_path, model, params)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.{}.mlp.up_proj.weight"
    tensors[name.format(0)] = tensors[name.format(0)].astype(jnp.bfloat16)
    tensors[name.format(1)] = tensors[name.format(1)].astype(np.float16)
    save_file(tensors, file)
    with opened(tmp_path, model) as weights:
        info = weights.leaves()["stack.layer.ffn.up.weight"]
        assert info.dtype == "float32", "both fit in it, and in nothing smaller"
        found = weights.read({"stack.layer.ffn.up.weight": jax.ShapeDtypeStruct(info.shape, jnp.float32)})
    np.testing.assert_array_equal(found["stack.layer.ffn.up.weight"], params["stack.layer.ffn.up.weight"])


# Copies.


def with_copy(directory: Path, change) -> None:
    write_weights(directory, model_of(KINDS["dense"], head=None), random_weights(model_of(KINDS["dense"], head=None)))
    file = directory / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = change(tensors["model.embed_tokens.weight"].copy())
    save_file(tensors, file)


def changed(table: np.ndarray) -> np.ndarray:
    table[3, 2] += 1
    return table


def test_a_copy_that_is_equal_may_be_there(tmp_path):
    with_copy(tmp_path, lambda table: table)
    with opened(tmp_path, model_of(KINDS["dense"], head=None)) as weights:
        assert "head.weight" not in weights.leaves()


@pytest.mark.parametrize("change", [changed, lambda table: table[:-1], lambda table: table.T.copy()])
def test_a_copy_that_differs_is_refused(tmp_path, change):
    with_copy(tmp_path, change)
    with pytest.raises(ConfigError) as e:
        opened(tmp_path, model_of(KINDS["dense"], head=None))
    assert str(e.value) == (
        f"{tmp_path}: lm_head.weight is not equal to model.embed_tokens.weight, "
        "but config.json says that both are one\n"
        "  (tie_word_embeddings). Set that to false if the model has both. Nothing was loaded."
    )


# Files that change.


def test_a_file_that_grows_or_shrinks_while_it_is_open_is_refused(tmp_path):
    model = model_of(KINDS["dense"])
    write_weights(tmp_path, model, random_weights(model))
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    wanted = {"norm.scale": jax.ShapeDtypeStruct((6,), jnp.float32)}
    for now in (content + b"x", content[:-1]):
        file.write_bytes(content)
        with opened(tmp_path, model) as weights:
            file.write_bytes(now)
            expected = re.escape(f"has {len(now):,} bytes, had {len(content):,} when it was opened")
            with pytest.raises(ConfigError, match=expected):
                weights.read(wanted)


def test_a_file_that_is_replaced_is_read_as_it_was_when_opened(tmp_path):
    model = model_of(KINDS["dense"])
    params = random_weights(model)
    write_weights(tmp_path, model, params)
    with opened(tmp_path, model) as weights:
        write_weights(tmp_path / "other", model, random_weights(model, seed=1))
        (tmp_path / "other" / "model.safetensors").replace(tmp_path / "model.safetensors")
        found = weights.read({"embedding.table": jax.ShapeDtypeStruct((7, 6), jnp.float32)})
    np.testing.assert_array_equal(found["embedding.table"], params["embedding.table"])


@pytest.mark.usefixtures("place")
def test_arrays_do_not_change_with_the_file_that_they_are_from(tmp_path):
    model = model_of(Repeat.Config(layer=KINDS["dense"], num_layers=2))
    params = random_weights(model)
    write_weights(tmp_path, model, params)
    file = tmp_path / "model.safetensors"
    with opened(tmp_path, model) as weights:
        found = weights.read({p: jax.ShapeDtypeStruct(v.shape, jnp.float32) for p, v in params.items()})
        before = file.read_bytes()
        with file.open("r+b") as target:  # The same file, of the same size.
            target.write(b"\xff" * len(before))
        for path, leaf in found.items():
            np.testing.assert_array_equal(leaf, params[path], path)


# What a model has besides.


def test_what_the_table_does_not_fill_is_left_out_if_that_is_allowed(tmp_path):
    model = model_of(KINDS["dense"])
    write_weights(tmp_path, model, random_weights(model))
    more = {**shapes_of(model), "extra.weight": (3,)}
    with PublishedWeights(str(tmp_path), ROWS, model.stack, more, partial=True) as weights:
        assert set(weights.leaves()) == set(shapes_of(model))
    with pytest.raises(ConfigError, match=r"(?s)has no place:\n  extra\.weight\n"):
        PublishedWeights(str(tmp_path), ROWS, model.stack, more)


def test_no_file_stays_open_where_something_is_refused(tmp_path):
    model = model_of(KINDS["dense"])
    write_weights(tmp_path, model, random_weights(model))
    count = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ConfigError, match="is missing"):
        opened(tmp_path, model_of(KINDS["experts"]))
    assert len(list(Path("/proc/self/fd").iterdir())) == count
