# SPDX-License-Identifier: Apache-2.0
"""Pictures of compiled and predicted steps."""

import pytest

import draw_pictures
from dovetail.plan import Passage, Prediction, Report, compile_picture, prediction_picture
from support.drawn import SVG, check_texts, checked, hints, texts

HOSTILE = "<script>&" + "\x1b\u202e" + "x" * 300

PASSAGES = [Passage("model.stack.layer", False, 32, 1.0, 0.1, 0.3), Passage("model.head", True, 1, 0.2, 0.0, 0.0)]


def _report(**more) -> Report:
    figures = {
        "hardware": "tpu-v5p-8",
        "chips": 4,
        "mesh": {"fsdp": 4},
        "remat": "full",
        "num_microbatches": 2,
        "unit": "token",
        "units_per_step": 8,
        "parameters": 9,
        "fits": True,
        "hbm_per_chip_gib": 30.0,
        "hbm_limit_gib": 40.0,
        "hbm": {"parameters": 10.0, "optimizer": 12.0, "activations": 5.0, "temporaries": 2.0, "other": 1.0},
        "hbm_by_path": {f"model.part{i}": {"parameters": 10.0 - i / 2, "temporaries": 0.1} for i in range(20)},
        "host_per_chip_gib": 0.0,
        "model_flops": 1.0,
        "full_model_flops": 1.0,
        "hardware_flops": 1.0,
        "copied_gib": 0.0,
        "collectives": [],
        "kernels": [],
        "compile_seconds": 1.0,
        "versions": {},
    }
    return Report(**{**figures, **more})


def _prediction(**more) -> Prediction:
    figures = {
        "hardware": "tpu-v5p-8",
        "unit": "token",
        "step_seconds": 2.0,
        "interval": (1.5, 2.6),
        "mfu": 0.5,
        "full_mfu": 0.5,
        "units_per_second_per_chip": 100.0,
        "cost_per_trillion_units": None,
        "breakdown": {"products": 1.5, "exposed, fsdp": 0.4, "attention": 0.1},
        "method": "compiled",
        "assumptions": [],
        "versions": {},
    }
    return Prediction(**{**figures, **more})


def test_memory_is_in_the_frame_of_what_a_chip_has():
    root = checked(compile_picture("small", _report()))
    check_texts(root)
    frame, *parts = [each for each in root.iter(f"{SVG}rect") if float(each.get("y", 0)) in (86, 89)]
    wide = sum(float(each.get("width", 0)) + 1 for each in parts)
    assert wide == pytest.approx(float(frame.get("width", 0)) * 30 / 40, abs=len(parts))
    assert {"small on tpu-v5p-8: fits", "memory of a chip: 30.0 GiB of 40.0 GiB", "8 more"} <= set(texts(root))


def test_what_does_not_fit_goes_over_the_frame():
    root = checked(compile_picture("small", _report(fits=False, hbm_limit_gib=20.0)))
    check_texts(root)
    assert {"small on tpu-v5p-8: does not fit", "a chip has 20.0 GiB"} <= set(texts(root))


def test_a_step_in_its_order_says_what_is_sent_beside_other_work_and_what_is_waited_for():
    root = checked(compile_picture("small", _report(timeline=PASSAGES)))
    check_texts(root)
    assert "stack.layer \N{MULTIPLICATION SIGN}32" in texts(root)
    said = hints(root)
    assert any("computes 1 s, waits 100 ms" in hint for hint in said)
    assert any("sent beside other work, 300 ms" in hint for hint in said)


def test_a_prediction_shows_its_parts_its_interval_and_its_paths():
    root = checked(
        prediction_picture("small", _prediction(by_path={"model.stack": 1.9, "other": 0.1}, timeline=PASSAGES))
    )
    check_texts(root)
    assert {"small on tpu-v5p-8: a step takes 2 s", "products", "exposed, fsdp", "model.stack"} <= set(texts(root))
    bar = [each for each in root.iter(f"{SVG}rect") if each.get("y") == "62"]
    assert sum(float(each.get("width", 0)) + 1 for each in bar) == pytest.approx(720 * 2.0 / 2.6, abs=2)


def test_names_of_others_are_text():
    check_texts(
        checked(compile_picture(HOSTILE, _report(hbm_by_path={HOSTILE: {"parameters": 1.0}}, mesh={HOSTILE: 2})))
    )
    long = [Passage(HOSTILE, True, 1, 1.0, 1.0, 1.0)] * 3
    found = _prediction(breakdown={HOSTILE: 2.0}, by_path={HOSTILE: 2.0}, timeline=long)
    check_texts(checked(prediction_picture(HOSTILE, found)))


def test_a_notebook_shows_them():
    assert "on tpu-v5p-8: a step takes 2 s" in _prediction()._repr_svg_()
    assert "on tpu-v5p-8: fits" in _report()._repr_svg_()


def test_what_was_recorded_is_what_its_bars_show():
    found = draw_pictures._recorded("compile")
    assert sum(found["hbm"].values()) == pytest.approx(found["hbm_per_chip_gib"])
