# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the documents from what commands have recorded beside them: `python tools/draw_pictures.py`.

`docs/pictures` has what `dovetail compile`, `predict` and `plan` printed with `--json`, and metrics of runs. With
`--record` the first three run again, which takes minutes and needs the compiler for TPUs.
"""

import argparse
import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.cli import main as dovetail
from dovetail.models import MultiTokenPrediction, model_picture
from dovetail.pictures import Picture
from dovetail.plan import Option, Passage, Prediction, Report, compile_picture, options_picture, prediction_picture
from dovetail.progress import read_metrics
from dovetail.runs import curves, find_runs
from dovetail.zoo import recipe

DIRECTORY = Path(__file__).resolve().parents[1] / "docs" / "pictures"
COMMANDS = {
    "compile": ["compile", "llama2-7b", "--on", "tpu-v5p-512"],
    "compile-moe": ["compile", "qwen3-30b-a3b", "--on", "gpu-h100-64", "--no-suggestions"],
    "predict": ["predict", "llama2-7b", "--on", "tpu-v5p-512"],
    "plan": [
        *("plan", "llama2-70b", "--pools", str(DIRECTORY / "pools.toml"), "--tokens", "2T", "--by", "cost"),
        *("--deadline", "60d", "--no-verify"),
    ],
}
_DRAWN = (
    *("hardware", "chips", "mesh", "remat", "num_microbatches", "days", "cost"),
    *("estimated_gib", "compiled_gib", "limit_gib", "fits", "meets_deadline"),
)
MODELS = ("llama3-8b", "qwen3-30b-a3b", "bamba-9b")


def pictures() -> dict[str, Callable[[], Picture]]:
    """Returns what draws each picture, by the name of its file."""
    models = {f"{name}.svg": lambda name=name: model_picture(name, _model(name)) for name in MODELS}
    return {
        **models,
        "deepseek-v3.svg": _deepseek,
        "curves.svg": lambda: _curves(["peak-0.01", "peak-0.1", "peak-0.001"], smooth=0.6),
        "compile.svg": lambda: _compile("compile"),
        "compile-moe.svg": lambda: _compile("compile-moe"),
        "predict.svg": lambda: _predict("predict"),
        "plan.svg": lambda: _plan("plan"),
    }


def _model(name: str) -> Any:
    return recipe(name).model.build(path="model")


def _deepseek() -> Picture:
    model = recipe("deepseek-v3").model
    prediction = MultiTokenPrediction.Config(block=model.stack.layers[-1].layer)
    return model_picture("deepseek-v3", model.set(predictions=(prediction,)).build(path="model"))


def _curves(names: list[str], smooth: float) -> Picture:
    found = find_runs([DIRECTORY / "runs" / name for name in names])
    return curves({name: read_metrics(each) for name, each in found.items()}, smooth=smooth)


def _recorded(name: str) -> dict[str, Any]:
    return json.loads((DIRECTORY / f"{name}.json").read_text("utf-8"))


def _compile(name: str) -> Picture:
    found = _recorded(name)
    units = next(key for key in found if key.endswith("_per_step"))
    figures = {key: value for key, value in found.items() if key not in ("recipe", "cached", units)}
    figures |= {"units_per_step": found[units], "unit": units.removesuffix("s_per_step")}
    figures["timeline"] = [Passage(**each) for each in found["timeline"]]
    return compile_picture(found["recipe"], Report(**figures))


def _predict(name: str) -> Picture:
    found = _recorded(name)
    figures = {key.replace("tokens", "units"): value for key, value in found.items() if key != "recipe"}
    figures |= {"unit": "token", "timeline": [Passage(**each) for each in found["timeline"]]}
    return prediction_picture(found["recipe"], Prediction(**figures))


def _plan(name: str) -> Picture:
    found = _recorded(name)
    title = f"{found['recipe']}: {found['tokens'] / 1e12:g}T tokens, by {found['by']}"
    return options_picture(title, [_option(row, found["tokens"]) for row in found["rows"] if row["days"]], "tokens")


def _option(row: dict[str, Any], units: float) -> Option:
    mesh = ",".join(f"{axis}={size}" for axis, size in row["mesh"].items()) or "one device"
    parts = f", {row['num_microbatches']} parts" if row["num_microbatches"] > 1 else ""
    return Option(
        row["hardware"].rpartition("-")[0],
        row["hardware"],
        f"{mesh}, {row['remat']}{parts}",
        row["chips"],
        row["days"],
        row["cost"],
        row["compiled_gib"] or row["estimated_gib"],
        row["limit_gib"],
        units / (row["days"] * 86_400),
        row["fits"],
        row["meets_deadline"] is False,
    )


def record() -> None:
    """Runs the commands again, and keeps what they print."""
    for name, arguments in COMMANDS.items():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = dovetail([*arguments, "--json", "--picture", str(DIRECTORY / f"{name}.svg")])
        if code not in (0, 3):  # 3: it does not fit.
            raise SystemExit(f"dovetail {' '.join(arguments)} ended with {code}")
        (DIRECTORY / f"{name}.json").write_text(_kept(json.loads(printed.getvalue())), "utf-8")


def _kept(found: dict[str, Any]) -> str:
    """Returns what is kept of a record; of the rows of a plan, which may be hundreds, what is drawn, a line each."""
    if "rows" not in found:
        return json.dumps(found, indent=2) + "\n"
    rows = ",\n".join(json.dumps({key: row[key] for key in _DRAWN}) for row in found["rows"])
    head = json.dumps({"recipe": found["recipe"], "tokens": found["tokens"], "by": found["by"]})
    return f'{head[:-1]}, "rows": [\n{rows}\n]}}\n'


def main() -> None:
    """Draws all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="run the commands again first")
    if parser.parse_args().record:
        record()
    for name, drawn in pictures().items():
        print(drawn().save(DIRECTORY / name))


if __name__ == "__main__":
    main()
