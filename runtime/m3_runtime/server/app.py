"""The HTTP side: routes, server-sent events, and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from m3_runtime.chat.events import ChatEvent, PrefillProgress
from m3_runtime.chat.session import ChatEngine
from m3_runtime.server.completion import CompletionWriter
from m3_runtime.server.errors import RequestError, error_json, error_response, for_client
from m3_runtime.server.guard import Guard
from m3_runtime.server.limits import Limits
from m3_runtime.server.metrics import Metrics, Watch
from m3_runtime.server.request import EXTENSIONS, ChatRequest, parse_request
from m3_runtime.server.worker import Job, Worker

_T = TypeVar("_T")


def create_app(chat: ChatEngine, *, api_key: str = "", limits: Limits | None = None) -> Starlette:
    """An ASGI application that serves one engine; with an `api_key`, every route but /health asks for it."""
    limits = limits or Limits()
    worker = Worker(chat, max_open=limits.max_open)
    server = _Server(chat, worker, limits.body_s)

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
            Route("/v1/models/{name:path}", server.model),
            Route("/health", server.health),
            Route("/metrics", server.metrics),
        ],
        middleware=[Middleware(Guard, api_key=api_key, max_body_bytes=limits.max_body_bytes)],
        exception_handlers={404: _not_found, 405: _not_found, Exception: _internal},
        lifespan=lifespan,
    )
    app.state.worker = worker
    return app


class _Server:
    def __init__(self, chat: ChatEngine, worker: Worker, body_s: float):
        self._chat, self._worker, self._body_s = chat, worker, body_s
        self._metrics = Metrics(chat, worker)

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": self._chat.name, "running": self._worker.num_running})

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._chat.name:
            what = f"the model {name!r} is not served here; use {self._chat.name!r}"
            return error_response(RequestError(what, "model", code="model_not_found", status=404))
        return JSONResponse(self._model())

    async def chat_completions(self, request: Request) -> Response:
        watch = self._metrics.begin()
        try:
            parsed = parse_request(await _body(request, self._body_s), self._chat.name)
            job = Job(parsed)
            self._worker.submit(job)
            created = int(time.time())
            completion_id = f"chatcmpl-{secrets.token_hex(12)}"
            writer = CompletionWriter(completion_id, created, self._chat.name, num_answers=parsed.num_answers)
            if parsed.stream:
                return await self._stream(request, parsed, job, writer, watch)
            return await self._whole(request, job, writer, watch)
        except Exception as error:  # the edge: every error becomes a reply
            shown = for_client(error)
            watch.end("failed" if shown.status >= 500 else "refused")
            return error_response(shown)

    async def _stream(
        self, request: Request, parsed: ChatRequest, job: Job, writer: CompletionWriter, watch: Watch
    ) -> Response:
        events = job.events()
        # The first event decides between an error reply and a stream.
        first = await _unless_gone(request, anext(events), job)
        if first is None:
            watch.end("left")
            return _nobody()

        async def lines() -> AsyncIterator[str]:
            try:
                for chunk in writer.first_chunks():
                    yield _line(chunk)
                pending: tuple[int, ChatEvent] | None = first
                while pending is not None:
                    index, event = pending
                    if isinstance(event, PrefillProgress):
                        yield f": read {event.done_tokens} of {event.total_tokens} prompt tokens\n\n"
                    else:
                        watch.token()
                    for chunk in writer.chunks(index, event, return_progress=parsed.return_progress):
                        yield _line(chunk)
                    pending = await anext(events, None)
                watch.end("answered", writer.usage)
                if parsed.include_usage:
                    yield _line(writer.usage_chunk())
                yield "data: [DONE]\n\n"
            except Exception as error:  # the edge: the status is sent, so the stream itself must tell
                watch.end("failed", writer.usage)
                yield _line(error_json(for_client(error)))

        def end() -> None:
            job.cancelled = True
            watch.end("left", writer.usage)

        return _EventStream(lines(), end)

    async def _whole(self, request: Request, job: Job, writer: CompletionWriter, watch: Watch) -> Response:
        async def collect() -> bool:
            async for index, event in job.events():
                if not isinstance(event, PrefillProgress):
                    watch.token()
                writer.add(index, event)
            return True

        if not await _unless_gone(request, collect(), job):
            watch.end("left", writer.usage)
            return _nobody()
        watch.end("answered", writer.usage)
        return JSONResponse(writer.completion())

    def _model(self) -> dict[str, Any]:
        model: dict[str, Any] = {"id": self._chat.name, "object": "model", "created": 0, "owned_by": "m3"}
        return model | {"max_model_len": self._chat.context_tokens, "extensions": list(EXTENSIONS)}


class _EventStream(StreamingResponse):
    """Server-sent events; `end` is called when the last is sent or the client has left."""

    def __init__(self, lines: AsyncIterator[str], end: Callable[[], None]):
        super().__init__(lines, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


async def _body(request: Request, limit_s: float) -> bytes:
    try:
        async with asyncio.timeout(limit_s):
            return await request.body()
    except TimeoutError as error:
        raise RequestError(f"the body did not arrive within {limit_s:g} s", status=408) from error


async def _unless_gone(request: Request, work: Awaitable[_T], job: Job) -> _T | None:
    """What the work gives, or None with the job cancelled if the client leaves before."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.create_task(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        job.cancelled = True
        return None
    finally:
        working.cancel()
        leaving.cancel()


def _nobody() -> Response:
    return Response(status_code=499)  # nobody is there to read it


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return error_response(
        RequestError(
            f"{request.method} {request.url.path} is not served here; use POST /v1/chat/completions or GET /v1/models",
            status=status,
        )
    )


async def _internal(request: Request, error: Exception) -> Response:
    return error_response(error)


def _line(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
