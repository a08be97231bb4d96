"""The read tool: labels, ranges, definitions, caps that say how to go on, and files that are no text."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3_tools.base import ToolContext, ToolResult, tool_spec
from m3_tools.read import MAX_LINE_CHARS, MAX_LINES, ReadTool
from m3_tools.text import shown

Call = Callable[..., ToolResult]
SOURCE = '''\
import functools


def plain(a):
    return a


class Stock:
    """Things."""

    limit = 3

    @property
    @functools.cache
    def level(self):
        def inner():
            return 1

        return inner()

    async def add(self, n):
        self.n = n


@functools.cache
class Decorated:
    def add(self):
        pass


if True:
    def twice():
        return 1
else:
    def twice():
        return 2
'''


@pytest.fixture
def read(call: Call, context: ToolContext) -> Callable[..., ToolResult]:
    (context.root / "stock.py").write_text(SOURCE)

    def run(path: str = "stock.py", **arguments: object) -> ToolResult:
        return call(ReadTool(), path=path, **arguments)

    return run


def test_a_whole_file_has_its_path_then_labelled_lines(read: Callable[..., ToolResult]) -> None:
    rows = read().text.split("\n")
    assert rows[0] == "stock.py"
    assert rows[1:] == [f"L{i}|{line}" for i, line in enumerate(SOURCE.splitlines(), 1)]


def test_a_range_says_of_how_many(read: Callable[..., ToolResult]) -> None:
    assert read(start=4, end=5).text == "stock.py (lines 4-5 of 36)\nL4|def plain(a):\nL5|    return a"
    assert read(start=36).text == "stock.py (lines 36-36 of 36)\nL36|        return 2"
    assert "no line 37" in read(start=37).text
    assert "comes before" in read(start=5, end=4).text


@pytest.mark.parametrize(
    ("symbol", "first", "last"),
    [
        ("plain", 4, 5),
        ("Stock", 8, 22),
        ("Stock.level", 13, 19),
        ("level", 13, 19),
        ("Stock.level.inner", 16, 17),
        ("Stock.add", 21, 22),
        ("Stock::add", 21, 22),
        ("Decorated", 25, 28),
        ("Decorated.add()", 27, 28),
    ],
)
def test_a_symbol_gives_its_lines_decorators_included(
    read: Callable[..., ToolResult], symbol: str, first: int, last: int
) -> None:
    rows = read(symbol=symbol).text.split("\n")
    assert rows[0] == f"stock.py (lines {first}-{last} of 36)"
    assert (rows[1].split("|")[0], rows[-1].split("|")[0]) == (f"L{first}", f"L{last}")


def test_several_matches_are_listed_and_none_lists_all(read: Callable[..., ToolResult]) -> None:
    result = read(symbol="add")
    assert result.is_error
    assert "L21|Stock.add  (start=21, end=22)\nL27|Decorated.add  (start=27, end=28)" in result.text
    assert "2 definitions twice" in read(symbol="twice").text
    assert "Its definitions: plain, Stock, Stock.level, Stock.level.inner, Stock.add" in read(symbol="none").text
    assert "not both" in read(symbol="plain", start=1).text


def test_a_long_class_is_outlined(read: Callable[..., ToolResult], context: ToolContext) -> None:
    body = "".join(f"    def m{i}(self):\n        return {i}\n\n" for i in range(80))
    (context.root / "big.py").write_text("class Big:\n" + body)
    text = read("big.py", symbol="Big").text
    assert text.startswith("big.py (outline of Big, lines 1-240)\nL1|class Big:\nL2|    def m0(self):\n")
    assert text.endswith("(Big has 240 lines. Read one part of it with symbol, for instance Big.m0.)")
    assert read("big.py", symbol="Big.m3").text.startswith("big.py (lines 11-12 of 241)")


OTHER = {
    "a.go": ("package a\n\nfunc (s *Stock[T]) Add(n int) int {\n\treturn n\n}\n", "Stock.Add", 3, 5),
    "a.rs": ("mod m {\n    impl<T> Tr for Stock<T> {\n        fn add(&self) {}\n    }\n}\n", "m.Stock.add", 3, 3),
    "a.java": ("class A {\n  A() {}\n  int add(int n) {\n    return n;\n  }\n}\n", "A.add", 3, 5),
    "a.js": ("export const add = (a) => {\n  return a;\n};\n", "add", 1, 3),
    "a.ts": ("export class A {\n  add(n: number): number {\n    return n;\n  }\n}\n", "A.add", 2, 4),
    "a.tsx": ("export default function App() {\n  return <div/>;\n}\n", "App", 1, 3),
    "a.c": ("static int *add(int n)\n{\n  return 0;\n}\n", "add", 1, 4),
    "a.cpp": ("namespace n {\nint &A::add(int n) {\n  return n;\n}\n}\n", "n.A.add", 2, 4),
    "b.cpp": ("template <class T>\nclass A {\n  int add() { return 1; }\n};\n", "A", 1, 4),
}


@pytest.mark.parametrize("path", OTHER)
def test_symbols_of_other_languages(read: Callable[..., ToolResult], context: ToolContext, path: str) -> None:
    text, symbol, first, last = OTHER[path]
    (context.root / path).write_text(text)
    result = read(path, symbol=symbol)
    assert not result.is_error, result.text
    rows = result.text.split("\n")
    assert (rows[1].split("|")[0], rows[-1].split("|")[0]) == (f"L{first}", f"L{last}")


def test_deeply_nested_code_has_its_definitions(read: Callable[..., ToolResult], context: ToolContext) -> None:
    (context.root / "deep.py").write_text(
        "x = " + " + ".join(["1"] * 5000) + "\n\ndef f():\n    return " + "(" * 3000 + ")" * 3000
    )
    assert read("deep.py", symbol="f").text.startswith("deep.py (lines 3-4 of 4)")


def test_a_long_file_says_how_to_go_on(read: Callable[..., ToolResult], context: ToolContext) -> None:
    (context.root / "long").write_text("".join(f"{i}\n" for i in range(1, 4501)))
    rows = read("long").text.split("\n")
    assert rows[0] == f"long (lines 1-{MAX_LINES} of 4500)"
    assert rows[-1] == "(2,500 more lines: read with start=2001)"
    assert read("long", start=2001, end=2003).text.split("\n")[1:] == ["L2001|2001", "L2002|2002", "L2003|2003"]


def test_a_long_line_says_how_to_go_on(read: Callable[..., ToolResult], context: ToolContext) -> None:
    line = "".join(chr(97 + i % 26) for i in range(5000))
    (context.root / "min.js").write_text(line)
    first = read("min.js").text
    assert first.endswith(" [… 3,000 more characters: read with column=2001]")
    assert line[:MAX_LINE_CHARS] in first
    assert read("min.js", column=4001).text == "min.js\nL1|" + line[4000:]


def test_what_is_no_text_file_is_refused_without_waiting(read: Callable[..., ToolResult], context: ToolContext) -> None:
    root = context.root
    os.mkfifo(root / "pipe")
    (root / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(32)) * 40)
    (root / "loop").symlink_to("loop")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(root / "sock"))
    started = time.monotonic()
    assert "is a named pipe" in read("pipe").text
    assert "is a socket" in read("sock").text
    assert "is a folder" in read(".").text
    assert "binary file of 1,288 bytes" in read("image.png").text
    assert read("loop").is_error
    assert "does not exist" in read("none.py").text
    assert "does not exist" in read("stock.py/x").text
    assert time.monotonic() - started < 1
    server.close()


def test_odd_text_is_read_and_said(read: Callable[..., ToolResult], context: ToolContext) -> None:
    cases = {
        b"": "f (empty file)",
        b"a\x00b\n": "f\nL1|a␀b",
        b"caf\xe9\n": "f (cp1252 text)\nL1|café",
        "ü\r\nß".encode("utf-16"): "f (utf-16-le text)\nL1|ü\nL2|ß",
        b"\xef\xbb\xbfa\r\n": "f\nL1|a",
        b"\x1b[31mred\n": "f\nL1|␛[31mred",
        b"a\xffb \xc3\xbc\n": "f\nL1|a\ufffdb ü",
        b"a\n\nb": "f\nL1|a\nL2|\nL3|b",
    }
    for data, expected in cases.items():
        (context.root / "f").write_bytes(data)
        assert read("f").text == expected


def test_a_huge_file_gives_its_head_at_once(read: Callable[..., ToolResult], context: ToolContext) -> None:
    with open(context.root / "huge.log", "wb") as file:
        file.write(b"first line\n" * 1000)
        file.truncate(2**30)
    started = time.monotonic()
    text = read("huge.log").text
    assert time.monotonic() - started < 0.5
    assert text.startswith("huge.log (lines 1-1000, the head of a file of 1,024 MiB)\nL1|first line\n")
    assert text.endswith("(more follows: find its lines with grep, or show them with shell and sed -n)")
    assert "too large for lines by number" in read("huge.log", start=5000).text


@given(st.text(max_size=60))
def test_what_is_shown_is_valid_and_cannot_drive_a_terminal(text: str) -> None:
    result = shown(text + "\udcff\x9b\x1b")
    result.encode("utf-8")
    assert not any((c < " " and c != "\t") or "\x7f" <= c <= "\x9f" for c in result)


def test_the_arguments_come_in_the_order_that_models_are_trained_on() -> None:
    assert list(tool_spec(ReadTool()).parameters["properties"])[:2] == ["path", "symbol"]
