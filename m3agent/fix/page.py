"""A page before and after a repair, by the same route; the repair counts only if the page can be seen to differ.

A page from a file is looked at in the work tree. A page from a server shows the person's own files, so it is looked at
again once the repair lies there.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from m3_tools.base import PictureBlock, ToolContext, ToolError, call_tool
from m3_tools.screenshot.browser import NoBrowser, find_browser
from m3_tools.screenshot.compare import Comparison, compare
from m3_tools.screenshot.dropped import dropped_path
from m3_tools.screenshot.page import FAILING_STATUS, LOCAL_HOSTS, NOT_LOADED, Page, capture, is_address
from m3_tools.screenshot.picture import Picture, PictureError, Theme, keep
from m3_tools.screenshot.tool import ScreenshotTool
from m3_tools.shell import ShellTool
from m3agent.errors import BrokenEnvironment, M3Error
from m3agent.events import Notice, PhaseEnded, PhaseStarted
from m3agent.fix.outcome import Ended
from m3agent.fix.worktree import WorkTree, read_entry
from m3agent.settings import Settings
from m3agent.sinks import EventSink
from m3agent.ui.clean import one_line

BUILD_LIMIT_S = 300
SERVER_PATIENCE_S = 15.0
"""A server may need so long until it shows changed files."""


class PageWatch:
    """Looks at one page before and after the repair, and keeps the pictures with the session."""

    def __init__(
        self, page: Page, worktree: WorkTree, context: ToolContext, sink: EventSink, *, build: str = "", network: bool
    ):
        """`build` is the command that makes the page, run in the work tree before each look."""
        self.page = page
        self._worktree, self._context, self._sink = worktree, context, sink
        self._build, self._network = build, network
        self._before: Picture | None = None
        self._kept: dict[str, PictureBlock] = {}
        self._comparison: Comparison | None = None

    async def look_before(self) -> Picture:
        """The page as it is. Errors: BrokenEnvironment if it cannot be captured."""
        start = time.monotonic()
        self._sink(PhaseStarted(name="page", detail=f"before the change: {self.page}"))
        try:
            picture = self._before = await self.look(self.page)
        except ToolError as error:
            raise BrokenEnvironment(f"the page could not be captured before the change: {error}") from error
        self._worktree.settle()
        self._keep("before", picture)
        self._ended(", ".join((f"{picture.width} × {picture.height}", *picture.notes)), start)
        return picture

    async def look_after(self) -> None:
        """Look again and tell what changed. Errors: Ended if the page cannot be captured, or looks as before."""
        assert self._before is not None, "look_before comes first"
        start = time.monotonic()
        self._sink(PhaseStarted(name="page", detail=f"after the change: {self.page}"))
        try:
            await self._look_until_it_differs(start + (SERVER_PATIENCE_S if self.page.is_remote else 0))
        except ToolError as error:
            self._ended("not captured", start)
            raise Ended("unverified", f"the tests pass, but the page could not be captured again: {error}") from error
        comparison = self._comparison
        assert comparison is not None
        self._ended(comparison.text, start)
        if not comparison.num_regions:
            raise Ended("unverified", "the tests pass, but the page looks as it did before the change")
        shown = [self._kept["after"], self._kept["difference"]]
        self._sink(
            Notice(text=f"the page after the change, and the difference: {shown[1].path}", pictures=tuple(shown))
        )

    def eyes(self) -> ScreenshotTool:
        """The `screenshot` tool for the work between the two looks: it makes this page anew and knows how it looked."""
        return _Eyes(self)

    @property
    def told(self) -> str:
        """What a model must know of the page."""
        if self.page.is_remote:
            seen = "It shows the person's own files, where your change is not yet."
        elif self._build:
            seen = f"`screenshot` of it runs `{one_line(self._build, 200)}` first."
        else:
            seen = "Look at it with `screenshot`."
        return f"The repair must be seen on the page {one_line(str(self.page), 200)}. {seen}"

    @property
    def before(self) -> Picture:
        assert self._before is not None, "look_before comes first"
        return self._before

    async def _look_until_it_differs(self, deadline: float) -> None:
        assert self._before is not None
        while True:
            picture = await self.look(self.page)
            self._comparison = await asyncio.to_thread(compare, self._before, picture)
            if self._comparison.num_regions or time.monotonic() >= deadline:
                break
            await asyncio.sleep(0.5)
        if failed := [note for note in picture.notes if note.startswith((FAILING_STATUS, NOT_LOADED))]:
            raise ToolError(f"{self.page.address}: {failed[0]}")
        self._keep("after", picture)
        if self._comparison.num_regions:
            self._keep("difference", self._comparison.difference)

    def report(self) -> dict[str, Any]:
        """What was seen, as JSON values."""
        comparison = self._comparison if "after" in self._kept else None
        return {
            "route": str(self.page),
            "pictures": {name: block.path for name, block in self._kept.items()},
            "text": comparison.text if comparison else "",
            "changed_share": round(comparison.changed_share, 6) if comparison else 0.0,
            "regions": [[r.x, r.y, r.width, r.height] for r in comparison.regions] if comparison else [],
        }

    async def look(self, page: Page) -> Picture:
        """The page as it is made from the work tree now. Errors: ToolError if it cannot be made or captured."""
        if not self._build:
            return await capture(page, self._context, network=self._network)
        ours = {path: read_entry(self._worktree.root / path) for path in self._worktree.changed()}
        try:
            result = await call_tool(ShellTool(), {"command": self._build, "timeout_s": BUILD_LIMIT_S}, self._context)
            if result.is_error:
                raise ToolError(f"{one_line(self._build, 80)} failed: {one_line(result.text, 200)}")
            return await capture(page, self._context, network=self._network)
        finally:
            if self._before is not None:  # what was built is no part of the repair
                for path in {*self._worktree.changed()} - {*ours}:
                    self._worktree.put(path, self._worktree.base_entry(path))
                for path, entry in ours.items():
                    self._worktree.put(path, entry)

    def _keep(self, name: str, picture: Picture) -> None:
        self._kept[name] = keep(picture, self._context.spill_dir, f"page-{name}")

    def _ended(self, summary: str, start: float) -> None:
        self._sink(PhaseEnded(name="page", summary=summary, duration_s=time.monotonic() - start))


class _Eyes(ScreenshotTool):
    """Looks at the watched page as the program does, whatever viewport is asked for, and at all else as ever."""

    def __init__(self, watch: PageWatch):
        super().__init__(taken={watch.page: watch.before})
        self._watch = watch

    async def look(self, route: Page, context: ToolContext) -> Picture:
        if route.address == self._watch.page.address and not route.is_remote:
            return await self._watch.look(route)
        return await super().look(route, context)


def chosen_page(
    address: str,
    repo: Path,
    settings: Settings,
    *,
    viewport: tuple[int, int],
    theme: Theme,
    selector: str,
    build: str,
    in_place: bool,
    commit: bool,
) -> Page:
    """The page that a fix looks at before and after.

    Errors: BrokenEnvironment where no browser can show it; M3Error for a page or options that cannot be meant.
    """
    if not is_address(address):
        path = dropped_path(address)
        if not build and not (repo / path).is_file():
            raise M3Error(f"--page {address}: there is no such file in {repo}; give one, or --build what makes it")
        if path.is_absolute():
            if not path.resolve().is_relative_to(repo):
                raise M3Error(f"--page {address} lies outside the repository {repo}")
            path = path.resolve().relative_to(repo)
        address = str(path)
    try:
        page = Page(address=address, width=viewport[0], height=viewport[1], theme=theme, selector=selector)
        find_browser(settings.command_environment)
    except NoBrowser as error:
        raise BrokenEnvironment(str(error).rstrip(".")) from error
    except PictureError as error:
        raise M3Error(str(error).rstrip(".")) from error
    if page.is_remote and (not in_place or commit):
        raise M3Error(
            "a page of a server shows your own files: add --in-place, without --commit or --pr, or give an HTML file"
        )
    if page.is_remote and not settings.network and page.host not in LOCAL_HOSTS:
        raise M3Error(f"{page.host} is another machine; add --allow-network, or give a page of localhost")
    return page
