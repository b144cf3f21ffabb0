# SPDX-License-Identifier: Apache-2.0
"""An export is one file with all that the page asks for, in which nothing but the page's own scripts runs."""

import base64
import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dovetail.board import DirectoryRuns, Refused, export, named
from dovetail.board import _export as module
from support.boards import PNG, write_metrics, write_run

EVIL = "</script><script>alert(1)</script><!--<script>\u2028]]>&lt;"
FILES = {
    "index.html": "<!doctype html>\n<html>\n<head>\n<title>Board</title>\n"
    '<link rel="stylesheet" href="static/a.css">\n<script src="static/classic.js"></script>\n'
    '<script type="module" src="static/app.js"></script>\n</head>\n<body>\n<noscript>no</noscript>\n</body>\n</html>\n',
    "a.css": "body { color: red }\n",
    "classic.js": "var uPlot = 1;\n",
    "app.js": 'import { b } from "./b.js";\nimport {\n  c,\n} from "./c.js";\nb(c);\n',
    "b.js": 'import { c } from "./c.js";\nexport function b(x) { return x + c; }\n',
    "c.js": "export const c = 1;\n",
}


class Scripts(HTMLParser):
    """The elements of a page as a browser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.found:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)

    def handle_endtag(self, tag: str) -> None:
        self.found.append(("", {}, ""))

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "static_file", lambda name: FILES[name].encode())


def exported(directory: Path, *runs: str) -> Scripts:
    source = DirectoryRuns(directory)
    text = export(source, runs or ["run"]).decode()
    source.close()
    return Scripts(text)


def write_hostile(directory: Path) -> None:
    run = write_run(directory / "run", 5)
    (run / "config.txt").write_text(f"steps = 100\nname = '{EVIL}'\n", encoding="utf-8")
    (run / "pictures").mkdir()
    (run / "pictures/1.png").write_bytes(PNG)
    (run / "pictures/2.png").write_text("<script>alert(1)</script>")
    (run / "launch").mkdir()
    (run / "launch/0.log").write_text(f"{EVIL}\n", encoding="utf-8")
    records = [
        {"step": 5, EVIL: 1.0},
        {"step": 5, "sample": EVIL},
        {"step": 5, "tables": {EVIL: {"columns": [EVIL], "rows": [[EVIL]]}}},
        {"step": 5, "histograms": {EVIL: {"edges": [0, 1], "counts": [1]}}},
        {"step": 5, "pictures": {"p": "pictures/1.png", "q": "pictures/2.png", "r": "../../../etc/passwd"}},
    ]
    write_metrics(run, records)


@pytest.mark.usefixtures("page")
def test_nothing_in_the_data_ends_its_element(tmp_path: Path) -> None:
    write_hostile(tmp_path)
    found = exported(tmp_path)
    assert [attributes.get("type") for attributes, _ in found.all("script")] == [None, "module", "application/json"]
    data = json.loads(found.all("script")[2][1])
    assert EVIL in json.dumps(data, ensure_ascii=False)
    assert dict(data["/api/run?run=run"]["config"])["name"] == f"'{EVIL}'"


@pytest.mark.usefixtures("page")
def test_only_the_scripts_of_the_page_may_run(tmp_path: Path) -> None:
    write_hostile(tmp_path)
    found = exported(tmp_path)
    (policy,) = [
        attributes["content"]
        for attributes, _ in found.all("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    classic, bundle = (text for _, text in found.all("script")[:2])
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (classic, bundle)]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert f"script-src {allowed};" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert found.found[[tag for tag, *_ in found.found].index("head") + 1][1].get("http-equiv") is not None
    assert not any("src" in attributes or "href" in attributes for _, attributes, _ in found.found)


@pytest.mark.usefixtures("page")
def test_modules_become_one_each_after_what_it_imports(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    found = exported(tmp_path)
    bundle = found.all("script")[1][1]
    assert [line for line in bundle.split("\n") if line] == ["const c = 1;", "function b(x) { return x + c; }", "b(c);"]
    assert found.all("style")[0][1] == "body { color: red }\n"


@pytest.mark.usefixtures("page")
def test_all_that_the_page_asks_for_is_there(tmp_path: Path) -> None:
    write_hostile(tmp_path)
    write_run(tmp_path / "a/b c", 5)
    write_run(tmp_path / "not chosen", 5)
    data = json.loads(exported(tmp_path, "run", "a/b c", "gone").all("script")[2][1])
    assert [run["id"] for run in data["/api/runs"]["runs"]] == ["run", "a/b c"]
    assert {"directory", "now", "version"} <= set(data["/api/runs"])
    for axis in ("step", "units", "time"):
        assert data[f"/api/curves?run=a%2Fb%20c&name=eval%2Floss&x={axis}"]["curves"][0]["count"] == 1
    assert data["/api/texts?run=run&name=sample"] == {
        "texts": [{"step": 5, "time": data["/api/texts?run=run&name=sample"]["texts"][0]["time"], "text": EVIL}],
        "more": False,
    }
    assert (
        data["/api/picture?run=run&file=pictures%2F1.png"] == "data:image/png;base64," + base64.b64encode(PNG).decode()
    )
    assert sum(address.startswith("/api/picture?") for address in data) == 1
    assert {"/api/goodput?run=run", "/api/log?run=run", "/api/memory?run=run"} <= set(data)
    assert data["/api/log?run=run"]["lines"][0]["text"].startswith("</script>")
    assert not any("not chosen" in address for address in data)


@pytest.mark.usefixtures("page")
def test_a_run_without_units_is_exported_without_them(tmp_path: Path) -> None:
    write_metrics(tmp_path / "run", [{"step": 1, "loss": 1.0}])
    data = json.loads(exported(tmp_path).all("script")[2][1])
    curves = [address for address in data if address.startswith("/api/curves")]
    assert [address.partition("&x=")[2] for address in curves] == ["step", "time"]
    assert "/api/log?run=run" in data


def test_the_page_as_it_is_becomes_one_file(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    found = exported(tmp_path)
    assert json.loads(found.all("script")[-1][1])["/api/runs"]["runs"][0]["id"] == "run"
    assert not any(
        str(attributes.get(name, "")).startswith("static/")
        for _, attributes, _ in found.found
        for name in ("src", "href")
    )


def test_a_run_is_named_by_its_id_or_by_the_end_of_it() -> None:
    runs = {"a": 1, "x/b": 1, "y/b": 1, "y/c": 1}
    assert named(runs, ["a", "c", "x/b/", "a"]) == ["a", "y/c", "x/b"]
    with pytest.raises(Refused, match="'b' may be x/b, y/b"):
        named(runs, ["b"])
    with pytest.raises(Refused, match="'z' is none of the runs here: a, x/b, y/b, y/c"):
        named(runs, ["z"])


def test_an_export_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="There is no run 'gone' here") as raised:
        exported(tmp_path, "gone")
    assert raised.value.status == 404


@pytest.mark.usefixtures("page")
def test_an_export_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run", 3)
    monkeypatch.setattr(module, "_LONGEST", 1000)
    with pytest.raises(Refused, match=r"more than 0 MiB\. Choose fewer runs"):
        exported(tmp_path)
