"""The page in a real browser. Set ONNXLM_SCREENSHOTS to a folder to look at it."""

import json
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


@pytest.fixture(scope="module")
def chromium(driver, tmp_path_factory):
    browser = Browser(driver, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium):
    chromium.fresh()
    return chromium


def keep_picture(browser, name):
    if folder := os.environ.get("ONNXLM_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{name}.png").write_bytes(browser.screenshot())


@pytest.fixture(scope="module")
def paged(start, chat_bundle, faulty: OnnxExecutor):
    """A server slow enough to be watched."""
    faulty.seconds = 0.02
    return start(chat_bundle, executor=faulty)


READY = "document.querySelector('#model').value == 'tiny'"
DONE = "document.querySelector('.assistant small') && document.querySelector('#send').textContent == 'Send'"


def opened(browser, paged, **settings):
    browser.open(paged.url)
    browser.wait(READY)
    for name, value in settings.items():
        browser.run(f"document.querySelector('#{name}').value = {value!r}")
    return browser


def turns(browser):
    """(role, text) of every turn on the page."""
    script = "return [...document.querySelectorAll('.message')].map((m) => [m.classList[1], m.dataset.text])"
    return [tuple(turn) for turn in browser.run(script)]


@needs_browser
def test_a_chat_streams_into_the_page(browser, paged):
    opened(browser, paged, max_tokens="40", temperature="0")
    browser.type("#prompt", "Hi\n")
    browser.wait("/tokens\\/s/.test(document.querySelector('#pace').textContent)")
    assert browser.text("#send") == "Stop"  # it still comes
    browser.wait(DONE)
    with paged.client() as client:
        alone = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=40, temperature=0
        )
    assert turns(browser) == [("user", "Hi"), ("assistant", alone.choices[0].message.content)]
    assert browser.text("#context_used") == f"{alone.usage.total_tokens} of 2048"
    assert browser.complaints() == []
    keep_picture(browser, "chat")


@needs_browser
@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_ends_the_request_in_the_engine(browser, paged, how):
    opened(browser, paged)
    browser.type("#prompt", "the same, the same, the same")
    browser.click("#send")
    browser.wait("document.querySelector('.assistant')?.dataset.text.length > 5")
    if how == "button":
        browser.click("#send")
    else:
        browser.type("#prompt", "\ue00c")
    browser.wait("document.querySelector('.assistant small')?.textContent.startsWith('stopped')")
    paged.wait_until_idle(5)
    assert browser.text("#send") == "Send"


@needs_browser
def test_while_the_prompt_is_read_the_page_says_so(browser, paged):
    paged.model.engine.core.executor.gate.clear()
    opened(browser, paged, max_tokens="3")
    browser.type("#prompt", "Hi\n")
    browser.wait("document.querySelector('.waiting')?.textContent.includes('reading')")
    paged.model.engine.core.executor.gate.set()
    browser.wait(DONE)
    assert browser.run("return document.querySelectorAll('.waiting').length") == 0


@needs_browser
def test_an_answer_is_made_again_and_a_question_asked_otherwise(browser, paged):
    opened(browser, paged, max_tokens="4", temperature="0")
    browser.type("#prompt", "Hi\n")
    browser.wait(DONE)
    before = turns(browser)
    browser.click(".regenerate")
    browser.wait(DONE)
    assert turns(browser) == before
    browser.click(".edit")
    assert turns(browser) == []
    assert browser.run("return document.querySelector('#prompt').value") == "Hi"
    browser.type("#prompt", " there\n")
    browser.wait(DONE)
    assert turns(browser)[0] == ("user", "Hi there")
    browser.click(".assistant .delete")
    assert [role for role, _ in turns(browser)] == ["user"]


@needs_browser
def test_conversations_stay_in_the_browser(browser, paged):
    opened(browser, paged, max_tokens="4")
    browser.run("localStorage.clear()")
    opened(browser, paged, max_tokens="4")
    for text in ("first", "second"):
        browser.click("#new")
        browser.type("#prompt", f"{text}\n")
        browser.wait(DONE)
    opened(browser, paged)
    assert browser.run("return [...document.querySelectorAll('.name')].map((n) => n.textContent)") == [
        "second",
        "first",
    ]
    browser.click("#conversations li:nth-child(2) .name")
    assert turns(browser)[0] == ("user", "first")
    browser.click("#conversations li:nth-child(2) .drop")
    assert browser.run("return document.querySelectorAll('.name').length") == 1
    assert turns(browser) == []


@needs_browser
def test_the_panel_shows_what_the_engine_does(browser, paged):
    opened(browser, paged)
    browser.type("#prompt", "Hi\n")
    browser.wait("document.querySelector('#running').textContent.startsWith('1 of ')")
    browser.wait("parseFloat(document.querySelector('#throughput').textContent) > 0")
    browser.click("#new")  # ends the answer too
    browser.wait("document.querySelector('#running').textContent.startsWith('0 of ')")
    assert turns(browser) == []


@needs_browser
def test_an_error_is_shown_can_be_retried_and_is_no_part_of_the_history(browser, paged):
    opened(browser, paged, system="x" * 3000)
    browser.type("#prompt", "<img src=x onerror=alert(1)>\n")
    browser.wait("document.querySelector('.assistant.failed small')")
    assert "holds 2048" in browser.text(".assistant small")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert browser.text(".user .body") == "<img src=x onerror=alert(1)>"
    browser.run("document.querySelector('#system').value = ''; document.querySelector('#max_tokens').value = '3'")
    browser.click(".retry")
    browser.wait(f"{DONE} && !document.querySelector('.failed')")
    assert [role for role, _ in turns(browser)] == ["user", "assistant"]


KEPT = {
    "id": "a",
    "title": "kept",
    "turns": [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "# Title\n\nSome **bold** `code` <b>x</b> [a](https://a.example) [b](javascript:alert(1))\n\n"
            "- one\n  - deep\n- two\n\n1. first\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
            "```py\nprint('<i>')\n\nx\n```\n> said",
            "reasoning": "Hm.",
            "calls": [{"name": "weather", "arguments": '{"city": "Oslo"}'}],
        },
    ],
}


@needs_browser
def test_markdown_thoughts_and_calls_are_drawn_as_elements(browser, paged):
    kept(browser, paged)
    count = {
        name: browser.run(f"return document.querySelectorAll('.assistant {name}').length")
        for name in ("h3", "strong", ".body b", ".body a", "ul ul", "ol", "td", "pre code", "blockquote", "details")
    }
    assert count == {
        "h3": 1, "strong": 1, ".body b": 0, ".body a": 1, "ul ul": 1, "ol": 1, "td": 2, "pre code": 1, "blockquote": 1,
        "details": 2,
    }  # fmt: skip
    assert browser.text(".assistant pre code") == "print('<i>')\n\nx"
    assert browser.run("return document.querySelector('.thoughts').open") is False
    assert "weather" in browser.text(".call")
    keep_picture(browser, "desktop")
    light = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert browser.run("return getComputedStyle(document.body).backgroundColor") != light
    keep_picture(browser, "dark")
    browser.devtools("Emulation.setEmulatedMedia", features=[])


def kept(browser, paged):
    """The page with one conversation that it kept earlier."""
    opened(browser, paged)
    browser.run(f"localStorage.setItem('onnxlm.conversations', JSON.stringify([{json.dumps(KEPT)}]))")
    return opened(browser, paged)


@needs_browser
@pytest.mark.parametrize("secure", [True, False])
def test_messages_and_code_are_copied(browser, paged, secure):
    kept(browser, paged)
    if secure:
        browser.devtools("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        browser.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    else:  # as on a page of another machine without TLS
        browser.run("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        browser.run("document.addEventListener('copy', () => { window.copied = document.activeElement.value; })")
    browser.click(".assistant pre .copy")
    browser.wait("window.copied == \"print('<i>')\\n\\nx\"")
    browser.click(".user .act.copy")
    browser.wait("window.copied == 'Hi'")


@needs_browser
def test_a_conversation_is_exported_as_messages(browser, paged):
    kept(browser, paged)
    browser.run("URL.createObjectURL = (blob) => { window.blob = blob; return '#'; }")
    browser.click("#export")
    browser.run("window.blob.text().then((text) => { window.exported = JSON.parse(text); })")
    browser.wait("window.exported")
    assert browser.run("return window.exported.messages") == [
        {key: turn[key] for key in ("role", "content")} for turn in KEPT["turns"]
    ]


@needs_browser
def test_on_a_phone_lists_and_parameters_are_drawers(browser, paged):
    browser.resize(390, 800)
    kept(browser, paged)
    shown = "return getComputedStyle(document.querySelector('#panel')).display"
    assert browser.run(shown) == "none"
    browser.click("#open_panel")
    assert browser.run(shown) == "block"
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth") is True
    keep_picture(browser, "phone-settings")
    browser.click("#open_panel")
    assert browser.run(shown) == "none"
    keep_picture(browser, "phone")


KEY = "a-key-for-the-page"
ASKED = "document.querySelector('#ask_key').open"


@pytest.fixture(scope="module")
def guarded(start, chat_bundle):
    return start(chat_bundle, api_keys=(KEY,))


@needs_browser
def test_the_page_asks_for_the_key_and_says_that_one_is_wrong(browser, guarded):
    browser.open(guarded.url)
    browser.wait(ASKED)
    assert browser.run("return document.querySelector('#key_refused').hidden") is True
    browser.type("#key", "not-the-key\n")
    browser.wait(f"{ASKED} && !document.querySelector('#key_refused').hidden")
    browser.type("#key", f"{KEY}\n")
    browser.wait(READY)
    browser.type("#max_tokens", "3")
    browser.type("#prompt", "Hi\n")
    browser.wait(DONE)
    assert browser.run("return document.querySelectorAll('.failed').length") == 0
    browser.open(guarded.url)
    browser.wait(READY)  # this session has it
    assert browser.run("return [sessionStorage, localStorage].map((s) => s.getItem('onnxlm.key'))") == [KEY, None]


@needs_browser
def test_a_key_may_stay_in_the_browser_and_be_forgotten(browser, guarded):
    browser.open(guarded.url)
    browser.wait(ASKED)
    browser.click("#keep_key")
    browser.type("#key", f"{KEY}\n")
    browser.wait(READY)
    assert browser.run("return localStorage.getItem('onnxlm.key')") == KEY
    browser.click("#change_key")
    browser.wait(ASKED)
    assert browser.run("return localStorage.getItem('onnxlm.key')") is None


@needs_browser
def test_who_gives_no_key_is_asked_again_only_on_sending(browser, guarded):
    browser.open(guarded.url)
    browser.wait(ASKED)
    browser.press("\ue00c")
    browser.wait("document.querySelector('#state').textContent.includes('API key')")
    assert browser.run(f"return {ASKED}") is False
    browser.type("#prompt", "Hi\n")
    browser.wait(ASKED)


def test_the_page_asks_nothing_of_other_servers(http):
    page = http.get("/")
    named = re.findall(r'(?:href|src)="(page/[^"]+)"', page.text)
    scripts = ("chat", "status", "events", "key", "store", "list", "turns", "markdown")
    files = [*(f"/{name}" for name in named), *(f"/page/{name}.js" for name in scripts)]
    texts = [page.text, *(http.get(name).raise_for_status().text for name in files)]
    assert [text for text in texts if re.search(r"https?://\w", text)] == []
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert http.get("/page/__init__.py").status_code == 404
