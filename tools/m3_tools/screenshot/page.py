"""A page as a picture: one route (address, viewport, theme, element), so that a later look takes the same way.

A file of the work tree may show other files of it and nothing else, and has no network. An address may use the hosts
that it names, or any where the network is allowed.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from collections.abc import Mapping, Set
from typing import Any
from urllib.parse import unquote, urlsplit

from m3_tools.base import ToolContext, ToolError
from m3_tools.paths import resolve_for_reading
from m3_tools.screenshot.browser import Tab, open_tab
from m3_tools.screenshot.decode import decode
from m3_tools.screenshot.picture import LONGEST_SIDE, Picture, PictureError, Theme

LOAD_TIMEOUT_S = 15.0
SETTLE_TRIES, SETTLE_PAUSE_S = 10, 0.15
FAILING_STATUS = "the server answered with status"
NOT_LOADED = "not loaded after"
"""How the notes on a picture begin that may not show the page at all."""
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_STILL = (
    "*, *::before, *::after "
    "{animation: none !important; transition: none !important; caret-color: transparent !important}"
)
_PREPARE = """(async () => {
  const style = document.createElement('style');
  style.textContent = %s;
  document.documentElement.append(style);
  await document.fonts.ready;
  const status = performance.getEntriesByType('navigation')[0]?.responseStatus ?? 0;
  const selector = %s;
  if (!selector) return {status};
  let found;
  try { found = document.querySelectorAll(selector); } catch (error) { return {problem: 'is no CSS selector'}; }
  if (!found.length) return {problem: 'fits no element of the page'};
  const box = found[0].getBoundingClientRect();
  if (!box.width || !box.height) return {problem: 'fits an element that has no size'};
  return {status, count: found.length,
          clip: {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height}};
})()"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """How a page is looked at. `address` is a file relative to the work tree, or an http(s) URL."""

    address: str
    width: int = 1280
    height: int = 800
    theme: Theme = "light"
    selector: str = ""
    """The first element that this CSS selector fits; empty for the whole viewport."""

    def __post_init__(self) -> None:
        if not all(16 <= side <= LONGEST_SIDE for side in (self.width, self.height)):
            raise PictureError(f"The viewport is {self.width}x{self.height}; its sides must be 16 to {LONGEST_SIDE}.")

    @property
    def is_remote(self) -> bool:
        return is_address(self.address)

    @property
    def host(self) -> str:
        return urlsplit(self.address).hostname or ""

    def __str__(self) -> str:
        parts = [self.address, f"{self.width}x{self.height}", self.theme, *([self.selector] if self.selector else [])]
        return " ".join(parts)


def is_address(text: str) -> bool:
    """Whether it names a page of a server."""
    return text.lower().startswith(("http://", "https://"))


async def capture(page: Page, context: ToolContext, *, network: bool = False) -> Picture:
    """The page as a new browser shows it, once it has loaded and keeps still.

    Errors: NoBrowser; PictureError and ToolError for what cannot be shown.
    """
    url, path = page.address, None
    if not page.is_remote:
        path = resolve_for_reading(context, page.address)
        if not path.is_file():
            raise PictureError(f"{page.address} is no file of the repository, and no http address.")
        url = path.as_uri()
    hosts = {page.host} | LOCAL_HOSTS if page.is_remote else frozenset()
    rules = _Allowed(context=context, hosts=hosts, everything=network and page.is_remote)
    sandbox = context.sandbox
    if sandbox is not None:
        policy = dataclasses.replace(
            sandbox.policy, writable=(), protected=(), scratch=None, network=page.is_remote,
            readable=(*sandbox.policy.readable, context.root),
        )  # fmt: skip
        sandbox = dataclasses.replace(sandbox, policy=policy)
    async with open_tab(context.environment, sandbox=sandbox, options=rules.options()) as tab:
        png, notes = await _shoot(tab, page, url, rules)
    picture = await asyncio.to_thread(decode, png, name="page", theme=page.theme)
    return dataclasses.replace(picture, name=page.address, notes=(*notes, *picture.notes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Allowed:
    """What the page may load: files of the work tree where there are no `hosts`, else what those serve."""

    context: ToolContext
    hosts: Set[str]
    everything: bool

    def options(self) -> tuple[str, ...]:
        """A second wall behind `__call__`, for what is no request: no other host has an address."""
        if self.everything:
            return ()
        known = ", ".join(f"EXCLUDE {host}" for host in sorted(self.hosts))
        return (f"--host-resolver-rules=MAP * ~NOTFOUND{', ' + known if known else ''}",)

    def __call__(self, url: str) -> bool:
        parts = urlsplit(url)
        if parts.scheme in ("data", "blob", "about"):
            return True
        if parts.scheme != "file":
            return self.everything or parts.hostname in self.hosts
        if self.hosts:  # a page from a server has no business with files
            return False
        try:
            resolve_for_reading(self.context, unquote(parts.path))
        except ToolError:
            return False
        return True


async def _shoot(tab: Tab, page: Page, url: str, allowed: _Allowed) -> tuple[bytes, list[str]]:
    """The PNG of the page, and what is to be said of it."""
    loaded = asyncio.Event()
    refused: dict[str, None] = {}

    def hear(method: str, parameters: Mapping[str, Any]) -> None:
        if method == "Page.loadEventFired":
            loaded.set()
        elif method == "Page.javascriptDialogOpening":
            tab.send("Page.handleJavaScriptDialog", accept=False)
        elif method == "Fetch.requestPaused":
            wanted = parameters["request"]["url"]
            if allowed(wanted):
                tab.send("Fetch.continueRequest", requestId=parameters["requestId"])
            else:
                refused[wanted] = None
                tab.send("Fetch.failRequest", requestId=parameters["requestId"], errorReason="AccessDenied")

    tab.on_event = hear
    await tab.call("Page.enable")
    await tab.call("Fetch.enable", patterns=[{"urlPattern": "*"}])
    await tab.call(
        "Emulation.setDeviceMetricsOverride",
        width=page.width, height=page.height, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    features = {"prefers-color-scheme": page.theme, "prefers-reduced-motion": "reduce"}
    await tab.call(
        "Emulation.setEmulatedMedia", features=[{"name": name, "value": value} for name, value in features.items()]
    )
    went = await tab.call("Page.navigate", url=url)
    if problem := went.get("errorText"):
        raise PictureError(f"{page.address} cannot be shown: {problem}.")
    notes = []
    try:
        await asyncio.wait_for(loaded.wait(), LOAD_TIMEOUT_S)
    except TimeoutError:
        notes.append(f"{NOT_LOADED} {LOAD_TIMEOUT_S:.0f} s")
    facts = await _evaluate(tab, _PREPARE % (json.dumps(_STILL), json.dumps(page.selector)))
    if problem := facts.get("problem"):
        raise PictureError(f"{page.address}: the selector {page.selector} {problem}.")
    if facts["status"] >= 400:
        notes.append(f"{FAILING_STATUS} {facts['status']}")
    if facts.get("count", 1) > 1:
        notes.append(f"{facts['count']} elements fit the selector; this is the first")
    if refused:
        notes.append(f"left out, it may not be loaded: {', '.join(list(refused)[:3])}")
    png, still = await _settled(tab, facts.get("clip"))
    if not still:
        notes.append("the page keeps changing")
    return png, notes


async def _settled(tab: Tab, clip: Mapping[str, float] | None) -> tuple[bytes, bool]:
    """The picture once two in a row are equal, and whether that came."""
    parameters: dict[str, Any] = {"format": "png"}
    if clip is not None:
        width, height = (min(clip[side], LONGEST_SIDE) for side in ("width", "height"))
        box = {**clip, "width": width, "height": height, "scale": 1}
        parameters |= {"clip": box, "captureBeyondViewport": True}
    last = ""
    for _ in range(SETTLE_TRIES):
        taken = (await tab.call("Page.captureScreenshot", **parameters))["data"]
        if taken == last:
            return base64.b64decode(taken), True
        last = taken
        await asyncio.sleep(SETTLE_PAUSE_S)
    return base64.b64decode(last), False


async def _evaluate(tab: Tab, expression: str) -> dict[str, Any]:
    answer = await tab.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
    if details := answer.get("exceptionDetails"):
        raise PictureError(f"the page cannot be examined: {details.get('text', 'an error in it')}.")
    value: dict[str, Any] = answer["result"]["value"]
    return value
