"""A model behind an OpenAI-compatible server: vLLM, SGLang, TensorRT-LLM, llama.cpp, or `m3 serve`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from m3_tools.base import ToolSpec
from m3agent.llm.protocol import (
    BadReply,
    CandidateReady,
    ContextFull,
    Finished,
    ModelEvent,
    ModelInfo,
    Options,
    Refused,
    ToolCallReady,
    Unavailable,
    Usage,
)
from m3agent.llm.sse import ChunkAssembler, error_message
from m3agent.llm.wire import message_to_chat
from m3agent.messages import Message, ToolCall

FIRST_TOKEN_S = 1800.0
"""Seconds of silence that are allowed: a local server may read a whole repository before its first token."""
UNKNOWN_CONTEXT_TOKENS = 32_768
"""Assumed when a server does not say how long its window is."""
DELAYS_S = (0.5, 1.0, 2.0, 4.0)
"""Pauses before a request is tried again while a server is busy or starts up."""
SEARCH = frozenset({"candidates", "fixed_arguments", "proposed"})
"""The request fields with which `m3 serve` searches for candidates; its /models names them as `extensions`."""
MAX_UNANSWERED = 2
"""Where nobody listens at all, a person waits for the answer to a wrong address: fewer tries."""
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_TOO_LONG = re.compile(
    r"context[ _-]?(length|window|size)|maximum.{0,20}tokens|too (long|many tokens)|max_model_len", re.I
)


class EndpointModel:
    """One model of one server. Only ModelError and its children leave it."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        info: ModelInfo,
        *,
        model: str,
        extensions: frozenset[str] = frozenset(),
        delays_s: Sequence[float] = DELAYS_S,
    ):
        self._client, self._info, self._model, self._delays_s = client, info, model, tuple(delays_s)
        self._extensions = extensions

    @classmethod
    async def connect(
        cls, url: str, *, api_key: str = "", model: str = "", delays_s: Sequence[float] = DELAYS_S
    ) -> EndpointModel:
        """Ask the server which models it has; without `model` the first one answers.

        Errors: Unavailable when nobody answers, Refused for a bad key, a wrong path or an unknown model.
        """
        host = urlsplit(url).hostname or ""
        client = httpx.AsyncClient(
            base_url=url.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(60.0, connect=10.0, read=FIRST_TOKEN_S),
            limits=httpx.Limits(max_connections=128),
            trust_env=host not in ("localhost", "127.0.0.1", "::1"),
        )
        try:
            probe = cls(client, ModelInfo(name=url, context_tokens=0), model=model, delays_s=delays_s)
            async with probe._open("GET", "models", None) as response:
                listed = _models(await response.aread(), url)
            chosen = listed[0] if not model else next((m for m in listed if m.get("id") == model), None)
            if chosen is None:
                names = ", ".join(str(m.get("id")) for m in listed[:8])
                raise Refused(f"{url} has no model {model!r}; it has: {names}")
            info = ModelInfo(
                name=str(chosen["id"]),
                context_tokens=_context(chosen),
                is_nano=chosen["id"] == "m3-nano",
                reads_images=chosen["id"] != "m3-nano",
            )
            return cls(client, info, model=info.name, extensions=_extensions(chosen), delays_s=delays_s)
        except BaseException:
            await client.aclose()
            raise

    @property
    def info(self) -> ModelInfo:
        return self._info

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], options: Options
    ) -> AsyncIterator[ModelEvent]:
        body = self._body(messages, tools, options)
        if options.candidates > 1 and not self._extensions >= SEARCH:
            async for event in self._candidates(body, options):
                yield event
            return
        async with aclosing(self._reply(body)) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        await self._client.aclose()

    def _body(self, messages: Sequence[Message], tools: Sequence[ToolSpec], options: Options) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [message_to_chat(message, "http") for message in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": min(options.max_tokens, self._info.context_tokens // 2),
            "temperature": options.temperature,
            "top_p": options.top_p,
        }
        if tools:
            body["tools"] = [tool.to_openai() for tool in tools]
        if options.tool_choice:
            body["tool_choice"] = {"type": "function", "function": {"name": options.tool_choice}}
        if options.top_k > 0:
            body["top_k"] = options.top_k
        if options.seed is not None:
            body["seed"] = options.seed
        if options.thinking != "adaptive":
            body["chat_template_kwargs"] = {"thinking_mode": options.thinking}
        if "return_progress" in self._extensions:
            body["return_progress"] = True
        if self._extensions >= SEARCH:
            body["candidates"] = options.candidates
            body["fixed_arguments"] = {name: list(values) for name, values in options.fixed_arguments.items()}
            body["proposed"] = [dict(arguments) for arguments in options.proposed]
        return body

    async def _reply(self, body: Mapping[str, Any]) -> AsyncGenerator[ModelEvent, None]:
        assembler = ChunkAssembler()
        async with self._open("POST", "chat/completions", body) as response:
            try:
                async for line in response.aiter_lines():
                    payload = line.removeprefix("data:").strip()
                    if not line.startswith("data:") or not payload:
                        continue
                    if payload == "[DONE]":
                        break
                    for event in assembler.feed(payload):
                        yield event
            except httpx.TimeoutException as error:
                raise Unavailable(f"{self._where} sent nothing for {FIRST_TOKEN_S:.0f} s") from error
            except (httpx.HTTPError, httpx.StreamError) as error:
                raise BadReply(f"{self._where} closed the connection in the middle of the reply") from error
        for event in assembler.finish():
            yield event

    async def _candidates(self, body: Mapping[str, Any], options: Options) -> AsyncIterator[ModelEvent]:
        """Several replies at once, each with its own seed; equal calls are one, and their share is the score.

        For servers that cannot search. A temperature of 0 would give the same reply every time: the default is used.
        """
        base = options.seed or 0
        body = {**body, "temperature": options.temperature or Options.temperature}
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._first_call({**body, "seed": base + i})) for i in range(options.candidates)
                ]
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        outcomes = [task.result() for task in tasks]
        calls = [call for call, _ in outcomes if isinstance(call, ToolCall)]
        if not calls:
            problem = next((call for call, _ in outcomes if isinstance(call, BadReply)), None)
            raise problem or BadReply("none of the replies holds a call")
        counts: dict[str, int] = {}
        first: dict[str, ToolCall] = {}
        for call in calls:
            key = json.dumps([call.name, call.arguments], sort_keys=True)
            counts[key] = counts.get(key, 0) + 1
            first.setdefault(key, call)
        for number, key in enumerate(sorted(first, key=lambda key: -counts[key]), start=1):
            call = dataclasses.replace(first[key], id=f"candidate_{number}")
            yield CandidateReady(call=call, score=math.log(counts[key] / len(calls)))
        usages = [usage for _, usage in outcomes]
        yield Finished(
            reason="tool_calls",
            usage=Usage(
                prompt_tokens=sum(u.prompt_tokens for u in usages),
                cached_tokens=sum(u.cached_tokens for u in usages),
                completion_tokens=sum(u.completion_tokens for u in usages),
            ),
        )

    async def _first_call(self, body: Mapping[str, Any]) -> tuple[ToolCall | BadReply | None, Usage]:
        call: ToolCall | None = None
        usage = Usage()
        try:
            async for event in self._reply(body):
                if isinstance(event, ToolCallReady):
                    call = call or event.call
                elif isinstance(event, Finished):
                    usage = event.usage
        except BadReply as error:
            return error, usage
        return call, usage

    @asynccontextmanager
    async def _open(self, method: str, path: str, body: Mapping[str, Any] | None) -> AsyncIterator[httpx.Response]:
        """The one good response, open; tried again only while nothing of a reply has arrived."""
        for attempt in range(len(self._delays_s) + 1):
            last = attempt == len(self._delays_s)
            delay = 0.0 if last else self._delays_s[attempt]
            try:
                async with self._client.stream(method, path, json=body) as response:
                    if response.is_success:
                        yield response
                        return
                    text = (await response.aread()).decode("utf-8", "replace")
                    if response.status_code not in _RETRIED or last:
                        raise _refusal(response.status_code, text, self._where)
                    delay = max(delay, _retry_after(response))
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                if last or attempt >= MAX_UNANSWERED:
                    raise Unavailable(f"nobody answers at {self._where}: is the server running?") from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise Unavailable(f"{self._where} cannot be used: {error or type(error).__name__}") from error
            await asyncio.sleep(delay)

    @property
    def _where(self) -> str:
        return str(self._client.base_url).rstrip("/")


def _models(content: bytes, url: str) -> list[dict[str, Any]]:
    try:
        listed = json.loads(content)["data"]
        if listed and all("id" in model for model in listed):
            return list(listed)
    except (ValueError, KeyError, TypeError):
        pass
    raise Refused(
        f"{url} is no OpenAI-compatible API (its /models is no list of models); its address usually ends in /v1"
    )


def _context(model: Mapping[str, Any]) -> int:
    meta = model.get("meta") or {}
    for value in (model.get("max_model_len"), model.get("context_length"), meta.get("n_ctx_train"), meta.get("n_ctx")):
        if isinstance(value, int) and value > 0:
            return value
    return UNKNOWN_CONTEXT_TOKENS


def _extensions(model: Mapping[str, Any]) -> frozenset[str]:
    """The fields beyond OpenAI's that the server reads; none where the list is missing or something else."""
    named = model.get("extensions")
    return frozenset(name for name in named if isinstance(name, str)) if isinstance(named, list) else frozenset()


def _refusal(status: int, text: str, where: str) -> Exception:
    try:
        message = error_message(json.loads(text))
    except ValueError:
        message = text.strip()[:300]
    if status in _RETRIED:
        return Unavailable(f"{where} is not ready (HTTP {status}): {message}")
    if status in (401, 403):
        return Refused(f"{where} refused the key (HTTP {status}): set M3_API_KEY. It said: {message}")
    if status == 413 or (status in (400, 422) and _TOO_LONG.search(message)):
        return ContextFull(f"the prompt does not fit the window of the model: {message}")
    if status == 404:
        return Refused(f"{where} has no such address or model (HTTP 404); the address usually ends in /v1. {message}")
    return Refused(f"{where} refused the request (HTTP {status}): {message}")


def _retry_after(response: httpx.Response) -> float:
    try:
        return min(30.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
