"""The HTTP side: routes, authorisation, server-sent events, and errors in OpenAI's form."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from m3_runtime.chat.events import PrefillProgress
from m3_runtime.chat.session import ChatEngine
from m3_runtime.request import PromptTooLong
from m3_runtime.server.wire import EXTENSIONS, BadRequest, ChatRequest, CompletionWriter, error_json, parse_request
from m3_runtime.server.worker import Job, Worker


def create_app(chat: ChatEngine, *, api_key: str = "") -> Starlette:
    """An ASGI application that serves one engine; with an `api_key`, every route but /health asks for it."""
    worker = Worker(chat)
    server = _Server(chat, worker, api_key)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(worker.stop)

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", server.chat_completions, methods=["POST"]),
            Route("/v1/models", server.models),
            Route("/health", server.health),
        ],
        exception_handlers={404: _not_found, 405: _not_found, Exception: _internal},
        lifespan=lifespan,
    )
    app.state.worker = worker
    return app


def run(chat: ChatEngine, *, host: str = "127.0.0.1", port: int = 8000, api_key: str = "") -> None:
    """Serve until interrupted. ValueError for an address beyond this machine without an API key."""
    if not api_key and not is_loopback(host):
        raise ValueError(f"serving on {host} opens the model to the network; give an API key or use 127.0.0.1")
    uvicorn.run(create_app(chat, api_key=api_key), host=host, port=port, log_level="warning")


def is_loopback(host: str) -> bool:
    """Whether the address can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Server:
    def __init__(self, chat: ChatEngine, worker: Worker, api_key: str):
        self._chat, self._worker, self._api_key = chat, worker, api_key

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": self._chat.name, "running": self._worker.num_running})

    async def models(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        model: dict[str, Any] = {"id": self._chat.name, "object": "model", "created": 0, "owned_by": "m3"}
        model |= {"max_model_len": self._chat.context_tokens, "extensions": list(EXTENSIONS)}
        return JSONResponse({"object": "list", "data": [model]})

    async def chat_completions(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        try:
            try:
                body = json.loads(await request.body())
            except ValueError as error:
                raise BadRequest(f"the body is not JSON: {error}") from error
            parsed = parse_request(body, self._chat.name)
            job = Job(parsed.messages, parsed.tools, parsed.options)
            self._worker.submit(job)
            writer = CompletionWriter(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), self._chat.name)
            if parsed.stream:
                return await self._stream(parsed, job, writer)
            return await self._whole(request, job, writer)
        except Exception as error:  # the edge: every error of the engine becomes a reply
            return _error_reply(error)

    async def _stream(self, parsed: ChatRequest, job: Job, writer: CompletionWriter) -> Response:
        events = job.events()
        # The first event decides between an error reply and a stream.
        first = await anext(events)

        async def lines() -> AsyncIterator[str]:
            try:
                yield _line(writer.first_chunk())
                event = first
                while True:
                    if isinstance(event, PrefillProgress):
                        yield f": read {event.done_tokens} of {event.total_tokens} prompt tokens\n\n"
                    for chunk in writer.chunks(
                        event, include_usage=parsed.include_usage, return_progress=parsed.return_progress
                    ):
                        yield _line(chunk)
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        break
                yield "data: [DONE]\n\n"
            except (ValueError, RuntimeError) as error:
                yield _line(error_json(str(error), kind="server_error"))
            finally:
                await events.aclose()  # type: ignore[attr-defined]

        return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    async def _whole(self, request: Request, job: Job, writer: CompletionWriter) -> Response:
        async def collect() -> None:
            async for event in job.events():
                writer.add(event)

        async def wait_for_disconnect() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        answer, gone = asyncio.create_task(collect()), asyncio.create_task(wait_for_disconnect())
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                return Response(status_code=499)  # nobody is there to read it
            answer.result()
            return JSONResponse(writer.completion())
        finally:
            job.cancelled = True
            for task in (answer, gone):
                task.cancel()

    def _refusal(self, request: Request) -> Response | None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not self._api_key or hmac.compare_digest(given.encode(), self._api_key.encode()):
            return None
        body = error_json(
            "the API key is missing or wrong; send Authorization: Bearer KEY",
            kind="authentication_error",
            code="invalid_api_key",
        )
        return JSONResponse(body, status_code=401)


def _error_reply(error: Exception) -> Response:
    if isinstance(error, BadRequest):
        body = error_json(str(error), kind="invalid_request_error", param=error.param, code=error.code)
        return JSONResponse(body, status_code=error.status)
    if isinstance(error, PromptTooLong):
        body = error_json(str(error), kind="invalid_request_error", param="messages", code="context_length_exceeded")
        return JSONResponse(body, status_code=400)
    if isinstance(error, ValueError):
        return JSONResponse(error_json(str(error), kind="invalid_request_error", param="messages"), status_code=400)
    return JSONResponse(error_json(f"{type(error).__name__}: {error}", kind="server_error"), status_code=500)


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = f"{request.method} {request.url.path} is not served here; use POST /v1/chat/completions or GET /v1/models"
    return JSONResponse(error_json(message, kind="invalid_request_error"), status_code=status)


async def _internal(request: Request, error: Exception) -> Response:
    return _error_reply(error)


def _line(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
