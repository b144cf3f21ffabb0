# SPDX-License-Identifier: Apache-2.0
"""`ParameterHistograms`: what NumPy counts, on one device and on meshes, and how much each layer has changed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.optim import by_path
from dovetail.parallel import parse_mesh
from dovetail.train import Evaluated, JsonLines, ParameterHistograms
from dovetail.train._heat_map import heat_map
from dovetail.train._program import Program
from dovetail.zoo import recipe
from support.observing import pixels


def program_on(mesh):
    cfg = recipe("llama3-tiny")
    return Program(cfg.set(mesh=parse_mesh(mesh)) if mesh else cfg)


def initial(program):
    state = program.devices.jit(program.init, out_shardings=program.shardings)(jax.random.key(0))
    return state.params


@pytest.mark.parametrize("mesh", ["", "fsdp=2,tensor=2"])
def test_histograms_are_those_of_numpy_wherever_the_parameters_are(mesh):
    program = program_on(mesh)
    params = initial(program)
    evaluator = ParameterHistograms.Config(bins=8).build(path="evaluators.weights", program=program)
    found = evaluator.run(Evaluated(1, params))
    assert set(found.histograms) == set(by_path(params))
    for path, x in by_path(params).items():
        edges, counts = (np.asarray(each) for each in found.histograms[path])
        x = np.asarray(x, np.float32)
        assert (edges[0], edges[-1]) == (x.min(), x.max())
        inner = np.array([(x < edge).sum() for edge in edges[1:-1].astype(np.float32)])
        np.testing.assert_array_equal(np.cumsum(counts), [*inner, x.size])
        np.testing.assert_allclose(counts, np.histogram(x, 8)[0] if x.min() < x.max() else counts, atol=2)
    assert found.metrics == {"not_finite": 0.0}
    assert found.pictures == {}
    sizes = {row[0]: row for row in found.tables["sizes"].rows}
    for path, x in by_path(params).items():
        assert sizes[path][1] == x.size
        np.testing.assert_allclose(sizes[path][2], np.sqrt(np.mean(np.asarray(x, np.float64) ** 2)), rtol=1e-5)
        assert sizes[path][5] is None


def test_changes_are_by_layer_relative_and_survive_that_the_parameters_are_given_away():
    program = program_on("")
    params = initial(program)
    evaluator = ParameterHistograms.Config(bins=4).build(path="evaluators.weights", program=program)
    evaluator.run(Evaluated(1, params))
    up = next(path for path in by_path(params) if path.endswith("up.weight"))
    layers = by_path(params)[up].shape[0]
    scales = 1 + 1e-3 * jnp.arange(layers, dtype=jnp.float32)

    def changed(path, x):
        name = ".".join(str(key.key) for key in path)
        return x * scales.reshape(-1, *[1] * (x.ndim - 1)) if name == up else x * 1.0

    after = jax.tree_util.tree_map_with_path(changed, params)
    jax.tree.map(lambda x: x.delete(), params)
    found = evaluator.run(Evaluated(2, after))
    sizes = {row[0]: row for row in found.tables["sizes"].rows}
    assert sizes[up][5] == pytest.approx(1e-3 * np.sqrt(np.mean(np.arange(layers) ** 2)), rel=0.1)
    assert all(row[5] == 0 for path, row in sizes.items() if path != up)
    shown = pixels(found.pictures["changes"])
    row = list(sizes).index(up) * 10 + 5
    dark, bright = shown[row, 7], shown[row, 14 * (layers - 1) + 7]
    assert bright.sum() > dark.sum()
    assert found.histograms[f"{up}/change"].counts != found.histograms[up].counts


def test_what_is_not_finite_is_counted_and_left_out():
    program = program_on("")
    params = jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(jnp.nan), initial(program))
    evaluator = ParameterHistograms.Config(bins=4).build(path="evaluators.weights", program=program)
    found = evaluator.run(Evaluated(1, params))
    assert found.metrics["not_finite"] == len(by_path(params))
    for path, x in by_path(params).items():
        assert sum(found.histograms[path].counts) == x.size - 1


def test_too_many_bins_are_refused():
    with pytest.raises(ConfigError, match=r"evaluators\.weights\.bins: is 0, expected 1 to 512"):
        ParameterHistograms.Config(bins=0).build(path="evaluators.weights", program=program_on(""))


def test_a_run_writes_what_it_finds_for_who_reads_the_lines(tmp_path):
    cfg = recipe("llama3-tiny").set(
        steps=4,
        directory=str(tmp_path / "run"),
        observers=(JsonLines.Config(),),
        evaluators={"weights": ParameterHistograms.Config(every=2, bins=4)},
    )
    cfg.build().run()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "tables" in line]
    assert steps == [2, 4]
    (picture,) = [line["pictures"]["weights/changes"] for line in lines if "pictures" in line]
    assert picture == "pictures/weights/changes/4.png"
    assert pixels((tmp_path / "run" / picture).read_bytes()).size
    names = {name for line in lines for name in line.get("histograms", {})}
    assert any(name.startswith("weights/") and name.endswith("/change") for name in names)


def test_a_heat_map_has_a_cell_for_each_number_from_dark_to_bright_and_grey_for_none():
    shown = pixels(heat_map(np.array([[0.0, 1.0], [2.0, np.nan]]), 0, 2, cell=(2, 3)))
    assert shown.shape == (4, 6, 3)
    assert shown[0, 0].tolist() == [68, 1, 84]
    assert shown[0, 5].tolist() == [33, 145, 140]
    assert shown[3, 2].tolist() == [253, 231, 37]
    assert shown[3, 3].tolist() == [200, 200, 200]
