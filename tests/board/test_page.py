# SPDX-License-Identifier: Apache-2.0
"""The board in a browser, over runs on disk: clicked, drawn on, typed at, while runs grow, mean harm and go away."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.board_process import CHROMIUM, board, export
from support.board_runs import HOSTILE, append, make_run
from support.browser import Browser

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: `make chromium` installs it"),
]
TABS = ("curves", "overview", "samples", "config", "memory", "goodput", "log")
DRAWN = "document.querySelectorAll('.plot canvas').length"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def browser(chromium) -> Iterator[Browser]:
    """The browser as if new. Whatever a test does, the page may not complain, nor ask anybody but this machine."""
    chromium.size(1400, 900)
    chromium.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    chromium.open("about:blank")
    yield chromium
    assert chromium.errors() == []
    assert [
        each for each in chromium.requests() if not each.startswith(("http://127.0.0.1:", "data:", "about:", "file:"))
    ] == []
    chromium.open("about:blank")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    # The last three are the newest: those are ticked until somebody ticks.
    for index, name in enumerate(("old", "first", "second", "group/third")):
        make_run(
            directory / name, seed=index, steps=1200, now=1.78e9 + 60 * index, bad=(333,) if name == "first" else ()
        )
    make_run(
        directory / "failed",
        seed=9,
        steps=300,
        of=400,
        ended="failed",
        restart=200,
        log=("WARNING: slow", "ValueError: 3"),
    )
    (directory / "failed" / "launch" / "1.log").write_text("the second process\n")
    (directory / "failed" / "configs").mkdir()
    (directory / "failed" / "configs" / "steps_1-100.txt").write_text("model.earlier = 7\n")
    for step in range(1, 61):  # More than one answer holds.
        append(directory / "old", step=1200 + step, story=f"story {step}")
    return directory


@pytest.fixture(scope="module")
def address(runs) -> Iterator[str]:
    with board(runs) as found:
        yield found


def text(browser: Browser, selector: str) -> str:
    return browser.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.innerText).join('\\n')"
    )


def row(name: str) -> str:
    """What finds the row of a run."""
    is_it = f"each.querySelector('.name').textContent === {json.dumps(name)}"
    return f"[...document.querySelectorAll('.rows .row')].find((each) => {is_it})"


def press(browser: Browser, words: str, within: str = "button") -> None:
    """Clicks on what begins with these words."""
    starts = f"each.textContent.startsWith({json.dumps(words)})"
    among = f"[...document.querySelectorAll({json.dumps(within)})]"
    browser.run(f"{among}.find((each) => {starts}).dataset.found = '1'")
    browser.click("[data-found]")
    browser.run("delete document.querySelector('[data-found]')?.dataset.found")


def hash_of(browser: Browser) -> str:
    return browser.run("decodeURIComponent(location.hash)")


def test_runs_are_listed_sorted_filtered_and_ticked(browser, address):
    browser.open(address)
    browser.wait("document.querySelectorAll('.rows .row').length === 5")
    assert text(browser, ".rows .row:first-child .name") is not None
    assert "1,200 / 1,200" in text(browser, ".rows")
    assert "failed" in text(browser, ".rows .state")
    assert browser.run("document.querySelectorAll('.rows .row[aria-selected=true]').length") == 3
    browser.wait(f"{DRAWN} > 0")
    press(browser, "Run", ".head button")
    rows = "[...document.querySelectorAll('.rows .row')].sort((a, b) => a.offsetTop - b.offsetTop)"
    order = f"{rows}.map((each) => each.querySelector('.name').textContent)"
    assert browser.run(order) == ["failed", "first", "group/third", "old", "second"]
    press(browser, "Run", ".head button")
    assert browser.run(order) == ["second", "old", "group/third", "first", "failed"]
    browser.key("/")
    browser.type("-group state:done")
    browser.wait("document.querySelectorAll('.rows .row').length === 3")
    assert "3 of 5 runs" in text(browser, ".list .bar")
    browser.wait("decodeURIComponent(location.hash).includes('filter=-group+state:done')")
    press(browser, "Tick these")
    browser.wait("document.querySelectorAll('.rows .row[aria-selected=true]').length === 3")
    browser.key("Escape")
    press(browser, "Untick")
    browser.wait("document.querySelector('.panel').innerText.includes('No run is ticked.')")
    press(browser, "old", ".rows .row")
    browser.wait(f"{DRAWN} > 0")
    assert "run=old" in hash_of(browser)
    browser.run("history.back()")
    browser.wait("document.querySelector('.panel').innerText.includes('No run is ticked.')")
    browser.run("history.forward()")
    browser.wait(f"{DRAWN} > 0")
    assert browser.nameless() == []


def test_columns_are_chosen_and_kept_in_the_link(browser, address):
    browser.open(address)
    browser.wait("document.querySelectorAll('.rows .row').length === 5")
    press(browser, "Columns")
    press(browser, "eval/loss", ".columns label")
    browser.wait("document.querySelector('.head').innerText.includes('eval/loss')")
    assert "column=last:eval/loss" in hash_of(browser)
    browser.wait("document.querySelector('.rows').innerText.includes('2.300')")


def test_curves_are_zoomed_by_drawing_and_share_a_cursor(browser, address):
    browser.open(f"{address}#run=first&run=second")
    browser.wait(f"{DRAWN} >= 4")
    assert "1 not finite" in text(browser, ".chart .badge")
    browser.hover(".chart .u-over", 0.3)
    browser.wait("!document.querySelector('.tip').hidden")
    assert "first" in text(browser, ".tip")
    assert "second" in text(browser, ".tip")
    moved = browser.run("[...document.querySelectorAll('.u-cursor-x')].map((each) => each.style.transform)")
    assert len(moved) >= 4
    assert len(set(moved)) == 1  # All of them are where the mouse is.
    browser.drag(".chart .u-over", 0.25, 0.5)
    browser.wait("location.hash.includes('zoom=')")
    asks = "each.name.includes('/api/curves') && each.name.includes('from=')"
    browser.wait(f"performance.getEntriesByType('resource').some((each) => {asks})")  # For the finer range.
    low, high = map(float, hash_of(browser).split("zoom=")[1].split("&")[0].split("~"))
    assert 280 < low < 320
    assert 580 < high < 620
    (sent, *_) = [each for each in browser.requests() if "/api/curves" in each and "from=" in each]
    assert f"from={low}".removesuffix(".0") in sent
    assert f"to={high}".removesuffix(".0") in sent
    browser.click(".chart .u-over", count=2)
    browser.wait("!location.hash.includes('zoom=')")
    browser.run("document.querySelector('.plot').focus()")
    for key in ("ArrowRight", "+"):
        browser.key(key)
    browser.wait("location.hash.includes('zoom=')")
    browser.key("0")
    browser.wait("!location.hash.includes('zoom=')")
    for name, part in (("Time", "x=time"), ("Tokens", "x=units"), ("log", "logy=loss")):
        press(browser, name, ".panel button")
        browser.wait(f"location.hash.includes('{part}')")
    browser.run("document.getElementById('smooth').focus()")
    browser.key("End")
    browser.wait("location.hash.includes('smooth=0.99')")
    browser.wait("document.querySelectorAll('[aria-busy=true]').length === 0")


def test_charts_are_drawn_when_they_come_into_sight(browser, address):
    browser.open(f"{address}#run=first")
    browser.wait(f"{DRAWN} >= 2")
    before = browser.run(DRAWN)
    assert before < browser.run("document.querySelectorAll('.chart').length")
    browser.run("document.querySelector('.panels').scrollTop = 1e6")
    browser.wait(f"{DRAWN} > {before}")
    assert "eval" in text(browser, ".group h2")


def test_all_is_done_by_keyboard(browser, address):
    browser.open(address)
    browser.wait(f"{DRAWN} > 0")
    browser.key("?")
    browser.wait("document.querySelector('dialog').open")
    browser.key("Escape")
    browser.wait("!document.querySelector('dialog').open")
    browser.key("r")
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
        browser.key(key)
    browser.wait("document.querySelectorAll('.rows .row[aria-selected=true]').length === 1")
    one = browser.run(
        "document.getElementById(document.querySelector('.grid').getAttribute('aria-activedescendant')).runId"
    )
    assert f"run={one}" in hash_of(browser)
    browser.key("ArrowDown")
    browser.key(" ")
    browser.wait("document.querySelectorAll('.rows .row[aria-selected=true]').length === 2")
    for number, tab in enumerate(TABS, 1):
        browser.key(str(number))
        browser.wait(f"document.getElementById('tab-{tab}').getAttribute('aria-selected') === 'true'")
        browser.wait("document.querySelector('.panels').innerText.trim().length > 20")
        assert browser.nameless() == []
    browser.run("document.getElementById('tab-log').focus()")
    browser.key("ArrowLeft")
    browser.wait("location.hash.includes('tab=goodput')")
    browser.key("t")
    browser.wait("document.documentElement.dataset.theme === 'light'")
    browser.key("t")
    browser.wait("document.documentElement.dataset.theme === 'dark'")
    browser.key("t")


def test_samples_of_runs_stand_side_by_side_over_steps(browser, address):
    browser.open(f"{address}#run=first&run=second&tab=samples")
    browser.wait("document.querySelectorAll('.sample').length === 8")
    browser.wait("[...document.querySelectorAll('.picture')].every((each) => each.naturalWidth === 96)")
    assert text(browser, ".sample-text").count("step 1200: The whale") == 8
    assert "arc" in text(browser, ".sample table")
    browser.run("document.querySelector('.slider.long input').focus()")
    browser.key("Home")
    browser.wait("document.querySelector('.sample-text').textContent.startsWith('step 50:')")
    browser.wait("location.hash.includes('step=50')")
    assert "file=pictures%2Freconstruction%2F50.png" in browser.run("document.querySelector('.picture').src")
    browser.key("ArrowRight")
    browser.wait("document.querySelector('.sample-text').textContent.startsWith('step 100:')")


def test_older_samples_are_loaded_when_asked_for(browser, address):
    browser.open(f"{address}#run=old&tab=samples&sample=story")
    browser.wait("document.querySelector('.sample-text')?.textContent === 'story 60'")
    browser.run("document.querySelector('.slider.long input').focus()")
    browser.key("Home")
    browser.wait("document.querySelector('.sample-text').textContent === 'story 11'")
    press(browser, "Load older")
    browser.wait("document.querySelector('.slider.long input').max === '59'")
    browser.run("document.querySelector('.slider.long input').focus()")
    browser.key("Home")
    browser.wait("document.querySelector('.sample-text').textContent === 'story 1'")


def test_configs_goodput_memory_and_logs_are_shown(browser, address):
    browser.open(f"{address}#run=first&run=failed&tab=config")
    browser.wait("document.querySelector('.diff')")
    differing = text(browser, ".diff")
    assert "learner.optimizer.learning_rate" in differing
    assert "input.batch_size" not in differing
    assert "hidden_dim" not in text(browser, ".tree")  # Folded.
    browser.key("f")
    browser.type("hidden_dim")
    browser.wait("document.querySelector('.tree').innerText.includes('512')")
    browser.open("about:blank")
    browser.open(f"{address}#run=failed&tab=config")
    browser.wait("document.querySelector('.tree')?.innerText.includes('recipe')")
    browser.run("document.querySelector('.tree').parentNode.querySelectorAll('select')[1].focus()")
    browser.key("End")
    browser.wait("document.querySelector('.tree').innerText.includes('earlier')")
    browser.open(f"{address}#run=failed&tab=goodput")
    browser.wait("document.querySelector('canvas.timeline')")
    assert "lost work" in text(browser, ".panel")
    assert "30 steps were lost" in text(browser, ".events")
    browser.hover("canvas.timeline", 0.5)
    browser.wait("document.querySelector('.at').textContent.includes('·')")
    browser.open(f"{address}#run=failed&tab=memory")
    browser.wait("document.querySelector('.panel').innerText.includes('failed')")
    browser.open(f"{address}#run=failed&tab=log")
    browser.wait("document.querySelectorAll('.log .level-error').length >= 1")
    assert "ValueError: 3" in text(browser, ".log .level-error")
    press(browser, "Warnings", ".panel button")
    browser.wait("![...document.querySelectorAll('.log li')].some((each) => each.className === 'level-info')")
    assert "WARNING: slow" in text(browser, ".log")
    press(browser, "All", ".panel button")
    browser.wait("[...document.querySelectorAll('.log li')].some((each) => each.className === 'level-info')")
    browser.run("document.querySelector('.panel select[aria-label=File]').focus()")
    browser.key("End")
    browser.wait("document.querySelector('.log').innerText.includes('the second process')")


def test_a_link_holds_the_view(browser, address):
    browser.open(
        f"{address}#run=second&run=&run=first&x=time&smooth=0.5&logy=loss&sort=name&filter=s&metric=loss&zoom=100~400"
    )
    browser.wait(f"{DRAWN} > 0")
    for _ in range(2):
        browser.wait("document.querySelector('.chart')?.querySelectorAll('.entry').length === 2")
        assert browser.run("document.querySelector('.choice [aria-pressed=true]').textContent") == "Time"
        assert text(browser, ".slider output") == "0.50"
        assert browser.run("document.querySelectorAll('.rows .row[aria-selected=true]').length") == 2
        assert browser.run("document.querySelectorAll('.chart').length") == 2
        assert browser.run(
            "[...document.querySelector('.chart').querySelectorAll('.entry')].map((each) => each.title)"
        ) == [
            "second",
            "first",
        ]
        link = browser.run("location.href")
        browser.open("about:blank")
        browser.open(link)


def test_a_run_that_grows_breaks_and_goes_away_is_followed(browser, tmp_path):
    directory = make_run(tmp_path / "runs" / "live", steps=200, of=300, ended="")
    make_run(tmp_path / "runs" / "other", steps=100)
    with board(tmp_path / "runs") as address:
        browser.open(f"{address}#run=live&zoom=20~150")
        browser.wait(f"{DRAWN} > 0")
        browser.wait("document.querySelector('.live').textContent === 'live'")
        browser.run("document.querySelector('.panels').scrollTop = 150")
        append(directory, step=201, loss=0.4321, tokens=1024.0, new_metric=1.0)
        browser.wait("document.querySelector('.rows').innerText.includes('0.4321')")
        browser.wait("[...document.querySelectorAll('.chart h3')].some((each) => each.textContent === 'new_metric')")
        took: list[float] = []
        for step in range(202, 205):  # On a busy machine one of them may be late.
            begin = time.monotonic()
            append(directory, step=step, loss=step / 1000)
            browser.wait(f"document.querySelector('.rows').innerText.includes('0.{step}0')")
            took.append(time.monotonic() - begin)
        assert min(took) < 2
        assert browser.run("document.querySelector('.panels').scrollTop") == 150
        assert "zoom=20~150" in hash_of(browser)
        with (directory / "metrics.jsonl").open("a") as file:
            file.write('{"step": 205, "time": 1, "loss": 0.1')  # Torn: its end comes later.
            file.flush()
            append(tmp_path / "runs" / "other", step=101, loss=0.7777)
            browser.wait("document.querySelector('.rows').innerText.includes('0.7777')")
            assert "0.2040" in text(browser, ".rows")
            file.write("234}\n")
        browser.wait("document.querySelector('.rows').innerText.includes('0.1234')")
        shutil.rmtree(directory)
        browser.wait("document.querySelectorAll('.rows .row').length === 1")
        browser.key("2")
        browser.wait("document.querySelector('.panel').innerText.includes('is not in the directory any more')")
        make_run(tmp_path / "runs" / "new", steps=50)
        browser.wait("document.querySelectorAll('.rows .row').length === 2")
    browser.wait("document.querySelector('.live').textContent === 'not connected'")
    assert browser.run("document.querySelectorAll('.rows .row').length") == 2  # What is known stays.
    browser.open("about:blank")  # Errors of a connection that was lost are the browser's own.


def test_names_texts_and_logs_that_mean_harm_are_only_text(browser, tmp_path):
    name = HOSTILE.replace("/", "")
    config = {f"model.{HOSTILE}": HOSTILE, "__proto__.polluted": HOSTILE, "constructor": HOSTILE}
    make_run(
        tmp_path / "runs" / name,
        words=HOSTILE,
        metric=f"eval/{HOSTILE}",
        config=config,
        log=(f"ValueError: {HOSTILE}", HOSTILE),
    )
    make_run(tmp_path / "runs" / "__proto__", seed=1, metric="__proto__")
    make_run(tmp_path / "runs" / "constructor", seed=2, metric="toString")
    with board(tmp_path / "runs") as address:
        browser.open(address)
        browser.wait("document.querySelectorAll('.rows .row').length === 3")
        for number, tab in enumerate(TABS, 1):
            browser.key(str(number))
            browser.wait(f"document.getElementById('tab-{tab}').getAttribute('aria-selected') === 'true'")
            shown = "document.querySelector('.panels')"
            browser.wait(f"{shown}.innerText.includes('onerror=') || {shown}.innerHTML.includes('onerror=')")
            browser.run("document.querySelector('.panels').scrollTop = 1e6")
            if tab == "samples":
                browser.wait("document.querySelectorAll('.sample table').length === 3")
            strange = (
                "document.querySelectorAll('img:not(.picture), script:not([src]), iframe, object, [onerror]').length"
            )
            assert browser.run(strange) == 0, tab
            assert browser.run("document.title").endswith("Dovetail board"), tab
        browser.key("1")
        browser.wait(f"{DRAWN} > 0")
        browser.hover(".chart .u-over", 0.5)
        browser.wait("document.querySelector('.tip').innerText.includes('<img src=x')")
        assert browser.run("Object.prototype.polluted === undefined && ({}).x === undefined")
        assert [each for each in browser.requests() if each.endswith("/x")] == []


def test_a_thousand_runs_stay_fluid(browser, tmp_path):
    for index in range(1000):
        directory = tmp_path / "runs" / f"run-{index:04}"
        directory.mkdir(parents=True)
        append(directory, step=index, loss=index / 7)
    with board(tmp_path / "runs") as address:
        browser.open(f"{address}#sort=name")
        browser.wait("document.querySelector('.list .bar').innerText.includes('1000 runs')", seconds=30)
        assert browser.run("document.querySelectorAll('.rows .row').length") < 80
        browser.run("document.querySelector('.grid').scrollTop = 1e6")
        browser.wait(row("run-0999"))
        assert browser.run("document.querySelectorAll('.rows .row').length") < 80
        browser.key("r")
        browser.key("Home")
        browser.wait(f"{row('run-0000')}?.classList.contains('active')")
        assert browser.run("document.querySelector('.grid').getAttribute('aria-rowcount')") == "1001"


def test_an_export_needs_no_server(browser, runs, tmp_path):
    file = tmp_path / "runs.html"
    export(runs, file, "first", "failed")
    browser.open(file.as_uri())
    browser.wait(f"{DRAWN} >= 4")
    assert browser.run("document.querySelector('.live').textContent") == "export"
    assert "first" in text(browser, ".rows")
    assert "old" not in text(browser, ".rows")
    press(browser, "Time", ".panel button")
    browser.wait("document.querySelectorAll('[aria-busy=true]').length === 0")
    browser.drag(".chart .u-over", 0.25, 0.5)
    browser.wait("location.hash.includes('zoom=')")
    for number, tab in enumerate(TABS, 1):
        browser.key(str(number))
        browser.wait(f"document.getElementById('tab-{tab}').getAttribute('aria-selected') === 'true'")
        browser.wait("document.querySelector('.panels').innerText.trim().length > 20")
        assert "not in the export" not in text(browser, ".panels"), tab
    browser.key("3")
    browser.wait("document.querySelectorAll('.picture').length === 2")
    browser.wait("[...document.querySelectorAll('.picture')].every((each) => each.naturalWidth === 96)")
    assert {each.split(":")[0] for each in browser.requests()} <= {"file", "data"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone(browser, address, scheme):
    browser.size(360, 700, mobile=True)
    browser.media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    for tab in ("runs", *TABS):
        browser.open("about:blank")
        browser.open(f"{address}#run=first&run=failed&tab={tab}")
        browser.wait(f"document.getElementById('tab-{tab}').getAttribute('aria-selected') === 'true'")
        browser.wait("document.querySelector('main').innerText.trim().length > 20")
        assert browser.run("document.documentElement.scrollWidth") <= 360, tab
        assert browser.run("document.querySelector('.panels').scrollWidth") <= 360, tab
    ground = browser.run("getComputedStyle(document.documentElement).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 21, 23)"}[scheme]


def test_an_empty_directory_says_what_to_do(browser, tmp_path):
    with board(tmp_path) as address:
        browser.open(address)
        browser.wait("document.querySelector('.list').innerText.includes('There is no run here yet.')")
        assert "dovetail train tiny-lm" in text(browser, ".list")
        make_run(tmp_path / "first", steps=60)
        browser.wait("document.querySelectorAll('.rows .row').length === 1")
        browser.wait(f"{DRAWN} > 0")
