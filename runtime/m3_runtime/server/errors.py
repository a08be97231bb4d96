"""What a client is told when something is wrong: OpenAI's error objects with their HTTP status."""

from __future__ import annotations

import logging
from typing import Any

from starlette.responses import JSONResponse

from m3_runtime.chat.grammar import BadReplyFormat, BadTools
from m3_runtime.request import PromptTooLong

_log = logging.getLogger(__name__)


class RequestError(Exception):
    """An error for the client; `param` names the field that is wrong, `status` is HTTP's."""

    status, kind, code = 400, "invalid_request_error", ""

    def __init__(self, message: str, param: str | None = None, *, code: str = "", status: int = 0):
        super().__init__(message)
        self.param = param
        self.code = code or self.code
        self.status = status or self.status


class BadKey(RequestError):
    status, kind, code = 401, "authentication_error", "invalid_api_key"


class Overloaded(RequestError):
    """Too much is being answered; clients try again by themselves."""

    status, kind, code = 429, "overloaded_error", "overloaded"


class Stopping(RequestError):
    """The server is being shut down."""

    status, kind, code = 503, "server_error", "server_stopping"


class ServerError(RequestError):
    status, kind = 500, "server_error"


def for_client(error: Exception) -> RequestError:
    """Any error as one that a client is shown; what is nobody's request's fault is logged."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, PromptTooLong):
        return RequestError(str(error), "messages", code="context_length_exceeded")
    if isinstance(error, BadReplyFormat):
        return RequestError(str(error), "response_format")
    if isinstance(error, BadTools):
        return RequestError(str(error), "tools")
    if isinstance(error, ValueError):
        return RequestError(str(error), "messages")
    _log.error("a request failed", exc_info=error)
    return ServerError(f"{type(error).__name__}: {error}")


def error_json(error: RequestError) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": str(error), "type": error.kind, "param": error.param, "code": error.code or None}}


def error_response(error: Exception) -> JSONResponse:
    """The reply to a request that failed before anything was answered."""
    shown = for_client(error)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}, 503: {"Retry-After": "5"}}
    return JSONResponse(error_json(shown), status_code=shown.status, headers=headers.get(shown.status))
