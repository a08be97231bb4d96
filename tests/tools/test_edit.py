"""The edit tool: each rung of the ladder, its report, its refusals, and what a model learns from a miss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from m3_tools.base import DiffBlock, ToolContext, ToolResult
from m3_tools.edit import EditTool
from m3_tools.read import ReadTool

Call = Callable[..., ToolResult]


@pytest.fixture
def edit(call: Call, context: ToolContext) -> Callable[..., tuple[ToolResult, bytes]]:
    def run(before: bytes, old: str, new: str, **more: bool) -> tuple[ToolResult, bytes]:
        path = context.root / "f.py"
        path.write_bytes(before)
        result = call(EditTool(), path="f.py", old=old, new=new, **more)
        return result, path.read_bytes()

    return run


LADDER = {
    "exact": (b"a = 1\nb = 2\n", "a = 1", "a = 3", b"a = 3\nb = 2\n", ""),
    "deleting": (b"a\nb\nc\n", "b\n", "", b"a\nc\n", ""),
    "inside a line": (b"f(a, b)\n", "a, b", "b, a", b"f(b, a)\n", ""),
    "CRLF, old and new in LF": (b"a\r\nb\r\nc\r\n", "a\nb", "a\nB", b"a\r\nB\r\nc\r\n", "line endings"),
    "CRLF, one line becomes two": (b"a\r\nb\r\n", "b", "b\nc", b"a\r\nb\r\nc\r\n", ""),
    "CRLF on an unterminated last line": (b"a\r\nb", "b", "b\nc", b"a\r\nb\r\nc", ""),
    "mixed endings keep theirs": (b"a\r\nb\nc\r\nd\n", "a\nb\nc\nd", "a\nb\nC\nd", b"a\r\nb\nC\r\nd\n", "line endings"),
    "no final newline stays none": (b"a\nb", "a\nb\n", "a\nc\n", b"a\nc", "line endings"),
    "trailing space of kept lines stays": (
        b"if a:  \n    b \nend\n", "if a:\n    b\nend", "if a:\n    c\nend", b"if a:  \n    c\nend\n", "trailing space"
    ),
    "Markdown hard break elsewhere stays": (b"x  \ny\n", "x\ny", "x\nz", b"x  \nz\n", "trailing space"),
    "deeper in the file": (
        b"class A:\n    def f():\n        return 1\n", "def f():\n    return 1", "def f():\n    return 2",
        b"class A:\n    def f():\n        return 2\n", "indentation",
    ),
    "shallower in the file": (
        b"def f():\n    return 1\n", "    def f():\n        return 1", "    def f():\n        return 2",
        b"def f():\n    return 2\n", "indentation",
    ),
    "tabs in the file, spaces sent": (
        b"\tif a {\n\t\tb()\n\t}\n", "    if a {\n        b()\n    }", "    if a {\n        c()\n    }",
        b"\tif a {\n\t\tc()\n\t}\n", "indentation",
    ),
    "deleting a CRLF line": (b"a\r\nb\r\nc\r\n", "b\n", "", b"a\r\nc\r\n", "line endings"),
    "deleting a line with trailing space": (b"a  \nb\n", "a\n", "", b"b\n", "trailing space"),
    "BOM stays": (b"\xef\xbb\xbfa = 1\n", "a = 1", "a = 2", b"\xef\xbb\xbfa = 2\n", ""),
    "UTF-16 stays": ("\ufeffä\r\nb".encode("utf-16-le"), "b", "ß", "\ufeffä\r\nß".encode("utf-16-le"), ""),
    "Latin-1 stays": (b"caf\xe9 = 1\n", "café = 1", "café = 2", b"caf\xe9 = 2\n", ""),
    "a stray byte in UTF-8 stays": (
        "ü = 'ß'\n".encode() + b"\xff\nx = 1\n", "x = 1", "x = 2", "ü = 'ß'\n".encode() + b"\xff\nx = 2\n", ""
    ),
    "curly quotes stay": ("“a”\nb\n".encode(), "b", "c", "“a”\nc\n".encode(), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LADDER)
def test_ladder(edit: Callable[..., tuple[ToolResult, bytes]], name: str) -> None:
    before, old, new, expected, rung = LADDER[name]
    result, after = edit(before, old, new)
    assert not result.is_error, result.text
    assert after == expected
    assert (f"only when {rung} was ignored" in result.text) == bool(rung)


REFUSALS = {
    "twice": (b"a\nb\na\n", "a", "c", "occurs 2 times, at L1|, L3|"),
    "overlapping": (b"aaa\n", "aa", "b", "occurs 2 times"),
    "twice on a lower rung": (b"a \nb\na \nb\n", "a\nb", "c", "occurs 2 times (ignoring trailing space)"),
    "other words": (b"alpha\nbeta\n", "gamma\ndelta", "x", "no lines resemble it"),
    "empty": (b"a\n", "", "b", "old is empty"),
    "same": (b"a\n", "a", "a", "the same"),
    "indented unevenly": (b"if a:\n  b\n", "if a:\n    b", "if a:\n    c", "Nearest are lines 1-2"),
    "blank lines only": (b"a\n\n\n  \nb\n", "\n \n", "c", "Nothing was changed"),
    "a new line too shallow for the file": (
        b"def f():\n    x\n", "    def f():\n        x", "    def f():\n  y", "Nothing was changed"
    ),
    "no such character": (b"caf\xe9\n", "caf", "→", "cp1252 text, which has no"),
    "binary": (b"\x00\x01\x02\x03abc", "abc", "abd", "binary"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_leave_the_file_and_say_why(edit: Callable[..., tuple[ToolResult, bytes]], name: str) -> None:
    before, old, new, expected = REFUSALS[name]
    result, after = edit(before, old, new)
    assert result.is_error
    assert after == before
    assert expected in result.text


def test_replace_all_takes_every_occurrence(edit: Callable[..., tuple[ToolResult, bytes]]) -> None:
    result, after = edit(b"a b a\nca\n", "a", "x", replace_all=True)
    assert after == b"x b x\ncx\n"
    assert "3 occurrences" in result.text


def test_a_near_miss_shows_tabs_and_spaces_at_the_end(edit: Callable[..., tuple[ToolResult, bytes]]) -> None:
    result, _ = edit(b"def f():\n\tx = 1 \n\treturn x\n", "def f():\n    x = 2\n    return x", "y")
    assert "+ →x = 1·" in result.text
    assert "-     x = 2" in result.text
    assert "lines 1-3" in result.text


def test_a_file_that_changed_since_it_was_read_is_refused(call: Call, context: ToolContext) -> None:
    path = context.root / "f.py"
    path.write_text("a = 1\n")
    call(ReadTool(), path="f.py")
    path.write_text("a = 1\nb = 2\n")
    result = call(EditTool(), path="f.py", old="a = 1", new="a = 2")
    assert result.is_error
    assert "changed since it was read" in result.text
    assert path.read_text() == "a = 1\nb = 2\n"
    call(ReadTool(), path="f.py")
    assert not call(EditTool(), path="f.py", old="a = 1", new="a = 2").is_error
    assert not call(EditTool(), path="f.py", old="b = 2", new="b = 3").is_error  # own edits do not count as changes


def test_a_new_syntax_error_is_reported_and_an_old_one_is_not(edit: Callable[..., tuple[ToolResult, bytes]]) -> None:
    result, _ = edit(b"def f():\n    return 1\n", "return 1", "return (1")
    assert "syntax error at L2|" in result.text
    result, _ = edit(b"def f(:\n    return 1\n", "return 1", "return 2")
    assert "syntax error" not in result.text


def test_the_person_gets_a_diff(edit: Callable[..., tuple[ToolResult, bytes]]) -> None:
    result, _ = edit(b"a\r\nb", "b", "c")
    (block,) = result.display
    assert isinstance(block, DiffBlock)
    rows = block.diff.splitlines()[2:]
    end = "\\ No newline at end of file"
    assert rows == ["@@ -1,2 +1,2 @@", " a␍", "-b", end, "+c", end]


def test_a_read_only_file_is_refused(call: Call, context: ToolContext) -> None:
    path = context.root / "f.py"
    path.write_text("a\n")
    path.chmod(0o444)
    assert "read-only" in call(EditTool(), path="f.py", old="a", new="b").text
    assert path.read_text() == "a\n"


def test_outside_and_missing_files_are_refused(call: Call, context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("a")
    assert "outside" in call(EditTool(), path="../out.txt", old="a", new="b").text
    assert "does not exist" in call(EditTool(), path="none.txt", old="a", new="b").text
    assert (tmp_path / "out.txt").read_text() == "a"


def test_text_that_stands_in_another_file_is_told_with_its_place(call: Call, context: ToolContext) -> None:
    for name in ("a.py", "b.py", "ignored.py"):
        (context.root / name).write_text("def test_numbers():\n    pass\n" if name != "a.py" else "x = 1\n")
    (context.root / ".gitignore").write_text("ignored.py\n")
    missed = call(EditTool(), path="a.py", old="def test_numbers():\n    pass", new="")
    assert missed.is_error
    assert missed.text.endswith("\nold stands in b.py.")
    nowhere = call(EditTool(), path="a.py", old="def test_letters():\n    pass", new="")
    assert "old stands in" not in nowhere.text
