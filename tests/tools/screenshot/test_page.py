"""A page through a real Chromium, and what is said where there is none."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from m3_tools.base import ToolContext, ToolResult, call_tool
from m3_tools.screenshot.browser import NAMES, NoBrowser, find_browser
from m3_tools.screenshot.page import Page, capture
from m3_tools.screenshot.picture import PictureError
from m3_tools.screenshot.tool import ScreenshotTool

PAGE = """<!doctype html><title>t</title>
<style>body {margin: 0; background: rgb(0, 0, 255)}
@media (prefers-color-scheme: dark) {body {background: rgb(0, 128, 0)}}
#box {position: absolute; left: 20px; top: 30px; width: 60px; height: 40px; background: rgb(255, 0, 0)}</style>
<div id=box></div>"""
needs_browser = pytest.mark.skipif(
    not any(shutil.which(name) for name in NAMES), reason="Chromium is not installed (apt install chromium)"
)


@pytest.fixture
def site(context: ToolContext) -> ToolContext:
    (context.root / "index.html").write_text(PAGE)
    return dataclasses.replace(context, environment=dict(os.environ))


def look(context: ToolContext, tool: ScreenshotTool | None = None, **arguments: object) -> ToolResult:
    return asyncio.run(call_tool(tool or ScreenshotTool(), {"path": "index.html", **arguments}, context))


def pixel(result: ToolResult, place: tuple[int, int]) -> object:
    with Image.open(io.BytesIO(result.images[0].data)) as image:
        return image.getpixel(place)


def test_without_a_browser_it_says_what_to_install(site: ToolContext, tmp_path: Path) -> None:
    with pytest.raises(NoBrowser, match=r"not installed: install Chromium \(apt install chromium"):
        find_browser({"PATH": str(tmp_path)})
    result = look(dataclasses.replace(site, environment={"PATH": str(tmp_path)}))
    assert result.is_error
    assert not result.images
    assert "\n" not in result.text


@needs_browser
def test_a_page_is_captured_by_viewport_theme_and_selector(site: ToolContext) -> None:
    light = asyncio.run(capture(Page(address="index.html", width=200, height=150), site))
    assert (light.width, light.height) == (200, 150)
    dark = look(site, width=200, height=150, theme="dark")
    assert pixel(dark, (5, 5)) == (0, 128, 0)
    box = look(site, selector="#box")
    assert "60 x 40 pixels" in box.text
    assert pixel(box, (30, 20)) == (255, 0, 0)


@needs_browser
def test_a_second_look_tells_what_changed(site: ToolContext) -> None:
    tool = ScreenshotTool()
    look(site, tool, width=200, height=150)
    (site.root / "index.html").write_text(PAGE.replace("width: 60px", "width: 80px"))
    after = look(site, tool, width=200, height=150)
    assert "1 region changed" in after.text
    assert "20x40 at 80,30" in after.text
    assert [Path(block.path).name for block in after.display] == ["screenshot-2.png", "difference-1.png"]
    assert "nothing changed" in look(site, tool, width=200, height=150).text


@needs_browser
def test_a_page_shows_no_file_from_elsewhere_and_has_no_network(site: ToolContext, tmp_path: Path) -> None:
    secret = tmp_path / "secret.html"
    secret.write_text("<body style='background: red'>")
    (site.root / "index.html").write_text(
        f"<iframe src='{secret.as_uri()}'></iframe><img src='http://localhost:1/a.png'>"
    )
    result = look(site)
    assert "left out, it may not be loaded" in result.text
    assert secret.as_uri() in result.text
    assert "http://localhost:1/a.png" in result.text


@needs_browser
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"selector": "#none"}, "fits no element"),
        ({"selector": "??"}, "no CSS selector"),
        ({"path": "http://localhost:1/"}, "cannot be shown"),
    ],
)
def test_what_cannot_be_shown_is_one_line(site: ToolContext, arguments: dict[str, str], words: str) -> None:
    result = look(site, **arguments)
    assert result.is_error
    assert words in result.text
    assert "\n" not in result.text


@pytest.mark.parametrize("path", ["../other.html", "none.html", "http://example.com/"])
def test_what_is_out_of_reach_is_refused(site: ToolContext, path: str) -> None:
    assert look(site, path=path).is_error


def test_an_address_is_no_mere_reading() -> None:
    assert ScreenshotTool().only_reads({"path": "index.html"})
    assert not ScreenshotTool().only_reads({"path": "http://localhost:8000/"})


def test_a_viewport_that_no_model_reads_is_refused() -> None:
    with pytest.raises(PictureError, match="must be 16 to 2016"):
        Page(address="index.html", width=5000)
