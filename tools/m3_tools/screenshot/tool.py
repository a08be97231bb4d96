"""The `screenshot` tool: a picture of the repository or a page, for a model that sees. A later look at the same is
compared with the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from m3_tools.base import PictureBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.paths import resolve_for_reading
from m3_tools.screenshot.compare import compare
from m3_tools.screenshot.decode import read_picture
from m3_tools.screenshot.page import LOCAL_HOSTS, Page, capture, is_address
from m3_tools.screenshot.picture import Picture, Theme, keep

PAGES = (".html", ".htm", ".xhtml", ".svg")
"""Files that a browser shows; others are read as pictures."""


class ScreenshotArgs(ToolArgs):
    path: str = Field(description="picture or HTML file, relative to the repository, or a URL: http://localhost:8000/")
    width: int = Field(default=1280, description="of the browser's viewport, in pixels")
    height: int = Field(default=800, description="of the browser's viewport, in pixels")
    theme: Theme = Field(default="light", description="colour scheme that the page is asked for")
    selector: str = Field(default="", description="CSS selector: only the first element that fits")


class ScreenshotTool(Tool[ScreenshotArgs]):
    """Keeps the last picture by each route, at first those `taken`. With `network`, it sees pages of other machines."""

    name: ClassVar[str] = "screenshot"
    description: ClassVar[str] = (
        "Look at a picture file, or at a page in a browser. Take one before a change and one after it, with the same "
        "arguments: the second tells which regions changed. A page that cannot be captured proves nothing."
    )
    args_type: ClassVar[type[ToolArgs]] = ScreenshotArgs

    def __init__(self, *, network: bool = False, taken: Mapping[Page, Picture] | None = None):
        self._network = network
        self._taken = dict(taken or {})

    def only_reads(self, arguments: Mapping[str, Any]) -> bool:
        return not is_address(str(arguments.get("path", "")))

    async def run(self, args: ScreenshotArgs, context: ToolContext) -> ToolResult:
        route = Page(
            address=args.path, width=args.width, height=args.height, theme=args.theme, selector=args.selector
        )  # fmt: skip
        picture = await self.look(route, context)
        before, self._taken[route] = self._taken.get(route), picture
        display: list[PictureBlock] = [keep(picture, context.spill_dir, "screenshot")]
        lines = [f"{picture.name}, {picture.width} x {picture.height} pixels", *picture.notes]
        if before is not None:
            comparison = await asyncio.to_thread(compare, before, picture)
            lines.append(f"Since the last look: {comparison.text}.")
            if comparison.num_regions:
                display.append(keep(comparison.difference, context.spill_dir, "difference"))
        return ToolResult(text="\n".join(lines), display=tuple(display), images=(picture,))

    async def look(self, route: Page, context: ToolContext) -> Picture:
        """The picture by this route. Errors: ToolError for what cannot be shown."""
        if route.is_remote and not self._network and route.host not in LOCAL_HOSTS:
            raise ToolError(f"{route.host} is another machine, and there is no network here; give a page of localhost.")
        if route.is_remote or route.address.lower().endswith(PAGES):
            return await capture(route, context, network=self._network)
        path = resolve_for_reading(context, route.address)
        return await asyncio.to_thread(read_picture, path, theme=route.theme)
