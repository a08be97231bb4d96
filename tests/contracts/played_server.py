"""A server that speaks the OpenAI protocol on a real socket and plays given turns."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from m3agent.messages import Message, TextPart, ThinkPart, ToolCall


class PlayedServer:
    """Each POST takes the next turn: a message, a status with a body, raw lines, or a callable that writes."""

    def __init__(self, *, context: int = 4096, models: Sequence[str] = ("played",), extensions: Sequence[str] = ()):
        self.turns: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.left = threading.Event()
        self.context, self.models, self.extensions = context, list(models), list(extensions)
        self.model_status: list[int] = []
        self._lock = threading.Lock()
        played = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                status = played.model_status.pop(0) if played.model_status else 200
                more = {"extensions": played.extensions} if played.extensions else {}
                head = {"object": "model", "max_model_len": played.context, **more}
                data = [{"id": name, **head} for name in played.models]
                self.reply(status, {"object": "list", "data": data} if status == 200 else {"error": {"message": "no"}})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with played._lock:
                    played.requests.append(body)
                    played.headers.append({name.lower(): value for name, value in self.headers.items()})
                    turn = played.turns.pop(0)
                if isinstance(turn, tuple):
                    self.reply(*turn)
                    return
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True
                try:
                    if callable(turn):
                        turn(self.line)
                    else:
                        for item in chunks(turn) if isinstance(turn, Message) else turn:
                            self.line(item if isinstance(item, str) else json.dumps(item))
                except OSError:
                    played.left.set()

            def line(self, payload: str) -> None:
                self.wfile.write(f"data: {payload}\n\n".encode())
                self.wfile.flush()

            def reply(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
                data = json.dumps(body).encode() if not isinstance(body, bytes) else body
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def chunks(message: Message, finish: str = "") -> list[Any]:
    """A message as a server streams it: the arguments of a call arrive in fragments."""
    out: list[Any] = [chunk({"role": "assistant"})]
    number = 0
    for part in message.parts:
        match part:
            case ThinkPart(text=text):
                out += [chunk({"reasoning_content": text[i : i + 5]}) for i in range(0, len(text), 5)]
            case TextPart(text=text):
                out += [chunk({"content": text[i : i + 5]}) for i in range(0, len(text), 5)]
            case ToolCall():
                head = {"index": number, "id": part.id, "type": "function", "function": {"name": part.name}}
                out.append(chunk({"tool_calls": [head]}))
                arguments = json.dumps(dict(part.arguments))
                for i in range(0, len(arguments), 7):
                    piece = {"index": number, "function": {"arguments": arguments[i : i + 7]}}
                    out.append(chunk({"tool_calls": [piece]}))
                number += 1
    out.append(chunk({}, finish or ("tool_calls" if number else "stop")))
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
    return [*out, {"choices": [], "usage": usage}, "[DONE]"]
