"""HTTP to a forge: one line for everything that can go wrong, and bounds on what is read."""

from __future__ import annotations

import functools
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from m3agent import __version__
from m3agent.errors import M3Error
from m3agent.exits import Exit
from m3agent.forge.access import TOKEN_NAMES, Forge

TIMEOUT_S, TOTAL_S = 20.0, 60.0
MAX_BYTES = 10_000_000
PAGE = 100
MAX_PAGES = 5
_SCHEMES = {"github": "Bearer", "gitlab": "Bearer", "gitea": "token"}


class ForgeClient:
    """Reads and writes JSON at one forge. The token goes to the API's own origin alone: a redirect loses it."""

    def __init__(self, forge: Forge):
        self.forge = forge
        headers = {"Accept": "application/json", "User-Agent": f"m3-agent/{__version__}"}
        if forge.kind == "github":
            headers |= {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        if forge.token:
            headers["Authorization"] = f"{_SCHEMES[forge.kind]} {forge.token}"
        self._client = httpx.Client(headers=headers, timeout=TIMEOUT_S, max_redirects=5, verify=_certificates())

    def __enter__(self) -> ForgeClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str, what: str) -> Any:
        """The JSON value at a path of the API; `what` names it in errors. Redirects are followed.

        Errors: M3Error with one line; exit code 75 when the forge cannot be reached or fails by itself.
        """
        return self._ask("GET", f"{self.forge.api_url}{path}", what)[0]

    def pages(self, path: str, what: str) -> Iterator[list[Any]]:
        """The pages of a list, by the forge's own `Link` header, MAX_PAGES at most."""
        url = f"{self.forge.api_url}{path}{'&' if '?' in path else '?'}per_page={PAGE}"
        for _ in range(MAX_PAGES):
            values, headers = self._ask("GET", url, what)
            if not isinstance(values, list):
                raise M3Error(f"{self.forge.host} did not answer with a list for {what}")
            yield values
            url = _next(headers.get("link", ""))
            if urlsplit(url)[:2] != urlsplit(self.forge.api_url)[:2]:  # no next page, or one at another place
                return

    def post(self, path: str, body: Mapping[str, Any], what: str) -> Any:
        """Create something; returns what the forge says of it. Redirects are not followed."""
        return self._ask("POST", f"{self.forge.api_url}{path}", what, body)[0]

    def _ask(
        self, method: str, url: str, what: str, body: Mapping[str, Any] | None = None
    ) -> tuple[Any, httpx.Headers]:
        start = time.monotonic()
        data = bytearray()
        try:
            with self._client.stream(method, url, json=body, follow_redirects=method == "GET") as response:
                for piece in response.iter_bytes():
                    data += piece
                    if len(data) > MAX_BYTES or time.monotonic() - start > TOTAL_S:
                        raise M3Error(f"{self.forge.host} sends too much, or too slowly, for {what}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise M3Error(
                f"{self.forge.host} cannot be reached ({type(error).__name__}); without the network use an issue that "
                "`m3 issue pull` has kept, or a file",
                exit_code=Exit.MODEL_UNAVAILABLE,
            ) from error
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if response.status_code not in (200, 201):
            raise self._refusal(response, value, what)
        if value is None:
            raise M3Error(f"{self.forge.host} did not answer with JSON for {what}; {self._which_kind()}")
        return value, response.headers

    def _refusal(self, response: httpx.Response, value: Any, what: str) -> M3Error:
        """The one line for an answer that is none."""
        host, status, token = self.forge.host, response.status_code, TOKEN_NAMES[self.forge.kind]
        hint = "" if self.forge.token else f"; for a private project set {token}"
        said = _said(value)
        if status in (404, 410):
            return M3Error(f"there is no {what} at {host}{hint}; {self._which_kind()}")
        if status == 401:
            return M3Error(f"{host} does not accept the token (401); renew {token}")
        if status in (403, 429):
            if status == 429 or "retry-after" in response.headers or _remaining(response.headers) == "0":
                raised = "" if self.forge.token else f"; a token in {token} raises it"
                return M3Error(f"{host}: its rate limit is reached ({status}){_opens(response.headers)}{raised}")
            return M3Error(
                f"{host}: access is refused ({status}){said}{hint or f'; does {token} have the right to it?'}"
            )
        if 400 <= status < 500:
            return M3Error(f"{host} refuses {what} ({status}){said}")
        if 300 <= status < 400:
            return M3Error(f"{host} says that {what} has moved ({status}); use its new address")
        return M3Error(f"{host} answered {status} for {what}; try again later", exit_code=Exit.MODEL_UNAVAILABLE)

    def _which_kind(self) -> str:
        return f"it was asked as {self.forge.kind}, see docs/issues.md"


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Reading the system's certificates takes a tenth of a second: once is enough."""
    return httpx.create_ssl_context()


def _next(link: str) -> str:
    """The address of the next page in a `Link` header, or nothing."""
    for part in link.split(","):
        address, _, parameters = part.strip().partition(">")
        if 'rel="next"' in parameters.replace(" ", ""):
            return address.removeprefix("<")
    return ""


def _said(value: Any) -> str:
    """What the forge itself says, in one short line."""
    text = (value.get("message") or value.get("error")) if isinstance(value, dict) else None
    line = " ".join(str(text or "").split())
    return f": {line[:200]}" if line else ""


def _remaining(headers: httpx.Headers) -> str:
    return str(headers.get("x-ratelimit-remaining") or headers.get("ratelimit-remaining") or "")


def _opens(headers: httpx.Headers) -> str:
    """When it may be asked again, if the answer says so: `; it opens again in 12 min`."""
    wait = headers.get("retry-after", "")
    reset = headers.get("x-ratelimit-reset") or headers.get("ratelimit-reset") or ""
    seconds = int(wait) if wait.isdecimal() else int(reset) - time.time() if reset.isdecimal() else -1
    return f"; it opens again in {max(1, round(seconds / 60))} min" if 0 <= seconds < 1e6 else ""
