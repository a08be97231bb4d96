"""The universal rules, through the tools and real files: bytes outside an edit stay, and a refusal changes none.

The files and what must remain of them are made here, line by line and without the code under test. `M3_TEST_CASES`
sets the number of cases, for instance 100000.
"""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m3_tools.base import Tool, ToolContext, ToolResult, call_tool
from m3_tools.edit import EditTool
from m3_tools.edit_line import EditLineTool
from m3_tools.read import ReadTool
from m3_tools.write import WriteTool

CASES = int(os.environ.get("M3_TEST_CASES", "2000")) // 5
many = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
ENCODINGS = {
    "utf-8": b"",
    "utf-8 with BOM": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "latin-1": b"",
}
ENDINGS = {"LF": ["\n"], "CRLF": ["\r\n"], "CR": ["\r"], "mixed": ["\n", "\r\n"]}
WORDS = ["x = 1", "\tif y:", "    return x", "}", "", "é = 'ü'", "a\tb", "  # note", "x\x0cy", "L7|x", "“q”"]
NEW = ["x = 2", "", "\treturn", "ö", "→ 😀", "  pass  ", "L3|z"]


@dataclasses.dataclass(frozen=True)
class File:
    """A text file as its lines; the last may have no ending."""

    encoding: str
    bom: bytes
    lines: tuple[tuple[str, str], ...]

    def raw(self, first: int, last: int) -> bytes:
        """The bytes of the lines from `first` up to, not including, `last`."""
        return "".join(c + e for c, e in self.lines[first:last]).encode(self.encoding)

    @property
    def data(self) -> bytes:
        return self.bom + self.raw(0, len(self.lines))

    def sent(self, first: int, last: int) -> str:
        """Lines as a model sends them: with LF between them."""
        return "\n".join(content for content, _ in self.lines[first:last])


@st.composite
def files(draw: st.DrawFn) -> File:
    name = draw(st.sampled_from(list(ENCODINGS)))
    encoding = name.removesuffix(" with BOM")
    words = [w for w in WORDS if encoding != "latin-1" or "“" not in w]
    chosen = draw(st.lists(st.sampled_from(words), min_size=1, max_size=9))
    if encoding == "latin-1":
        chosen[0] = "é = 'ü'"  # in ASCII alone it would be UTF-8
    if draw(st.booleans()):  # every line stands in the file once
        chosen = [f"{word} {index}" for index, word in enumerate(chosen)]
    endings = ENDINGS[draw(st.sampled_from(list(ENDINGS)))]
    lines = [(word, draw(st.sampled_from(endings))) for word in chosen]
    if draw(st.booleans()) and lines[-1][0]:
        lines[-1] = (lines[-1][0], "")
    return File(encoding, ENCODINGS[name], tuple(lines))


windows = st.tuples(st.integers(0, 8), st.integers(1, 3))
new_text = st.lists(st.sampled_from(NEW), min_size=1, max_size=3).map("\n".join)


class Tree:
    """A folder with one file, and the tools in it."""

    def __init__(self, root: Path):
        self.root = root
        self.context = ToolContext(root=root, spill_dir=root.parent / "spill")
        self.made = self.refused = 0

    def call(self, tool: Tool[Any], data: bytes, **arguments: Any) -> tuple[ToolResult, bytes]:
        """Run the tool on a file that holds `data`. A refusal must leave it; nothing else may appear beside it."""
        path = self.root / "f.txt"
        path.write_bytes(data)
        self.context.read_hashes.clear()
        if isinstance(tool, WriteTool):
            asyncio.run(call_tool(ReadTool(), {"path": "f.txt"}, self.context))
        result = asyncio.run(call_tool(tool, {"path": "f.txt", **arguments}, self.context))
        after = path.read_bytes()
        assert os.listdir(self.root) == ["f.txt"]
        assert not result.is_error or after == data, "a refused edit changed the file"
        self.refused += result.is_error
        self.made += not result.is_error
        return result, after


@pytest.fixture
def tree() -> Iterator[Tree]:
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # in memory: thousands of files, each synced
    with tempfile.TemporaryDirectory(dir=base) as folder:
        root = Path(folder).resolve() / "repo"
        root.mkdir()
        yield Tree(root)


def enough(tree: Tree, share: float) -> None:
    """The rule was not held by refusing everything."""
    assert tree.made > share * (tree.made + tree.refused), (tree.made, tree.refused)


def run_cases(tree: Tree, share: float, body: Callable[..., None], **strategies: st.SearchStrategy[Any]) -> None:
    many(given(**strategies)(body))()
    count = tree.made + tree.refused
    print(f"\n{count:,} cases, {tree.made:,} edits made")
    assert count >= CASES
    enough(tree, share)


def is_kept(file: File, after: bytes, old: str, size: int) -> bool:
    """Whether one piece that reads as `old` was replaced, `size` lines or a part of the text, and all else is there."""
    count, text = len(file.lines), file.raw(0, len(file.lines)).decode(file.encoding)
    lines = [i for i in range(count - size + 1) if file.sent(i, i + size) == old]
    kept = [(file.bom + file.raw(0, i), file.raw(i + size, count)) for i in lines]
    for match in re.finditer(f"(?={re.escape(old)})", text):
        start, end = match.start(), match.start() + len(old)
        kept.append((file.bom + text[:start].encode(file.encoding), text[end:].encode(file.encoding)))
    return any(after.startswith(a) and after.endswith(b) and len(after) >= len(a) + len(b) for a, b in kept)


def test_edit_keeps_every_other_line(tree: Tree) -> None:
    def body(file: File, window: tuple[int, int], new: str, final_newline: bool) -> None:
        first = window[0] % len(file.lines)
        last = min(first + window[1], len(file.lines))
        old = file.sent(first, last)
        end = "\n" if final_newline else ""
        result, after = tree.call(EditTool(), file.data, old=old + end, new=new + end)
        if not result.is_error and old.strip() and "ignored" not in result.text:
            assert is_kept(file, after, old, last - first), (result.text, after)

    run_cases(tree, 0.3, body, file=files(), window=windows, new=new_text, final_newline=st.booleans())


def test_an_edit_with_lf_keeps_the_lines_around_it_whatever_their_endings(tree: Tree) -> None:
    """Lines that occur once: the result is known to the byte, except for the endings of new lines."""

    def body(file: File, window: tuple[int, int], new: str) -> None:
        lines = tuple((f"{content.strip()}<{n}>", ending) for n, (content, ending) in enumerate(file.lines))
        file = dataclasses.replace(file, lines=lines)
        first = window[0] % len(lines)
        last = min(first + window[1], len(lines))
        result, after = tree.call(EditTool(), file.data, old=file.sent(first, last), new=new)
        if result.is_error:
            assert "has no" in result.text or "same" in result.text, result.text  # not in this encoding
            return
        before, behind = file.bom + file.raw(0, first), lines[last - 1][1].encode(file.encoding) + file.raw(last, 99)
        assert after.startswith(before)
        assert after.endswith(behind)
        middle = after[len(before) : len(after) - len(behind)].decode(file.encoding)
        sent = re.sub(r"^L\d+\|", "", new, flags=re.M) if "labels" in result.text else new
        assert re.sub(r"\r\n|\r", "\n", middle) == sent
        assert set(re.findall(r"\r\n|\r|\n", middle)) <= {e for _, e in lines if e} or not any(e for _, e in lines)

    run_cases(tree, 0.7, body, file=files(), window=windows, new=new_text)


def test_several_edits_keep_what_lies_between_them(tree: Tree) -> None:
    def body(file: File, picks: set[int], new: str) -> None:
        lines = tuple((f"{content.strip()}<{n}>", ending) for n, (content, ending) in enumerate(file.lines))
        file = dataclasses.replace(file, lines=lines)
        chosen = sorted({pick % len(lines) for pick in picks})
        edits = [{"old": lines[n][0], "new": f"{new}{n}"} for n in reversed(chosen)]
        result, after = tree.call(EditTool(), file.data, **edits[0], edits=edits[1:])
        if not result.is_error:
            expected = [(f"{new}{n}" if n in chosen else content, ending) for n, (content, ending) in enumerate(lines)]
            assert after == dataclasses.replace(file, lines=tuple(expected)).data

    picks = st.sets(st.integers(0, 8), min_size=1, max_size=4)
    run_cases(tree, 0.7, body, file=files(), picks=picks, new=st.sampled_from(["n", "", "ö", "→"]))


def test_edit_line_changes_one_line(tree: Tree) -> None:
    def body(file: File, pick: int, action: str, new: str) -> None:
        count = len(file.lines)
        number = pick % (count + 2)
        arguments = {} if action == "delete" else {"text": new}
        result, after = tree.call(EditLineTool(), file.data, action=action, line=f"L{number}|", **arguments)
        if result.is_error:
            assert (
                number > count
                or (number == 0 and action != "insert")
                or "has no" in result.text
                or ("already" in result.text)
            ), result.text
            return
        kept = number if action == "insert" else number - 1
        behind = file.raw(number, count)
        if action == "replace":
            behind = file.lines[number - 1][1].encode(file.encoding) + behind
        front = file.bom + file.raw(0, kept)
        assert after.startswith(front)
        assert after.endswith(behind)
        if action == "delete":
            assert after == front + behind

    actions = st.sampled_from(["replace", "insert", "delete"])
    run_cases(tree, 0.5, body, file=files(), pick=st.integers(0, 10), action=actions, new=new_text)


def test_write_keeps_encoding_bom_and_the_one_kind_of_line_end(tree: Tree) -> None:
    def body(file: File, new: str, final_newline: bool) -> None:
        content = new + ("\n" if final_newline else "")
        result, after = tree.call(WriteTool(), file.data, content=content)
        if result.is_error:
            assert "has no" in result.text or "already" in result.text, result.text
            return
        endings = {ending for _, ending in file.lines} - {""}
        text = content.replace("\n", next(iter(endings))) if len(endings) == 1 else content
        assert after == file.bom + text.encode(file.encoding)

    run_cases(tree, 0.6, body, file=files(), new=new_text, final_newline=st.booleans())
