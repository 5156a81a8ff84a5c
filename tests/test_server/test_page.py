"""The page in a real browser. Set ONNXLM_SCREENSHOT to a file name to look at it."""

import os
import re
from pathlib import Path

import pytest
from browser import Browser, needs_browser, running_driver

from runtime.ort.executor import OnnxExecutor


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with running_driver(tmp_path_factory.mktemp("driver") / "log") as address:
        yield address


@pytest.fixture
def browser(driver, tmp_path):
    browser = Browser(driver, tmp_path / "profile")
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def paged(start, chat_bundle, faulty: OnnxExecutor):
    """A server slow enough to be watched."""
    faulty.seconds = 0.02
    return start(chat_bundle, executor=faulty)


@needs_browser
def test_a_chat_streams_into_the_page(browser, paged):
    browser.open(paged.url)
    browser.wait("document.querySelector('#model').value == 'tiny'")
    browser.type("#max_tokens", "40")
    browser.type("#temperature", "0")
    browser.type("#prompt", "Hi\n")
    browser.wait("/tokens\\/s/.test(document.querySelector('#pace').textContent)")
    assert browser.run("return document.querySelector('#stop').disabled") is False  # it still comes
    browser.wait("document.querySelector('.assistant small')")
    answer = str(browser.run("return document.querySelector('.assistant').firstChild.data"))
    with paged.client() as client:
        alone = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=40, temperature=0
        )
    assert answer == alone.choices[0].message.content
    assert browser.text(".user") == "Hi"
    assert browser.complaints() == []
    if target := os.environ.get("ONNXLM_SCREENSHOT"):
        Path(target).write_bytes(browser.screenshot())


@needs_browser
def test_stop_ends_the_request_in_the_engine(browser, paged):
    browser.open(paged.url)
    browser.wait("document.querySelector('#model').value == 'tiny'")
    browser.type("#prompt", "the same, the same, the same")
    browser.click("#send")
    browser.wait("document.querySelector('.assistant')?.firstChild.data.length > 5")
    browser.click("#stop")
    browser.wait("document.querySelector('.assistant small')?.textContent.startsWith('stopped')")
    paged.wait_until_idle(5)
    assert browser.run("return document.querySelector('#send').disabled") is False


@needs_browser
def test_the_panel_shows_what_the_engine_does(browser, paged):
    browser.open(paged.url)
    browser.wait("document.querySelector('#model').value == 'tiny'")
    browser.type("#prompt", "Hi\n")
    browser.wait("document.querySelector('#running').textContent.startsWith('1 of ')")
    browser.wait("parseFloat(document.querySelector('#throughput').textContent) > 0")
    browser.click("#clear")  # ends the answer too
    browser.wait("document.querySelector('#running').textContent.startsWith('0 of ')")
    assert browser.run("return document.querySelector('#messages').children.length") == 0


@needs_browser
def test_an_answer_is_text_and_an_error_is_shown(browser, paged):
    browser.open(paged.url)
    browser.wait("document.querySelector('#model').value == 'tiny'")
    browser.run("document.querySelector('#system').value = 'x'.repeat(3000)")
    browser.type("#prompt", "<img src=x onerror=alert(1)>\n")
    browser.wait("document.querySelector('.assistant.failed small')")
    assert "holds 2048" in browser.text(".assistant small")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert browser.text(".user") == "<img src=x onerror=alert(1)>"


@needs_browser
def test_a_key_opens_the_page_and_its_requests(browser, start, chat_bundle):
    guarded = start(chat_bundle, api_keys=("a-key-for-the-page",))
    browser.open(guarded.url.replace("http://", "http://me:a-key-for-the-page@"))
    browser.open(guarded.url)
    browser.wait("document.querySelector('#model').value == 'tiny'")
    browser.type("#max_tokens", "3")
    browser.type("#prompt", "Hi\n")
    browser.wait("document.querySelector('.assistant small')")
    assert browser.run("return document.querySelectorAll('.failed').length") == 0


def test_the_page_asks_nothing_of_other_servers(http):
    page = http.get("/")
    named = re.findall(r'(?:href|src)="(/[^"]+)"', page.text)
    files = [*named, "/page/chat.js", "/page/status.js", "/page/events.js"]
    texts = [page.text, *(http.get(name).raise_for_status().text for name in files)]
    assert [text for text in texts if "http:" in text or "https:" in text] == []
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert http.get("/page/__init__.py").status_code == 404
