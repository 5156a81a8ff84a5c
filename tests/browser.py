"""Chromium behind its driver, for tests that look at a page."""

import base64
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

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

    def press(self, key: str) -> None:
        """A key of the keyboard, wherever the focus is."""
        strokes = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._post("/actions", actions=[{"type": "key", "id": "keyboard", "actions": strokes}])

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self._post("/se/log", type="browser")]

    def fresh(self) -> None:
        """A window of its own, and nothing that earlier ones left in storage."""
        (old,) = self._http.get(f"{self._session}/window/handles").json()["value"]
        handle = self._post("/window/new", type="tab")["handle"]
        self._post("/window", handle=old)
        self.devtools("Storage.clearDataForOrigin", origin="*", storageTypes="local_storage")
        self._http.delete(f"{self._session}/window").raise_for_status()
        self._post("/window", handle=handle)
        self._post("/window/rect", width=1200, height=800)

    def devtools(self, command: str, **params: object) -> object:
        return self._post("/goog/cdp/execute", cmd=command, params=params)

    def resize(self, width: int, height: int) -> None:
        self._post("/window/rect", width=width, height=height)

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


@contextmanager
def running_driver(log: Path) -> Iterator[str]:
    """The address of a driver that writes into `log`."""
    with log.open("wb") as out:
        process = subprocess.Popen(["chromedriver", "--port=0"], stdout=out, stderr=out)
        while not (port := re.search(r"successfully on port (\d+)", log.read_text())):
            assert process.poll() is None
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port[1]}"
        process.terminate()
        process.wait()
