"""Whatever the file holds, an edit changes the bytes it means and no others."""

from __future__ import annotations

import asyncio
import codecs
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from m3_tools.base import ToolContext, call_tool
from m3_tools.edit import EditTool
from m3_tools.edit_line import EditLineTool, edit_line
from m3_tools.match import find, near_miss
from m3_tools.text import Text, split_lines

CONTENT = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [
            b"x = 1",
            b"\tif y:",
            b"    return x  ",
            b"",
            b" ",
            "ü“”".encode(),
            "ü".encode("latin-1"),
            b"\xff\xfe",
            b"\x00",
        ]
    ),
)
ENDING = st.sampled_from([b"\n", b"\r\n", b"\r", b"\n", b"\r\n"])
BOM = st.sampled_from([b"", b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF32_BE])


@st.composite
def file_bytes(draw: st.DrawFn) -> bytes:
    """Lines of text and rubbish, with mixed endings, perhaps a BOM, perhaps no final newline."""
    lines = draw(st.lists(st.tuples(CONTENT, ENDING), max_size=8))
    return draw(BOM) + b"".join(c + e for c, e in lines) + draw(CONTENT)


@given(data=file_bytes())
@settings(max_examples=600)
def test_decoding_gives_the_same_bytes_back(data: bytes) -> None:
    source = Text.decode(data)
    assert source.bom + source.text.encode(source.encoding, source.errors) == data
    assert source.replace([]) == data


@given(
    data=file_bytes(),
    cuts=st.tuples(st.integers(0, 200), st.integers(0, 200)),
    new=st.sampled_from(["", "new", "a\nb", "π"]),
)
@settings(max_examples=600)
def test_a_replacement_keeps_the_bytes_on_both_sides(data: bytes, cuts: tuple[int, int], new: str) -> None:
    source = Text.decode(data)
    start, end = sorted(min(c, len(source.text)) for c in cuts)
    assume(source.encoding in ("utf-8", "utf-16-le", "utf-32-be") or new.isascii())
    left = source.bom + source.text[:start].encode(source.encoding, source.errors)
    right = source.text[end:].encode(source.encoding, source.errors)
    assert source.replace([(start, end, new)]) == left + new.encode(source.encoding) + right


@given(
    data=file_bytes(),
    pick=st.integers(0, 20),
    action=st.sampled_from(["replace", "insert", "delete"]),
    text=st.sampled_from(["", "z", "p\nq"]),
)
@settings(max_examples=600)
def test_edit_line_changes_one_line_and_nothing_else(data: bytes, pick: int, action: str, text: str) -> None:
    source = Text.decode(data)
    lines = source.lines()
    number = pick % (len(lines) + 1)
    assume(number > 0 or action == "insert")
    after = source.replace(edit_line(source, action, number, text)[0])

    def raw(first: int, last: int) -> bytes:
        piece = source.text[lines[first].start : lines[last].end] + lines[last].ending if first <= last else ""
        return piece.encode(source.encoding, source.errors)

    kept = number if action == "insert" else number - 1
    assert after.startswith(source.bom + (raw(0, kept - 1) if kept else b""))
    assert after.endswith(raw(number, len(lines) - 1) if number < len(lines) else b"")
    # By lines: what a reader sees is the old list with the one change. (A lone CR is no line end once there is an LF.)
    assume(b"\r" not in data.replace(b"\r\n", b""))
    contents = [source.text[p.start : p.end] for p in lines]
    new = text.split("\n")
    expected = {
        "insert": contents[:number] + new + contents[number:],
        "replace": contents[: number - 1] + new + contents[number:],
        "delete": contents[: number - 1] + contents[number:],
    }[action]
    seen = Text.decode(after)
    got = [seen.text[p.start : p.end] for p in seen.lines()]
    if seen.encoding == source.encoding and len(lines) and lines[-1].ending:
        assert got == expected


@given(
    data=file_bytes(), where=st.integers(0, 100), length=st.integers(1, 12), new=st.sampled_from(["", "new", "n\nm"])
)
@settings(max_examples=300, deadline=None)
def test_the_edit_tool_changes_only_the_slice_it_names(data: bytes, where: int, length: int, new: str) -> None:
    source = Text.decode(data)
    old = source.text[where : where + length]
    assume(old and old != new and source.text.find(old) == where and source.text.find(old, where + 1) < 0)
    with tempfile.TemporaryDirectory() as folder:
        context = ToolContext(root=Path(folder).resolve(), spill_dir=Path(folder))
        path = Path(folder) / "f.txt"
        path.write_bytes(data)
        result = asyncio.run(call_tool(EditTool(), {"path": "f.txt", "old": old, "new": new}, context))
        after = path.read_bytes()
    if result.is_error:
        assert after == data
        return
    left = source.bom + source.text[:where].encode(source.encoding, source.errors)
    right = source.text[where + len(old) :].encode(source.encoding, source.errors)
    assert after.startswith(left)
    assert after.endswith(right)
    middle = after[len(left) : len(after) - len(right)].decode(source.encoding, source.errors)
    # New lines take the line end in use where they go, which in a file of CR alone is CR.
    assert middle.replace("\r\n", "\n").replace("\r", "\n") == new


@given(data=file_bytes(), sent=st.text(max_size=40))
def test_a_near_miss_is_printable_for_any_file(data: bytes, sent: str) -> None:
    near_miss(Text.decode(data), sent or "x").encode("utf-8")


@given(text=st.text(alphabet="ab\n\r\x0b\x0c\u2028\x85", max_size=30))
def test_lines_cover_the_text_without_gaps(text: str) -> None:
    lines = split_lines(text)
    assert "".join(text[p.start : p.end] + p.ending for p in lines) == text
    if "\n" in text:
        assert len(lines) == text.count("\n") + (not text.endswith("\n"))


@pytest.mark.parametrize("tool", [EditTool(), EditLineTool()])
def test_mode_links_and_extended_attributes_stay(tool: EditTool | EditLineTool, tmp_path: Path) -> None:
    context = ToolContext(root=tmp_path.resolve(), spill_dir=tmp_path / "spill")
    arguments = {
        "edit": {"path": "link.sh", "old": "echo a", "new": "echo b"},
        "edit_line": {"path": "link.sh", "action": "replace", "line": "L1|", "text": "echo b"},
    }[tool.name]
    script = tmp_path / "script.sh"
    script.write_text("echo a\n")
    script.chmod(0o751)
    (tmp_path / "link.sh").symlink_to("script.sh")
    try:
        os.setxattr(script, "user.note", b"kept")
        has_xattr = True
    except OSError:
        has_xattr = False
    inode = script.stat().st_ino
    assert not asyncio.run(call_tool(tool, arguments, context)).is_error
    assert (tmp_path / "link.sh").is_symlink()
    assert script.read_text() == "echo b\n"
    assert script.stat().st_mode & 0o7777 == 0o751
    assert script.stat().st_ino != inode  # replaced in one step, not written over
    assert not has_xattr or os.getxattr(script, "user.note") == b"kept"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.sh", "script.sh"]


def test_hard_links_stay_joined(tmp_path: Path) -> None:
    context = ToolContext(root=tmp_path.resolve(), spill_dir=tmp_path / "spill")
    (tmp_path / "a").write_text("one two three\n")
    os.link(tmp_path / "a", tmp_path / "b")
    assert not asyncio.run(call_tool(EditTool(), {"path": "a", "old": "two ", "new": ""}, context)).is_error
    assert (tmp_path / "b").read_text() == "one three\n"
    assert (tmp_path / "a").samefile(tmp_path / "b")


WORD = st.sampled_from(["a", "b", "if x:", "return 1", "}", "# é", "x = 'ü'"])
INDENT = st.sampled_from(["", "    ", "        "])


@st.composite
def degraded_edits(draw: st.DrawFn) -> tuple[list[tuple[str, str]], int, str, str, bool]:
    """A file of (content, ending) lines, the index of one to change, old and new as a model sends them, and whether
    they are indented more than the file. They have LF for every ending and no trailing space."""
    line = st.tuples(INDENT, WORD, st.sampled_from(["", "", " ", "\t"]), st.sampled_from(["\n", "\r\n"]))
    rows = draw(st.lists(line, min_size=1, max_size=9))
    first = draw(st.integers(0, len(rows) - 1))
    last = draw(st.integers(first, len(rows) - 1))
    changed = draw(st.integers(first, last))
    shift = draw(st.sampled_from(["", "", "  ", "    "]))
    sent = [shift + indent + word for indent, word, _, _ in rows[first : last + 1]]
    new = [*sent[: changed - first], shift + rows[changed][0] + "NEW", *sent[changed - first + 1 :]]
    return [(i + w + t, e) for i, w, t, e in rows], changed, "\n".join(sent), "\n".join(new), bool(shift)


@given(degraded_edits())
@settings(max_examples=600)
def test_the_lower_rungs_change_one_line_and_keep_the_bytes_of_the_lines_around_it(
    case: tuple[list[tuple[str, str]], int, str, str, bool],
) -> None:
    rows, changed, old, new, shifted = case
    source = Text.decode("".join(content + ending for content, ending in rows).encode())
    bare, wanted = [content.strip() for content, _ in rows], [line.strip() for line in old.split("\n")]
    places = [i for i in range(len(rows)) if bare[i : i + len(wanted)] == wanted]
    assume(len(places) == 1)  # else the edit is ambiguous, or stands somewhere else more exactly
    assume(not (shifted and old in source.text))
    _, (replacement,) = find(source, old, new)
    after = source.replace([(replacement.start, replacement.end, replacement.new)]).decode()
    got = [after[p.start : p.end] + p.ending for p in split_lines(after)]
    assert len(got) == len(rows)
    for index, (line, (content, ending)) in enumerate(zip(got, rows, strict=True)):
        if index == changed:
            assert line.strip() == "NEW"
            assert line.endswith("\r\n") == (ending == "\r\n")
        else:
            assert line == content + ending
