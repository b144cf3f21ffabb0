# SPDX-License-Identifier: Apache-2.0
"""The chat page: it loads nothing, and runs nothing but its own script, whatever a model writes."""

import re
import shutil
import subprocess

import pytest

from support.browser import Browser
from support.http_server import ScriptedDevice, chat_tokenizer, running

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>&lt;b&gt; **x** é🐋 '
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def test_the_page_names_no_other_address_and_allows_only_itself(server):
    response = server.client.get("/")
    text = response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    assert not re.search(r"<[^>]*\s(on\w+|style)\s*=", text)  # Neither handlers nor styles within a tag.
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", text)
    policy = dict(rule.split(" ", 1) for rule in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert re.fullmatch(r"'sha256-[\w+/]+='", policy["script-src"])
    assert re.fullmatch(r"'sha256-[\w+/]+='", policy["style-src"])


def test_the_script_of_the_page_is_a_program(server, tmp_path):
    (script,) = re.findall(r"<script>(.*?)</script>", server.client.get("/").text, re.DOTALL)
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    file = tmp_path / "page.js"
    file.write_text(script)
    subprocess.run([node, "--check", str(file)], check=True)


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path_factory.mktemp("browser")) as found:
        yield found


@needs_chromium
@pytest.mark.slow
def test_a_chat_in_a_browser_is_streamed_as_text_and_can_be_stopped(browser, tmp_path):
    tokenizer = chat_tokenizer()
    device = ScriptedDevice(tokenizer.encode(HOSTILE).tolist(), vocab_size=512)
    device.seconds = 0.005
    with running(device, tokenizer=tokenizer) as server:
        browser.open(f"{server.url}/")
        browser.wait("document.title === 'scripted'")
        browser.run("document.getElementById('max_tokens').value = 80")
        browser.run("document.getElementById('temperature').value = 0")
        browser.type("Call me <b>Ishmael</b>")
        browser.key("Enter")
        browser.wait("document.querySelectorAll('.note').length === 1")
        first = browser.run("document.querySelectorAll('.message .text')[1].textContent")
        assert "<img src=x onerror=" in HOSTILE + first  # As text, whichever part of it this is.
        assert browser.run("document.querySelectorAll('#messages img, #messages script, #messages b').length") == 0
        assert browser.run("document.title") == "scripted"
        assert browser.run("document.querySelector('.note').textContent").startswith("80 tokens")
        device.seconds = 0.05
        browser.run("document.getElementById('max_tokens').value = 300")
        browser.type("On.")
        browser.key("Enter")
        browser.wait("!document.getElementById('stop').hidden")
        browser.wait("document.querySelectorAll('.message .text')[3].textContent.length > 3")
        browser.key("Escape")
        browser.wait("document.querySelectorAll('.note').length === 2")
        assert browser.run("document.querySelectorAll('.note')[1].textContent") == "Stopped."
        assert server.idle(2.0)  # The engine has stopped, too.
        assert browser.errors() == []
        browser.shot(tmp_path / "light.png")


@needs_chromium
@pytest.mark.slow
def test_the_page_fits_a_phone_and_asks_for_a_key(browser, tmp_path):
    tokenizer = chat_tokenizer()
    with running(ScriptedDevice([70, 71], vocab_size=512), tokenizer=tokenizer, keys=["secret"]) as server:
        browser.size(360, 640, mobile=True)
        browser.open(f"{server.url}/")
        browser.wait("document.getElementById('empty').textContent.includes('needs an API key')")
        assert browser.run("document.getElementById('settings').hidden") is False
        browser.run("document.getElementById('key').value = 'secret'")
        browser.run("document.getElementById('key').dispatchEvent(new Event('change'))")
        browser.wait("document.title === 'scripted'")
        assert browser.run("document.documentElement.scrollWidth") <= 360
        browser.run("document.getElementById('toggle').click()")
        browser.run("document.getElementById('max_tokens').value = 5")
        browser.run("document.getElementById('theme').click()")
        browser.type("Hi")
        browser.key("Enter")
        browser.wait("document.querySelectorAll('.note').length === 1")
        assert browser.run("document.documentElement.dataset.theme") in ("dark", "light")
        assert browser.run("document.documentElement.scrollWidth") <= 360
        browser.shot(tmp_path / "phone.png")


def test_a_model_without_a_chat_template_is_known_to_the_page(server):
    (card,) = server.client.get("/v1/models").json()["data"]
    assert card["has_chat_template"] is False
    assert card["max_model_len"] == 512
