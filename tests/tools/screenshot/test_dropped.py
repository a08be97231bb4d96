"""A file is found however its path was pasted."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3_tools.screenshot.dropped import dropped_path, dropped_pictures

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0\n/"), min_size=1).map(lambda name: f"/t/{name}x")


@pytest.mark.parametrize(
    "text",
    ["/a/my shot.png", "'/a/my shot.png'", '"/a/my shot.png"', "/a/my\\ shot.png", "file:///a/my%20shot.png",
     "'file:///a/my%20shot.png'", " /a/my shot.png \n"],
)  # fmt: skip
def test_every_way_of_dropping_names_the_file(text: str) -> None:
    assert dropped_path(text) == Path("/a/my shot.png")


def test_the_home_folder_is_meant_by_its_sign() -> None:
    assert dropped_path("~/a.png") == Path.home() / "a.png"
    assert dropped_path("~nobody-of-that-name/a.png") == Path("~nobody-of-that-name/a.png")


@given(NAMES)
def test_what_is_escaped_or_an_address_comes_back(path: str) -> None:
    assert dropped_path(Path(path).as_uri()) == Path(path)
    assert dropped_path("".join(f"\\{c}" if not c.isalnum() and c != "/" else c for c in path)) == Path(path)
    if "'" not in path:
        assert dropped_path(shlex.quote(path)) == Path(path) or "\\" in path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("/a/my shot.png", ["/a/my shot.png"]),
        ("'/a/my shot.png'", ["/a/my shot.png"]),
        ("/a/one.png /b/two.JPG", ["/a/one.png", "/b/two.JPG"]),
        ("'/a/my shot.png' /b/two\\ three.webp", ["/a/my shot.png", "/b/two three.webp"]),
        ("file:///a/one.png file:///a/my%20shot.gif", ["/a/one.png", "/a/my shot.gif"]),
        ("/a/it's.png", ["/a/it's.png"]),
        ("look at /a/one.png", []),
        ("/a/one.py", []),
        ("one.png", []),
        ("/a/one.png\n/a/two.png", []),
        ("", []),
        ("/a/" + "x" * 9000 + ".png", []),
    ],
)
def test_a_text_that_is_paths_of_pictures_and_nothing_else_is_known(text: str, names: list[str]) -> None:
    assert dropped_pictures(text) == [Path(name) for name in names]
