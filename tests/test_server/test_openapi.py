"""The published document, and requests made up from it: thousands of them with ONNXLM_SCHEMA_CASES=5000."""

import os
from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from runtime import EngineOptions
from runtime.server.app import create_app
from runtime.server.openai.protocol import ChatFields
from runtime.server.openai.schema import document, schema_of

CASES = int(os.environ.get("ONNXLM_SCHEMA_CASES", "240"))
SCHEMA = schemathesis.openapi.from_dict(document(keys=False))
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/completions", "/tokenize", "/detokenize")
ENCODERS = ("/v1/embeddings", "/rerank", "/score", "/classify")  # of which this server has no model
OTHERS = ("/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/api/generate", "/api/show", "/api/embed")
POSTS = [(path, "POST") for path in (*PATHS, *ENCODERS, *OTHERS)]
STORED = [("/v1/responses/{id}", "GET"), ("/v1/responses/{id}", "DELETE"), ("/v1/responses/{id}/input_items", "GET")]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def url(start, chat_bundle) -> Iterator[str]:
    """A server that ends long answers, so that thousands of cases take minutes and not hours."""
    engine = EngineOptions(max_concurrency=8, context=128, threads=1)
    return start(chat_bundle, engine, request_seconds=5.0, default_max_tokens=16).url


def check(case, url):
    """Send a case; nothing may hang, and no answer may be one that the document does not know."""
    response = case.call(base_url=url, timeout=30)
    case.validate_response(response, checks=CHECKS)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("path", "method"), POSTS)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_breaks_the_server(url, path, method, mode):
    share = max(10, CASES // (2 * len(POSTS)))

    @given(case=SCHEMA[path][method].as_strategy(generation_mode=mode))
    @settings(max_examples=share, database=None, suppress_health_check=list(HealthCheck))
    def every_case(case):
        check(case, url)

    every_case()
    assert httpx.get(f"{url}/health").status_code == 200


@pytest.mark.parametrize(("path", "method"), STORED)
def test_what_is_not_stored_is_a_404_whatever_it_is_called(url, path, method):
    @given(case=SCHEMA[path][method].as_strategy())
    @settings(max_examples=20, database=None, suppress_health_check=list(HealthCheck))
    def every_case(case):
        check(case, url)

    every_case()


@pytest.mark.parametrize(
    "path", ["/v1/models", "/health", "/ready", "/version", "/status", "/api/tags", "/api/ps", "/api/version"]
)
def test_what_has_no_body_is_as_published(url, path):
    check(SCHEMA[path]["GET"].Case(), url)


def test_every_route_is_published():
    unlisted = {"/", "/page/{name}", "/v1/models/{name}", "/tokenizer_info", "/metrics", "/openapi.json"}
    routes = {route.path.replace(":path", "") for route in create_app({}).routes}
    assert routes - unlisted == set(document(keys=False)["paths"])


@given(st.sampled_from(["n", "temperature", "logprobs"]))
def test_the_document_is_made_of_the_fields_that_are_read(name):
    published = document(keys=True)["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    schema = published["content"]["application/json"]["schema"]
    assert set(schema_of(ChatFields)["properties"]) <= set(schema["properties"])
    assert {"type": "null"} in schema["properties"][name]["anyOf"]
