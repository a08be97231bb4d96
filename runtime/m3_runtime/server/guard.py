"""What a request must pass before it is read: the key, the name it was sent to, its form and its size."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from m3_runtime.server.errors import BadKey, RequestError, error_response


class Guard:
    """Refuses requests in front of an application.

    With a key, every path but /health asks for it. Without one the server is for this machine alone, and so are its
    names: a web page that makes its own name mean this machine (DNS rebinding) is refused. Bodies must be JSON, which a
    page of another site cannot send without asking first.
    """

    def __init__(self, app: ASGIApp, *, api_key: str, max_body_bytes: int):
        self._app, self._key, self._max_body_bytes = app, api_key.encode(), max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope["method"], scope["path"], Headers(scope=scope))
        except RequestError as error:
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        if path != "/health":
            self._check_sender(headers)
        if method != "POST":
            return
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError("send the body as JSON, with Content-Type: application/json", status=415)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_body_bytes:
            raise self._too_large()

    def _check_sender(self, headers: Headers) -> None:
        if self._key:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            # Starlette reads headers as Latin-1; this gives back the bytes that were sent.
            sent = given.strip().encode("latin-1")
            if scheme.lower() != "bearer" or not hmac.compare_digest(sent, self._key):
                raise BadKey("the API key is missing or wrong; send Authorization: Bearer KEY")
        elif not is_loopback(urlsplit(f"//{headers.get('host', '')}").hostname or ""):
            raise RequestError(
                "this server answers as localhost or 127.0.0.1 only; give it an API key to use another name", status=403
            )

    def _counted(self, receive: Receive) -> Receive:
        """The same messages; a body that does not tell its length is still bounded."""
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> RequestError:
        return RequestError(f"the body is larger than {self._max_body_bytes} bytes", status=413)


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
