"""The edit_line tool: labels in every form, the three actions at every border of a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from m3_tools.base import ToolContext, ToolResult, tool_spec
from m3_tools.edit_line import EditLineTool

Call = Callable[..., ToolResult]
CASES = {
    "replace": (b"a\nb\nc\n", "replace", "L2|", "B", b"a\nB\nc\n"),
    "replace by two": (b"a\nb\nc\n", "replace", "L2|", "x\ny", b"a\nx\ny\nc\n"),
    "replace by a blank line": (b"a\nb\nc\n", "replace", "L2|", "", b"a\n\nc\n"),
    "replace in CRLF": (b"a\r\nb\r\n", "replace", "L1|", "x\ny", b"x\r\ny\r\nb\r\n"),
    "replace the unterminated last": (b"a\nb", "replace", "L2|", "x\ny", b"a\nx\ny"),
    "a final newline in text is one too many": (b"a\nb\n", "replace", "L1|", "x\n", b"x\nb\n"),
    "insert at the start": (b"a\n", "insert", "L0|", "x", b"x\na\n"),
    "insert at the start after a BOM": (b"\xef\xbb\xbfa\n", "insert", "L0|", "x", b"\xef\xbb\xbfx\na\n"),
    "insert between": (b"a\r\nb\r\n", "insert", "L1|", "x", b"a\r\nx\r\nb\r\n"),
    "insert after the last": (b"a\n", "insert", "L1|", "x", b"a\nx\n"),
    "insert after the unterminated last": (b"a\r\nb", "insert", "L2|", "x", b"a\r\nb\r\nx"),
    "insert into an empty file": (b"", "insert", "L0|", "x", b"x\n"),
    "delete the first": (b"a\nb\n", "delete", "L1|", "", b"b\n"),
    "delete the unterminated last": (b"a\nb", "delete", "L2|", "", b"a\n"),
    "delete the only": (b"a", "delete", "L1|", "", b""),
    "label without bar": (b"a\nb\n", "replace", "L2", "B", b"a\nB\n"),
    "number alone": (b"a\nb\n", "replace", "2", "B", b"a\nB\n"),
    "labels copied into text": (b"a\nb\n", "replace", "L2|", "L2|B\nL3|C", b"a\nB\nC\n"),
    "a form feed is no line end": (b"a\x0cb\nc\n", "replace", "L2|", "C", b"a\x0cb\nC\n"),
    "classic Mac": (b"a\rb\rc", "replace", "L2|", "x\ny", b"a\rx\ry\rc"),
}


@pytest.mark.parametrize("name", CASES)
def test_actions(call: Call, context: ToolContext, name: str) -> None:
    before, action, line, text, expected = CASES[name]
    (context.root / "f").write_bytes(before)
    result = call(EditLineTool(), path="f", action=action, line=line, text=text)
    assert not result.is_error, result.text
    assert (context.root / "f").read_bytes() == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"action": "replace", "line": "L9|", "text": "x"}, "has 2 lines; there is no L9|"),
        ({"action": "replace", "line": "L0|", "text": "x"}, "there is no L0|"),
        ({"action": "delete", "line": "L0|"}, "there is no L0|"),
        ({"action": "replace", "line": "two", "text": "x"}, "not a line label"),
        ({"action": "replace", "line": "L-1|", "text": "x"}, "not a line label"),
        ({"action": "delete", "line": "L1|", "text": "x"}, "delete takes no text"),
        ({"action": "replace", "line": "L1|", "text": "a"}, "already reads like that"),
        ({"action": "append", "line": "L1|", "text": "a"}, "was not run"),
    ],
)
def test_refusals(call: Call, context: ToolContext, arguments: dict[str, Any], expected: str) -> None:
    (context.root / "f").write_bytes(b"a\nb\n")
    result = call(EditLineTool(), path="f", **arguments)
    assert result.is_error
    assert expected in result.text
    assert (context.root / "f").read_bytes() == b"a\nb\n"


def test_a_line_given_as_a_number_is_taken(call: Call, context: ToolContext) -> None:
    (context.root / "f").write_bytes(b"a\nb\n")
    assert not call(EditLineTool(), path="f", action="delete", line=2).is_error


def test_the_result_says_how_later_lines_moved(call: Call, context: ToolContext) -> None:
    (context.root / "f").write_bytes(b"a\nb\n")
    assert call(EditLineTool(), path="f", action="replace", line="L1|", text="x").text == "f: replaced L1|"
    assert call(EditLineTool(), path="f", action="insert", line="L1|", text="x\ny").text.endswith("moved by +2")


def test_the_arguments_come_in_the_order_that_models_are_trained_on() -> None:
    assert list(tool_spec(EditLineTool()).parameters["properties"]) == ["path", "action", "line", "text"]
