# SPDX-License-Identifier: Apache-2.0
"""Executes the notebooks of the documents: `python tools/run_notebook.py [--update] [NOTEBOOK ...]`.

Code cells run in order, in one module and a directory of their own, as Jupyter runs them: what a cell prints and what
its last expression shows (`_repr_html_`, `_repr_svg_`, else its repr) are its outputs. They must be those in the file;
figures may differ in what is not text, as pictures of measured times do. `--update` writes them there. No kernel is
needed for it, nor anything else of Jupyter.
"""

import argparse
import ast
import contextlib
import io
import json
import re
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

_NUMBER = re.compile(r"-?\d[\d.,]*(e[+-]?\d+)?[KMGT]?( (s|minutes?|hours?|days?)\b)?")  # 719 may be 19.3K elsewhere.
_EMBEDDED = re.compile(r"base64,[\w+/=]+")
_RICH = {"_repr_html_": "text/html", "_repr_svg_": "image/svg+xml"}


def notebooks(root: Path = ROOT) -> list[Path]:
    """Returns the notebooks that must run."""
    return sorted((root / "docs").rglob("*.ipynb"))


def run_notebook(file: Path, *, update: bool = False) -> list[str]:
    """Executes a notebook, and returns what is wrong with it."""
    content = json.loads(file.read_text("utf-8"))
    problems: list[str] = []
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        for count, cell in enumerate(cells, 1):
            found = _executed("".join(cell["source"]), names, count)
            if not update and _compared(found) != _compared(cell["outputs"]):
                shown, got = (json.dumps(_compared(each), indent=1)[:2000] for each in (cell["outputs"], found))
                problems.append(f"{file}: cell {count} shows\n{shown}\nexpected by its code\n{got}")
            cell["outputs"], cell["execution_count"] = found, count
            if any(each["output_type"] == "error" for each in found):
                problems.append(f"{file}: cell {count} raises:\n{''.join(found[-1]['traceback'])}")
                break
    if update:
        file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return problems


def _executed(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Returns the outputs of a cell."""
    tree, printed, found = ast.parse(source), io.StringIO(), list[dict[str, Any]]()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value: Any = None
    error: dict[str, Any] | None = None
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(tree, f"<cell {count}>", "exec", dont_inherit=True), names)
            if isinstance(last, ast.Expr):
                code = compile(ast.Expression(last.value), f"<cell {count}>", "eval", dont_inherit=True)
                value = eval(code, names)
        except Exception as e:
            error = {"output_type": "error", "ename": type(e).__name__, "evalue": str(e)}
            error["traceback"] = [traceback.format_exc()]
    if printed.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if error is not None:
        return [*found, error]
    if value is not None:
        data = _shown(value)
        found.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return found


def _shown(value: Any) -> dict[str, list[str]]:
    """Returns what a notebook shows of a value: the richest that there is, to keep the file small."""
    rich = {kind: getattr(type(value), method)(value) for method, kind in _RICH.items() if hasattr(value, method)}
    return {kind: _lines(text) for kind, text in rich.items()} or {"text/plain": _lines(repr(value))}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _compared(outputs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Returns outputs as they are compared: in HTML and pictures, without what differs from run to run."""
    found: list[Any] = []
    for each in outputs:
        if each["output_type"] != "execute_result":
            found.append([each["output_type"], "".join(each.get("text", []))])
            continue
        for kind, text in each["data"].items():
            whole = _EMBEDDED.sub("", "".join(text))
            found.append([kind, whole if kind == "text/plain" else _NUMBER.sub("0", whole)])
    return found


def main() -> int:
    """Runs the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--update", action="store_true", help="write the outputs")
    args = parser.parse_args()
    files = [each.resolve() for each in args.notebooks] or notebooks()
    problems = [problem for file in files for problem in run_notebook(file, update=args.update)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
