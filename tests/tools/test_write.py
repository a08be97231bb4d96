"""The write tool, and the atomic replacement below every edit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from m3_tools.base import ToolContext, ToolResult
from m3_tools.read import ReadTool
from m3_tools.write import WriteTool

Call = Callable[..., ToolResult]


def test_a_new_file_gets_its_folders_and_exactly_the_content(call: Call, context: ToolContext) -> None:
    assert not call(WriteTool(), path="a/b/c.txt", content="x\r\ny").is_error
    assert (context.root / "a/b/c.txt").read_bytes() == b"x\r\ny"
    plain = context.root / "plain"
    plain.touch()
    assert (context.root / "a/b/c.txt").stat().st_mode == plain.stat().st_mode  # the umask decides


def test_an_existing_file_must_have_been_read(call: Call, context: ToolContext) -> None:
    path = context.root / "f.txt"
    path.write_text("old\n")
    assert "Read it first" in call(WriteTool(), path="f.txt", content="new\n").text
    assert path.read_text() == "old\n"
    call(ReadTool(), path="f.txt")
    assert not call(WriteTool(), path="f.txt", content="new\n").is_error
    assert path.read_text() == "new\n"


@pytest.mark.parametrize(
    ("before", "content", "after"),
    [
        (b"a\r\nb\r\n", "a\nc\n", b"a\r\nc\r\n"),
        (b"\xef\xbb\xbfa\n", "b\n", b"\xef\xbb\xbfb\n"),
        (b"caf\xe9\n", "café!\n", b"caf\xe9!\n"),
        (b"a\r\nb\n", "a\nb", b"a\nb"),
        (b"", "x\ny", b"x\ny"),
    ],
)
def test_encoding_and_line_ends_of_an_existing_file_are_kept(
    call: Call, context: ToolContext, before: bytes, content: str, after: bytes
) -> None:
    path = context.root / "f.txt"
    path.write_bytes(before)
    call(ReadTool(), path="f.txt")
    assert not call(WriteTool(), path="f.txt", content=content).is_error
    assert path.read_bytes() == after


@pytest.mark.parametrize(
    "line", ["# ... rest of the file unchanged ...", "// … existing code …", "<!-- rest of the code here -->"]
)
def test_a_placeholder_for_code_is_refused(call: Call, context: ToolContext, line: str) -> None:
    result = call(WriteTool(), path="f.py", content=f"a = 1\n{line}\n")
    assert "stands for code" in result.text
    assert not (context.root / "f.py").exists()


def test_an_ordinary_comment_is_no_placeholder(call: Call) -> None:
    assert not call(WriteTool(), path="f.py", content="# keep the existing order of keys\na = 1\n").is_error


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", "file/x.txt", ".", "../x"])
def test_places_that_cannot_or_must_not_be_written(call: Call, context: ToolContext, path: str) -> None:
    (context.root / "file").write_text("")
    assert call(WriteTool(), path=path, content="x").is_error
    assert not (context.root / ".git").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "f.txt: written, new file, 0 lines, 0 bytes"),
        ("é", "f.txt: written, new file, 1 line, 2 bytes"),
        ("a\nb\n", "f.txt: written, new file, 2 lines, 4 bytes"),
        ("x\n" * 5000, "f.txt: written, new file, 5,000 lines, 10,000 bytes"),
    ],
)
def test_the_size_is_told(call: Call, context: ToolContext, content: str, said: str) -> None:
    assert call(WriteTool(), path="f.txt", content=content).text == said


def test_the_size_before_is_told_too(call: Call, context: ToolContext) -> None:
    (context.root / "f.txt").write_bytes(b"a\r\nb\r\n")
    call(ReadTool(), path="f.txt")
    said = call(WriteTool(), path="f.txt", content="c\n").text
    assert said == "f.txt: written, 1 line, 3 bytes; before: 2 lines, 6 bytes; CRLF kept"
