"""The page in a real browser. Set ONNXLM_SCREENSHOT to a file name to look at it."""

import base64
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from runtime.ort.executor import OnnxExecutor

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # how the WebDriver protocol names a reference to one
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,800"]
needs_browser = pytest.mark.skipif(not shutil.which("chromedriver"), reason="chromium and its driver are not installed")


class Browser:
    """Chromium behind its driver, by the few commands that the tests need."""

    def __init__(self, driver: str, profile: Path) -> None:
        self._http = httpx.Client(timeout=60)
        self._session = driver
        options = {"args": [*OPTIONS, f"--user-data-dir={profile}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._post("/session", capabilities={"alwaysMatch": wanted})["sessionId"]
        self._session = f"{driver}/session/{session}"

    def open(self, url: str) -> None:
        self._post("/url", url=url)

    def run(self, script: str) -> object:
        return self._post("/execute/sync", script=script, args=[])

    def text(self, selector: str) -> str:
        return str(self.run(f"return document.querySelector({selector!r})?.textContent ?? ''"))

    def click(self, selector: str) -> None:
        self._post(f"/element/{self._find(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        self._post(f"/element/{self._find(selector)}/value", text=text)

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self._post("/se/log", type="browser")]

    def screenshot(self) -> bytes:
        return base64.b64decode(self._http.get(f"{self._session}/screenshot").json()["value"])

    def close(self) -> None:
        self._http.delete(self._session).raise_for_status()
        self._http.close()

    def wait(self, script: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not self.run(f"return {script}"):
            assert time.monotonic() < end, f"never: {script}; {self.complaints()}"
            time.sleep(0.05)

    def _find(self, selector: str) -> str:
        found: dict[str, str] = self._post("/element", using="css selector", value=selector)
        return found[ELEMENT]

    def _post(self, path: str, **body: object) -> dict:
        answer = self._http.post(self._session + path, json=body).json()["value"]
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    log = tmp_path_factory.mktemp("driver") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(["chromedriver", "--port=0"], stdout=out, stderr=out)
        while not (port := re.search(r"successfully on port (\d+)", log.read_text())):
            assert process.poll() is None
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port[1]}"
        process.terminate()
        process.wait()


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
