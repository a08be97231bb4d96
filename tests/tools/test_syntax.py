"""An edit says which syntax errors it made, and is silent about those that were there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from m3_tools.base import ToolContext, ToolResult
from m3_tools.edit import EditTool
from m3_tools.edit_line import EditLineTool
from m3_tools.read import ReadTool
from m3_tools.syntax import new_syntax_errors
from m3_tools.write import WriteTool

Call = Callable[..., ToolResult]
BREAKS = {
    "a.py": ("def f():\n    return 1\n", "def f():\n    return (1\n", 2, "    return (1"),
    "b.js": ("function f() {\n  return g(1);\n}\n", "function f() {\n  return g(1;\n}\n", 2, "  return g(1;"),
    "c.ts": ("let x: number = 1;\nlet y = 2;\n", "let x: number = 1;\nlet y = = 2;\n", 2, "let y = = 2;"),
    "d.go": ("package a\n\nfunc f() int {\n\treturn 1\n}\n", "package a\n\nfunc f( int {\n\treturn 1\n}\n", 3, None),
    "e.rs": ("fn f() -> i32 {\n    1\n}\n", "fn f() -> i32 {\n    1 +\n}\n", 2, None),
    "g.c": ("int f(void) {\n  return 1;\n}\n", "int f(void) {\n  return 1\n}\n", 2, "  return 1"),
    "h.java": ("class A {\n  int f() { return 1; }\n}\n", "class A {\n  int f() { return 1 }\n}\n", 2, None),
}


@pytest.mark.parametrize("name", BREAKS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_new_error_is_found_with_its_line(name: str, encoding: str) -> None:
    good, bad, line, text = BREAKS[name]
    assert new_syntax_errors(name, good.encode(encoding), good.encode(encoding)) == []
    for ending in ("\n", "\r\n", "\r"):
        before, after = (t.replace("\n", ending).encode(encoding) for t in (good, bad))
        found = new_syntax_errors(name, before, after)
        assert found
        assert found[0].line == line
        assert found[0].text == (text or bad.split("\n")[line - 1])
        assert new_syntax_errors(name, after, before) == []  # mending makes none


@pytest.mark.parametrize("name", BREAKS)
def test_an_old_error_is_not_told_again_even_when_it_moves(name: str) -> None:
    good, bad, _, _ = BREAKS[name]
    comment = "# x\n" if name.endswith(".py") else "// x\n"
    assert new_syntax_errors(name, bad.encode(), (comment * 3 + bad).encode()) == []
    assert new_syntax_errors(name, bad.encode(), good.encode()) == []


def test_a_second_error_beside_an_old_one_is_told_alone() -> None:
    before = b"let a = ;\nlet b = 1;\nlet c = 2;\n"
    found = new_syntax_errors("a.js", before, b"let a = ;\nlet b = 1;\nlet c = );\n")
    assert [(e.line, e.text) for e in found] == [(3, "let c = );")]


def test_other_files_have_no_syntax() -> None:
    assert new_syntax_errors("a.txt", b"", b"((((") == []


def test_every_tool_that_writes_tells_it(call: Call, context: ToolContext) -> None:
    path = context.root / "a.py"
    path.write_text("x = 1\ny = 2\n")
    expected = "\nThis made a syntax error at L2|: '(' was never closed\nL2|y = (2"
    assert call(EditTool(), path="a.py", old="2", new="(2").text == f"a.py: replaced L2|{expected}"
    path.write_text("x = 1\ny = 2\n")
    context.read_hashes.clear()
    assert call(EditLineTool(), path="a.py", action="replace", line="L2|", text="y = (2").text.endswith(expected)
    call(ReadTool(), path="a.py")
    assert "syntax" not in call(WriteTool(), path="a.py", content="# a\nx = 1\n").text
    assert call(WriteTool(), path="b.py", content="x = 1\ny = (2\n").text.endswith(expected)
