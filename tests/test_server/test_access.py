"""Keys and origins: who does not belong learns nothing but /health, /ready and the page, the same everywhere."""

import base64
import hmac

import httpx
import openai
import pytest

from runtime.errors import OptionError
from runtime.server.auth import read_keys

KEYS = ("first-key-1234", "second-key-5678")
PATHS = ["/v1/models", "/metrics", "/version", "/status", "/openapi.json", "/page/nothing.js", "/page/", "/nothing"]
# The page asks for the key itself, so it and its files are shown without one: they hold no word about the server.
PAGE = ["/", "/page/page.js", "/page/page.css"]


@pytest.fixture(scope="module")
def guarded(start, chat_bundle):
    return start(chat_bundle, api_keys=KEYS, cors_origins=("https://chat.example.com",))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic !!!", "Bearer first-key-123", "first-key-1234"])
def test_without_a_key_every_path_says_the_same(guarded, path, header):
    answer = httpx.get(guarded.url + path, headers={"authorization": header} if header else {})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert "tiny" not in answer.text


@pytest.mark.parametrize("path", PAGE)
def test_the_page_is_the_same_for_everybody(guarded, http, path):
    answer = httpx.get(guarded.url + path)
    assert (answer.status_code, answer.content) == (200, http.get(path).content)
    assert "tiny" not in answer.text


def test_a_browser_does_not_ask_for_a_name_and_a_password(guarded):
    assert httpx.get(f"{guarded.url}/status").headers["www-authenticate"].startswith("Bearer")


def test_probes_need_no_key_and_learn_one_word(guarded):
    answers = [httpx.get(guarded.url + path) for path in ("/health", "/ready")]
    assert [answer.json() for answer in answers] == [{"status": "ok"}, {"status": "ready"}]


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens(guarded, key):
    with guarded.client(api_key=key) as client:
        assert client.models.list().data[0].id == "tiny"
    basic = base64.b64encode(f":{key}".encode()).decode()  # what a proxy may send
    assert httpx.get(f"{guarded.url}/status", headers={"authorization": f"Basic {basic}"}).status_code == 200


def test_openais_client_knows_the_refusal(guarded):
    with guarded.client(api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_keys_are_compared_in_constant_time_and_all_of_them(guarded, monkeypatch):
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or compare(a, b))
    httpx.get(f"{guarded.url}/version", headers={"authorization": f"Bearer {KEYS[0]}"})
    assert len(compared) == len(KEYS)
    assert {len(digest) for pair in compared for digest in pair} == {32}


def test_pages_of_other_origins_are_refused(server):
    refused = httpx.get(f"{server.url}/v1/models", headers={"origin": "https://evil.example.com"})
    own = httpx.get(f"{server.url}/v1/models", headers={"origin": server.url})
    assert (refused.status_code, own.status_code) == (403, 200)
    assert "access-control-allow-origin" not in refused.headers


def test_a_named_origin_may_ask_and_read(guarded):
    origin = {"origin": "https://chat.example.com"}
    asked = httpx.options(
        f"{guarded.url}/v1/models",
        headers=origin | {"access-control-request-method": "GET", "access-control-request-headers": "authorization"},
    )
    answer = httpx.get(f"{guarded.url}/v1/models", headers=origin | {"authorization": f"Bearer {KEYS[0]}"})
    assert (asked.status_code, answer.status_code) == (200, 200)
    assert answer.headers["access-control-allow-origin"] == origin["origin"]


def test_a_form_of_another_page_cannot_send_json(http):
    answer = http.post("/v1/chat/completions", content="{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "words"), [("", "no key"), ("short", "8 printable"), ("# c\na key with blanks", "8")]
)
def test_a_key_file_that_guards_nothing_is_refused(tmp_path, content, words):
    (tmp_path / "keys").write_text(content)
    with pytest.raises(OptionError, match=words):
        read_keys(tmp_path / "keys")


def test_a_key_file_has_comments_and_blank_lines(tmp_path):
    (tmp_path / "keys").write_text("# ours\nfirst-key-1234\n\n  second-key-5678  \n")
    assert read_keys(tmp_path / "keys") == KEYS
