"""The server over a real socket: completions, streams, tools, errors, clients that leave."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from m3_runtime.chat.events import Candidate
from m3_runtime.chat.session import ChatEngine
from m3_runtime.server import bind
from m3_runtime.server.request import parse_request
from tests.runtime.running_server import Running

Tools = list[dict[str, Any]]
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "The test fails."}], "max_tokens": 12, "seed": 1}


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with Running(folder) as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def _chunks(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_models_and_health(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", 1024)
    assert model["extensions"] == ["candidates", "fixed_arguments", "proposed", "return_progress"]
    assert client.get("/health").json()["status"] == "ok"


def test_a_completion_and_its_stream_say_the_same(client: httpx.Client) -> None:
    whole = client.post("/v1/chat/completions", json={**ASK, "model": "tiny"}).json()
    (choice,) = whole["choices"]
    assert whole["object"] == "chat.completion"
    assert whole["usage"]["completion_tokens"] <= 12
    body = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = _chunks(response)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    assert chunks[-2]["choices"][0]["finish_reason"] == choice["finish_reason"]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
    assert text == (choice["message"]["content"] or "")


def test_a_named_tool_is_called(client: httpx.Client, tools: Tools) -> None:
    parameters = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    pick = {"type": "function", "function": {"name": "pick", "parameters": parameters}}
    choice = {"type": "function", "function": {"name": "pick"}}
    body = {**ASK, "max_tokens": 400, "tools": [*tools, pick], "tool_choice": choice, "thinking": {"type": "disabled"}}
    (answer,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert answer["finish_reason"] == "tool_calls"
    call = answer["message"]["tool_calls"][0]
    assert call["function"]["name"] == "pick"
    assert json.loads(call["function"]["arguments"])["n"] in (1, 2)
    history = [*ASK["messages"], answer["message"], {"role": "tool", "tool_call_id": call["id"], "content": "7"}]
    body = {**body, "messages": history, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        deltas = [c["choices"][0]["delta"] for c in _chunks(response)]
    assert any("tool_calls" in delta for delta in deltas)


def _search(tools: Tools, **changes: Any) -> dict[str, Any]:
    """A search for calls of a tool with few possible arguments, so that a model of noise completes them."""
    properties = {"colour": {"type": "string", "enum": ["red", "blue", "green"]}, "sure": {"type": "boolean"}}
    parameters = {"type": "object", "properties": properties, "required": ["colour", "sure"]}
    pick = {"type": "function", "function": {"name": "pick", "description": "Pick.", "parameters": parameters}}
    choice = {"type": "function", "function": {"name": "pick"}}
    return {
        **{**ASK, "max_tokens": 80, "tools": [*tools, pick], "tool_choice": choice, "thinking": {"type": "disabled"}},
        **{"candidates": 3, "fixed_arguments": {"colour": ["red", "blue"]}},
        **{"proposed": [{"colour": "green", "sure": False}, {"colour": "green", "sure": True}]},
        **changes,
    }


def test_candidates_are_choices_with_scores_as_the_engine_gives_them(server: Running, tools: Tools) -> None:
    body = _search(tools)
    expected = [
        (event.call.arguments, pytest.approx(event.logprob, abs=1e-3), event.proposed)
        for event in ChatEngine.load(server.folder, max_context=1024).stream(
            body["messages"], body["tools"], parse_request(json.dumps(body).encode(), "tiny").options
        )
        if isinstance(event, Candidate)
    ]
    assert [proposed for _, _, proposed in expected] == [False, False, False, True, True]
    with httpx.Client(base_url=server.url, timeout=30) as client:
        whole = client.post("/v1/chat/completions", json=body).json()
        streamed = {**body, "stream": True, "return_progress": True, "stream_options": {"include_usage": True}}
        with client.stream("POST", "/v1/chat/completions", json=streamed) as response:
            chunks = _chunks(response)
    assert [choice["index"] for choice in whole["choices"]] == list(range(len(expected)))
    found = [(c["message"]["tool_calls"], c["score"], c["proposed"]) for c in whole["choices"]]
    assert [(json.loads(t[0]["function"]["arguments"]), s, p) for t, s, p in found] == expected
    pieces = [c["choices"][0] for c in chunks if c["choices"] and "score" in c["choices"][0]]
    found = [(c["delta"]["tool_calls"], c["score"], c["proposed"]) for c in pieces]
    assert [(json.loads(t[0]["function"]["arguments"]), s, p) for t, s, p in found] == expected
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    progress = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
    assert progress[-1]["processed"] == progress[-1]["total"] >= whole["usage"]["prompt_tokens"]


def test_a_search_between_other_answers_changes_none_of_them(
    server: Running, client: httpx.Client, tools: Tools
) -> None:
    bodies = [_search(tools), *({**ASK, "seed": i, "max_tokens": 60} for i in range(3)), _search(tools, candidates=4)]
    alone = [client.post("/v1/chat/completions", json=body).json()["choices"] for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        posts = [pool.submit(httpx.post, f"{server.url}/v1/chat/completions", json=b, timeout=60) for b in bodies]
    assert [_without_scores(post.result().json()["choices"]) for post in posts] == [_without_scores(c) for c in alone]
    server.wait_until_idle()


def _without_scores(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Batches of other sizes round the last bits of a score differently."""
    return [{**choice, "score": round(choice.get("score", 0.0), 3)} for choice in choices]


def test_a_client_that_leaves_a_search_frees_its_pages(server: Running, client: httpx.Client, tools: Tools) -> None:
    choice = {"type": "function", "function": {"name": "edit_line"}}
    body = _search(tools, candidates=40, max_tokens=200, stream=True, return_progress=True)
    body |= {"tool_choice": choice, "fixed_arguments": {}, "proposed": []}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert any("prompt_progress" in line for line in response.iter_lines())
        assert server.app.state.worker.num_running == 1
    server.wait_until_idle()


def test_a_call_that_is_cut_off_leaks_no_markup(client: httpx.Client, tools: Tools) -> None:
    choice = {"type": "function", "function": {"name": "edit_line"}}
    body = {**ASK, "max_tokens": 6, "tools": tools, "tool_choice": choice, "thinking": {"type": "disabled"}}
    (answer,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert answer["finish_reason"] == "length"
    assert answer["message"] == {"role": "assistant", "content": None}


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "x"}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "a, b! " * 900}]}, 400, "messages"),
        ({"model": "other"}, 404, "model"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"temperature": -1}, 400, "temperature"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_completion_tokens": 0}, 400, "max_completion_tokens"),
        ({"n": 0}, 400, "n"),
        ({"n": 2, "candidates": 2}, 400, "n"),
        ({"stop": 3}, 400, "stop"),
        ({"stop": [""]}, 400, "stop"),
        ({"logprobs": 1}, 400, "logprobs"),
        ({"logprobs": True, "candidates": 2, "tool_choice": "required"}, 400, "tool_choice"),
        ({"top_logprobs": 2}, 400, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, 400, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, 400, "response_format"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "odd"}}}},
            400,
            "response_format",
        ),
        ({"presence_penalty": 1}, 400, "presence_penalty"),
        ({"tools": [{"type": "function"}]}, 400, "tools"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, 400, "tool_choice"),
        ({"stream": "yes"}, 400, "stream"),
        ({"candidates": 2}, 400, "candidates"),
        ({"candidates": "many"}, 400, "candidates"),
        ({"fixed_arguments": {"path": "a.py"}}, 400, "fixed_arguments"),
        ({"fixed_arguments": {"path": ["a.py"]}}, 400, "fixed_arguments"),
        ({"proposed": [{"path": "a.py"}]}, 400, "proposed"),
        ({"proposed": ["a.py"]}, 400, "proposed"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests_name_the_field(
    client: httpx.Client, change: dict[str, Any], status: int, param: str, stream: bool
) -> None:
    response = client.post("/v1/chat/completions", json={**ASK, "stream": stream, **change})
    assert response.status_code == status
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"]
    assert "\n" not in error["message"]


def test_bodies_and_paths_that_make_no_sense_get_error_objects(client: httpx.Client) -> None:
    headers = {"Content-Type": "application/json"}
    assert "not JSON" in client.post("/v1/chat/completions", content=b"{", headers=headers).json()["error"]["message"]
    assert client.post("/v1/chat/completions", json=[1]).status_code == 400
    assert client.get("/v1/other").status_code == 404
    assert "error" in client.get("/v1/other").json()


def test_a_client_that_leaves_frees_its_sequence(server: Running, client: httpx.Client) -> None:
    body = {**ASK, "max_tokens": 900, "stream": True, "temperature": 5}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        next(response.iter_lines())
    server.wait_until_idle()
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json={**body, "stream": False}, timeout=0.02)
    server.wait_until_idle()


def test_many_clients_at_once_get_what_each_would_get_alone(server: Running, client: httpx.Client) -> None:
    bodies = [
        {**ASK, "seed": i, "max_tokens": 20, "messages": [{"role": "user", "content": "x" * i}]} for i in range(12)
    ]
    alone = [client.post("/v1/chat/completions", json=b).json()["choices"] for b in bodies]
    found: dict[int, Any] = {}

    def ask(index: int) -> None:
        found[index] = httpx.post(f"{server.url}/v1/chat/completions", json=bodies[index], timeout=60).json()["choices"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(len(bodies))] == alone
    server.wait_until_idle()


def test_an_api_key_is_asked_for_and_an_open_address_needs_one(folder: Path) -> None:
    with Running(folder, api_key="secret") as running:
        assert httpx.get(f"{running.url}/v1/models").status_code == 401
        assert httpx.post(f"{running.url}/v1/chat/completions", json=ASK).json()["error"]["code"] == "invalid_api_key"
        headers = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{running.url}/v1/models", headers=headers).status_code == 200
        assert httpx.get(f"{running.url}/health").status_code == 200
    with pytest.raises(ValueError, match="give an API key"):
        bind("0.0.0.0", 0, api_key="")


def test_an_image_goes_in_as_a_data_url_and_a_bad_one_is_refused(folder: Path, seeing_folder: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (224, 112), "red").save(file, "PNG")

    def ask(server: Running, data: bytes) -> httpx.Response:
        url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 4}
        return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30)

    with Running(seeing_folder) as seeing:
        assert ask(seeing, file.getvalue()).json()["usage"]["prompt_tokens"] > 32
        refused = ask(seeing, b"<html>")
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith("messages[0].content[0]: this is no image")
    with Running(folder) as blind:
        refused = ask(blind, file.getvalue())
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "tiny reads text only; leave images and videos out"
