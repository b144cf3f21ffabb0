# SPDX-License-Identifier: Apache-2.0
"""Scaling on paper: curves and their picture."""

import xml.etree.ElementTree as ET

import pytest

from scaling import Point, curves_of, named, picture


@pytest.mark.parametrize(
    "chip, chips, wanted",
    [("gpu-h100", 512, "gpu-h100-512"), ("tpu-v5p", 512, "tpu-v5p-1024"), ("tpu-v5p", 16_384, "tpu-v5p-8192x4")],
)
def test_many_tpus_are_slices(chip, chips, wanted):
    assert named(chip, chips).name == wanted
    assert named(chip, chips).num_chips == chips


@pytest.mark.long
def test_curves_are_of_all_chips_and_a_fixed_batch_does_not_get_better_on_more_of_them():
    curves = curves_of("llama2-7b", ["gpu-h100"], (64, 4096, 16_384))
    assert len(curves) == 2
    for by_chip in curves.values():
        found = by_chip["gpu-h100"]
        assert [point.chips for point in found] == [64, 4096, 16_384]
        assert all(0 < point.mfu < 1 and 0 < point.storage <= point.memory <= 1 for point in found)
    strong = [point.mfu * point.memory for point in list(curves.values())[1]["gpu-h100"]]
    assert strong == sorted(strong, reverse=True)


def test_the_picture_is_svg_with_a_line_for_each_curve_and_way_to_recover():
    point = Point(64, "gpu-h100-64", "fsdp=64", "full", 1, 1.0, 0.5, 0.9, 0.8, 0.1)
    curves = {title: {"gpu-h100": [point, point._replace(chips=128)]} for title in ("weak", "strong")}
    root = ET.fromstring(picture(curves, (64, 128), "llama2-7b").svg)
    lines = [each for each in root if each.tag.endswith("path") and each.get("stroke-width") == "2"]
    assert len(lines) == 6
    y = [float(str(line.get("d")).removeprefix("M").split("L")[0].split()[1]) for line in lines[:3]]
    assert y == sorted(y)  # Alone, from memory, from storage: each lower than the one before.
