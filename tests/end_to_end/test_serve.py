"""`m3 serve` with nano, seen by public clients: OpenAI's own, and Hugging Face's, which shares no code with it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError

from tests.end_to_end.conftest import ROOT
from tests.end_to_end.served import Served

ASK: dict[str, Any] = {
    "model": "m3-nano",
    "messages": [{"role": "user", "content": "Run the tests."}],
    "max_tokens": 12,
}
PICK = {
    "type": "function",
    "function": {
        "name": "pick",
        "description": "Pick a colour.",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
            "required": ["colour"],
        },
    },
}
CALL: dict[str, Any] = {
    **{**ASK, "max_tokens": 80, "tools": [PICK]},
    "tool_choice": {"type": "function", "function": {"name": "pick"}},
}
THINKING_OFF = {"chat_template_kwargs": {"thinking_mode": "disabled"}}
LONG: dict[str, Any] = {**ASK, "max_tokens": 1500, "temperature": 5, "stream": True}
"""At this temperature nano does not come to an end before its window is full."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment without anything of ours in it but a home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("M3_", "OPENAI_", "HF_"))}
    return {**kept, "M3_HOME": str(tmp_path_factory.mktemp("home"))}


@pytest.fixture(scope="module")
def served(home: dict[str, str]) -> Iterator[Served]:
    server = Served(home)
    yield server
    server.close()


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def hugging_face(served: Served) -> Iterator[InferenceClient]:
    with InferenceClient(base_url=served.url, api_key="none", timeout=60) as client:
        yield client


def test_openai_s_client_reads_answers_and_streams(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["m3-nano"]
    assert client.models.retrieve("m3-nano").id == "m3-nano"
    whole = client.chat.completions.create(**ASK, seed=3)
    assert whole.usage is not None
    chunks = list(client.chat.completions.create(**ASK, seed=3, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    stopped = client.chat.completions.create(**ASK, seed=3, stop=text[4:6])
    assert stopped.choices[0].message.content == text[: text.index(text[4:6])]
    assert stopped.choices[0].finish_reason == "stop"


def test_the_example_of_the_page_runs(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    exec(code.replace("http://127.0.0.1:8000/v1", served.url), {})
    assert capsys.readouterr().out


def test_openai_s_client_reads_several_answers_and_the_cached_share_of_a_prompt(client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "Run the tests. " * 60}]
    body = {**ASK, "messages": long, "seed": 5, "temperature": 2, "extra_body": THINKING_OFF}
    three = client.chat.completions.create(**body, n=3)
    texts = [choice.message.content for choice in three.choices]
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert three.usage is not None
    one = client.chat.completions.create(**body)
    assert one.choices[0].message.content == texts[0]
    assert one.usage is not None
    assert one.usage.prompt_tokens == three.usage.prompt_tokens
    assert one.usage.prompt_tokens_details is not None
    assert one.usage.prompt_tokens_details.cached_tokens == 128  # one page of the 251 tokens is whole


def test_openai_s_client_reads_a_call_whole_and_from_a_stream(client: openai.OpenAI) -> None:
    call = client.chat.completions.create(**CALL, seed=1, extra_body=THINKING_OFF).choices[0]
    assert call.finish_reason == "tool_calls"
    assert call.message.tool_calls is not None
    (tool_call,) = call.message.tool_calls
    assert tool_call.type == "function"
    assert json.loads(tool_call.function.arguments)["colour"] in ("red", "blue")
    stream = client.chat.completions.create(**CALL, seed=1, extra_body=THINKING_OFF, stream=True)
    pieces = [d for chunk in stream for d in chunk.choices[0].delta.tool_calls or ()]
    assert [(p.id, p.function) for p in pieces] != []
    assert "".join((p.function and p.function.arguments) or "" for p in pieces) == tool_call.function.arguments
    answer = {"role": "tool", "tool_call_id": tool_call.id, "content": "done"}
    history = [*ASK["messages"], call.message.model_dump(exclude_none=True), answer]
    assert client.chat.completions.create(**{**CALL, "messages": history}, seed=1).choices[0].message


SIZES = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}, "count": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["size", "count"],
    "additionalProperties": False,
}


def test_openai_s_client_gets_json_that_follows_its_schema(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "sizes", "schema": SIZES, "strict": True}}
    body = {**ASK, "max_tokens": 40, "response_format": form, "extra_body": THINKING_OFF}
    for seed in range(3):
        text = client.chat.completions.create(**body, seed=seed).choices[0].message.content
        found = json.loads(text or "")
        assert set(found) == {"size", "count"}
        assert found["size"] in ("small", "large")
        assert 1 <= found["count"] <= 99
    stream = client.chat.completions.create(**body, seed=2, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == text
    thought = client.chat.completions.create(**{**body, "extra_body": None}, seed=1).choices[0]
    assert thought.finish_reason == "length" or json.loads(thought.message.content or "")


def test_openai_s_client_gets_an_object_of_any_form(client: openai.OpenAI) -> None:
    body = {**ASK, "max_tokens": 30, "response_format": {"type": "json_object"}, "extra_body": THINKING_OFF}
    choices = [client.chat.completions.create(**body, seed=seed).choices[0] for seed in range(4)]
    assert all((choice.message.content or "").startswith("{") for choice in choices)
    whole = [choice.message.content or "" for choice in choices if choice.finish_reason == "stop"]
    assert all(isinstance(json.loads(text), dict) for text in whole)


@pytest.mark.parametrize("body", [ASK, CALL], ids=["text", "call"])
def test_openai_s_client_reads_log_probabilities(client: openai.OpenAI, body: dict[str, Any]) -> None:
    asked = {**body, "seed": 4, "logprobs": True, "top_logprobs": 3, "extra_body": THINKING_OFF}
    (whole,) = client.chat.completions.create(**asked).choices
    assert whole.logprobs is not None
    content = whole.logprobs.content or []
    assert content
    for one in content:
        best = [other.logprob for other in one.top_logprobs]
        assert best == sorted(best, reverse=True)
        assert one.logprob <= best[0] <= 0
        assert bytes(one.bytes or ()).decode("utf-8", "replace") == one.token
        assert math.fsum(math.exp(value) for value in best) <= 1.0001
    if body is ASK:
        assert b"".join(bytes(one.bytes or ()) for one in content).decode() == whole.message.content
    streamed = [
        one
        for chunk in client.chat.completions.create(**asked, stream=True)
        for choice in chunk.choices
        if choice.logprobs is not None
        for one in choice.logprobs.content or ()
    ]
    assert streamed == content


def test_reasoning_comes_apart_from_the_text(client: openai.OpenAI) -> None:
    body = {"chat_template_kwargs": {"thinking_mode": "enabled"}}
    message = client.chat.completions.create(**ASK, seed=1, extra_body=body).choices[0].message
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"]
    assert not message.content


def test_openai_s_client_raises_its_own_errors_with_the_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**ASK, temperature=-1)
    assert (bad.value.param, bad.value.status_code) == ("temperature", 400)
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(**{**ASK, "model": "gpt"})
    assert unknown.value.code == "model_not_found"
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(openai.BadRequestError, match="image") as picture:
        client.chat.completions.create(**{**ASK, "messages": [{"role": "user", "content": [image]}]})
    assert picture.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(**{**ASK, "messages": [{"role": "user", "content": "a, b! " * 3000}]})
    assert too_long.value.code == "context_length_exceeded"


def test_hugging_face_s_client_streams_calls_and_is_told_what_is_wrong(hugging_face: InferenceClient) -> None:
    stream = hugging_face.chat_completion(**ASK, seed=3, stream=True)
    text = "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)
    assert text == hugging_face.chat_completion(**ASK, seed=3).choices[0].message.content
    (choice,) = hugging_face.chat_completion(**CALL, seed=1, extra_body=THINKING_OFF).choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or ()
    assert json.loads(call.function.arguments)["colour"] in ("red", "blue")
    (scored,) = hugging_face.chat_completion(**ASK, seed=3, logprobs=True, top_logprobs=2).choices
    assert scored.logprobs is not None
    assert all(len(one.top_logprobs) == 2 for one in scored.logprobs.content)
    with pytest.raises(BadRequestError, match="presence_penalty is not supported"):
        hugging_face.chat_completion(**ASK, presence_penalty=1)


def test_32_clients_at_once_get_what_each_would_get_alone(served: Served, client: openai.OpenAI) -> None:
    def ask(seed: int) -> str | None:
        messages = [{"role": "user", "content": f"Show {'file ' * seed}{seed}."}]
        body = {**ASK, "messages": messages, "max_tokens": 6, "temperature": 0}
        return client.chat.completions.create(**body, seed=seed).choices[0].message.content

    alone = {seed: ask(seed) for seed in (0, 13, 31)}
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(ask, range(32)))
    assert {seed: together[seed] for seed in alone} == alone
    served.wait_until_idle()


def test_a_client_that_is_killed_gives_its_pages_back(served: Served, tmp_path: Path) -> None:
    before = served.metrics()["m3_requests_total{left}"]
    script = tmp_path / "client.py"
    script.write_text(
        "import openai, sys\n"
        f"client = openai.OpenAI(base_url={served.url!r}, api_key='none')\n"
        f"for chunk in client.chat.completions.create(**{LONG!r}):\n"
        "    print('chunk', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(4):
            assert process.stdout.readline() == b"chunk\n"
        assert served.metrics()["m3_cache_pages{used}"] > 0
        process.kill()
    killed = time.monotonic()
    after = served.wait_until_idle()
    assert time.monotonic() - killed < 2
    assert after["m3_requests_total{left}"] == before + 1


def test_sigterm_gives_a_grace_and_then_tells_every_client(home: dict[str, str], tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    served = Served(home, "--api-key-file", str(key), "--grace", "1")
    try:
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=served.url, api_key="wrong", max_retries=0).models.list()
        client = openai.OpenAI(base_url=served.url, api_key="s3cret", max_retries=0)
        stream = client.chat.completions.create(**LONG)
        next(iter(stream))
        whole: list[openai.APIStatusError] = []

        def ask() -> None:
            with pytest.raises(openai.APIStatusError) as caught:
                client.chat.completions.create(**{**LONG, "stream": False})
            whole.append(caught.value)

        thread = threading.Thread(target=ask)
        thread.start()
        while served.metrics("s3cret")["m3_answers_running"] < 2:
            time.sleep(0.02)
        asked = time.monotonic()
        results: list[tuple[int, str]] = []
        ending = threading.Thread(target=lambda: results.append(served.end()))
        ending.start()
        with pytest.raises(openai.APIError, match="was stopped before the answer ended"):
            for _ in stream:
                pass
        assert time.monotonic() - asked > 0.9  # it went on for a while
        thread.join(10)
        ending.join(20)
        assert [error.status_code for error in whole] == [503]
        assert results == [(143, "")]
        assert time.monotonic() - asked < 5
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{served.url}/models")
    finally:
        served.close()
