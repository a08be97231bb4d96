"""What a server does not let its clients do, and what nonsense it survives."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m3_runtime.server.guard import is_loopback
from m3_runtime.server.limits import Limits
from tests.runtime.running_server import Running

PATH = "/v1/chat/completions"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "seed": 1}
LONG = {**ASK, "max_tokens": 900, "temperature": 5, "stream": True}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with Running(folder, limits=Limits(max_body_bytes=20_000, body_s=0.5, max_open=3)) as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def _raw(server: Running, text: str, *, then_read: bool = True) -> bytes:
    """Send bytes as they are, and read the whole answer, however it is cut."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(text.encode())
        if not then_read:
            return b""
        reply = connection.recv(65536)
        length = re.compile(rb"(?i)content-length: (\d+).*?\r\n\r\n(.*)", re.DOTALL)
        while not (found := length.search(reply)) or len(found[2]) < int(found[1]):
            more = connection.recv(65536)
            if not more:
                break
            reply += more
        return reply


@pytest.mark.parametrize("chunked", [False, True], ids=["length told", "in chunks"])
def test_a_body_is_bounded_whether_it_tells_its_length_or_not(client: httpx.Client, chunked: bool) -> None:
    body = json.dumps({**ASK, "messages": [{"role": "user", "content": "x" * 30_000}]}).encode()
    pieces = (body[i : i + 5000] for i in range(0, len(body), 5000))
    reply = client.post(PATH, content=pieces if chunked else body, headers=JSON)
    assert (reply.status_code, reply.json()["error"]["type"]) == (413, "invalid_request_error")
    assert "20000 bytes" in reply.json()["error"]["message"]


def test_a_body_that_never_ends_is_given_up(server: Running) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    reply = _raw(server, head + '{"messages"')
    assert reply.startswith(b"HTTP/1.1 408")
    assert b"within 0.5 s" in reply


def test_a_body_must_say_that_it_is_json(client: httpx.Client) -> None:
    """Pages of other sites can send forms and text without asking first, but not this."""
    reply = client.post(PATH, content=json.dumps(ASK), headers={"Content-Type": "text/plain"})
    assert (reply.status_code, "application/json" in reply.text) == (415, True)
    good = client.post(PATH, content=json.dumps(ASK), headers={"Content-Type": "application/json; charset=utf-8"})
    assert good.status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("evil.example", 403), ("127.0.0.1.evil.example", 403), ("localhost:1", 200), ("[::1]:8000", 200), ("", 403)],
)
def test_without_a_key_only_local_names_are_answered(client: httpx.Client, host: str, status: int) -> None:
    assert client.get("/v1/models", headers={"Host": host}).status_code == status
    assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("given_key", "status"),
    [("Bearer sécret", 200), ("bearer  sécret", 200), ("Bearer secret", 401), ("Basic sécret", 401), ("sécret", 401)],
)
def test_a_key_is_a_bearer_token_and_opens_every_name(folder: Path, given_key: str, status: int) -> None:
    with Running(folder, api_key="sécret") as running:
        headers = {"Authorization": given_key.encode(), "Host": "m3.example"}
        for path in ("/v1/models", "/metrics"):
            reply = httpx.get(running.url + path, headers=headers)
            assert reply.status_code == status
        if status == 401:
            assert (reply.headers["www-authenticate"], reply.json()["error"]["code"]) == ("Bearer", "invalid_api_key")


def test_too_many_at_once_are_told_to_come_again(server: Running, client: httpx.Client) -> None:
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(client.stream("POST", PATH, json=LONG)).iter_lines() for _ in range(3)]
        assert all(map(next, streams))
        refused = client.post(PATH, json=ASK)
        assert refused.status_code == 429, refused.text
        assert refused.headers["retry-after"] == "1"
    server.wait_until_idle()
    assert client.post(PATH, json=ASK).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_leave_at_once_leave_nothing_behind(server: Running, stream: bool) -> None:
    body = json.dumps({**LONG, "stream": stream, "n": 2})
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    for _ in range(3):
        _raw(server, f"{head}\r\n\r\n{body}", then_read=False)
        server.wait_until_idle()


def test_answers_to_one_prompt_differ_by_their_seeds(server: Running, client: httpx.Client) -> None:
    body = {**ASK, "max_tokens": 20, "messages": [{"role": "user", "content": "The test fails. " * 30}]}
    server.wait_until_idle()  # three answers need the room that clients which left may still hold
    several = client.post(PATH, json={**body, "n": 3}).json()
    assert "choices" in several, several
    with ThreadPoolExecutor(1) as one_by_one:
        alone = list(one_by_one.map(lambda i: client.post(PATH, json={**body, "seed": 1 + i}).json(), range(3)))
    texts = [choice["message"] for choice in several["choices"]]
    assert texts == [reply["choices"][0]["message"] for reply in alone]
    assert several["usage"]["completion_tokens"] == sum(reply["usage"]["completion_tokens"] for reply in alone)
    assert several["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    with client.stream("POST", PATH, json={**body, "n": 3, "stream": True}) as response:
        chunks = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    streamed = ["", "", ""]
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        streamed[choice["index"]] += choice["delta"].get("content") or ""
    assert streamed == [text["content"] or "" for text in texts]
    server.wait_until_idle()


def test_metrics_count_what_happened(folder: Path) -> None:
    with Running(folder) as running:
        long = {**ASK, "messages": [{"role": "user", "content": "The test fails. " * 30}]}
        usages = [httpx.post(running.url + PATH, json=long).json()["usage"] for _ in range(2)]
        httpx.post(running.url + PATH, json={**ASK, "seed": "x"})
        text = httpx.get(f"{running.url}/metrics").text
        assert 'm3_requests_total{outcome="answered"} 2.0' in text
        assert 'm3_requests_total{outcome="refused"} 1.0' in text
        assert f"m3_prompt_tokens_total {2 * usages[0]['prompt_tokens']}.0" in text
        assert f"m3_cached_prompt_tokens_total {usages[1]['prompt_tokens_details']['cached_tokens']}.0" in text
        assert usages[1]["prompt_tokens_details"]["cached_tokens"] >= 128
        assert 'm3_cache_pages{state="used"} 0.0' in text
        assert "m3_time_to_first_token_seconds_count 2.0" in text
        page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
        told = {name.removesuffix("_total") for name in re.findall(r"`(m3_\w+)`", page)}
        assert told == {name.removesuffix("_total") for name in re.findall(r"# HELP (m3_\w+?)(?:_created)? ", text)}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', None),
        (b'{"messages": ' + b"[" * 100_0 + b"]" * 100_0 + b"}", None),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', None),
        (b'{"messages": [{"role": "user", "content": "x"}], "seed": 1e400}', "seed"),
        (b"\xff\xfe{}", None),
    ],
    ids=["half a character", "deep", "NaN", "infinite", "UTF-16"],
)
def test_json_that_no_program_should_send_is_refused(client: httpx.Client, body: bytes, param: str | None) -> None:
    reply = client.post(PATH, content=body, headers=JSON)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 99)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
keywords = st.sampled_from(
    ["type", "properties", "required", "items", "enum", "anyOf", "allOf", "$ref", "$defs", "additionalProperties", "p"]
)
schemas = st.recursive(
    anything | st.sampled_from(["object", "string", "array", ["string", "null"], "#/$defs/p", "#"]),
    lambda inner: st.dictionaries(keywords, inner, max_size=4),
    max_leaves=8,
)
message_fields = st.sampled_from(
    [
        "role",
        "content",
        "tool_calls",
        "reasoning_content",
        "tool_call_id",
        "name",
        "function",
        "arguments",
        "type",
        "text",
    ]
)
messages = st.recursive(
    anything | st.sampled_from(["user", "assistant", "tool", "system", "text", "image_url", "{}"]),
    lambda inner: st.dictionaries(message_fields, inner, max_size=5) | st.lists(inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    "messages",
    "tools",
    "tool_choice",
    "stop",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "n",
    "thinking",
]
FIELDS += ["stream_options", "candidates", "fixed_arguments", "proposed", "chat_template_kwargs", "model", "logit_bias"]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    change=st.dictionaries(st.sampled_from(FIELDS), anything, min_size=1, max_size=3)
    | st.builds(lambda message: {"messages": [*ASK["messages"], message]}, messages)
    | st.builds(
        lambda schema: {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}, schemas
    )
)
def test_no_request_makes_the_server_fail(client: httpx.Client, change: dict[str, Any]) -> None:
    if isinstance(change.get("n"), int):
        change["n"] = min(change["n"], 3)
    reply = client.post(PATH, json={**ASK, **change})
    assert reply.status_code in (200, 400, 404), reply.text
    if reply.status_code != 200 and reply.headers["content-type"] == "application/json":
        error = reply.json()["error"]
        assert error["message"]
        assert "\n" not in error["message"]


def test_what_is_loopback() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.9.9.9", "::1"]))
    assert not any(map(is_loopback, ["", "0.0.0.0", "::", "192.168.0.1", "localhost.evil.example"]))
