"""Labels that a model copied are taken out, and the labels that an edit tells are those that read shows afterwards."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3_tools.base import ToolContext, ToolResult, call_tool
from m3_tools.edit import EditTool
from m3_tools.edit_line import EditLineTool
from m3_tools.labels import has_labels, without_labels
from m3_tools.read import ReadTool

Call = Callable[..., ToolResult]


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("L1|a", "a"),
        ("L9|a\nL10|  b\n", "a\n  b\n"),
        ("L1|a\r\nL2|b", "a\r\nb"),
        ("L1|", ""),
        ("L1|L2|", "L2|"),
        ("L1|a\nb", "L1|a\nb"),
        ("a L1|", "a L1|"),
        ("", ""),
        ("\n", "\n"),
        ("L1|a\n\n", "L1|a\n\n"),
    ],
)
def test_labels_go_only_where_every_line_has_one(text: str, bare: str) -> None:
    assert without_labels(text) == bare
    assert has_labels(text) == (text != bare)


EDITS = {
    "grown": ("b", "x\ny\nz", "f: replaced L2|, now L2| to L4|; lines below moved by +2"),
    "shrunk": ("b\nc\nd", "x", "f: replaced L2| to L4|, now L2|; lines below moved by -2"),
    "as long": ("b\nc", "x\ny", "f: replaced L2| to L3|"),
    "lines deleted": ("b\nc\n", "", "f: deleted L2| to L3|; lines below moved by -2"),
    "lines joined": ("b\nc", "", "f: replaced L2| to L3|, now L2|; lines below moved by -1"),
    "inside a line": ("b", "bb", "f: replaced L2|"),
    "at the end": ("e\n", "e\nf\n", "f: replaced L5|, now L5| to L6|; lines below moved by +1"),
    "all": ("a\nb\nc\nd\ne\n", "", "f: deleted L1| to L5|; lines below moved by -5"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_tells_the_new_range_and_the_shift(call: Call, context: ToolContext, name: str) -> None:
    old, new, said = EDITS[name]
    (context.root / "f").write_text("a\nb\nc\nd\ne\n")
    assert call(EditTool(), path="f", old=old, new=new).text == said


def test_every_occurrence_is_told_and_many_are_cut(call: Call, context: ToolContext) -> None:
    (context.root / "f").write_text("a\nb\na\n")
    said = call(EditTool(), path="f", old="a", new="x\ny", replace_all=True).text
    assert said == (
        "f: 2 occurrences: replaced L1|, now L1| to L2|; replaced L3|, now L4| to L5|; lines below the last moved by +2"
    )
    (context.root / "g").write_text("a\n" * 500)
    said = call(EditTool(), path="g", old="a", new="b", replace_all=True).text
    assert said.startswith("g: 500 occurrences: replaced L1|; ")
    assert said.endswith("and 490 more, the last replaced L500|")
    assert len(said) < 300


@pytest.mark.parametrize("tool", ["edit", "edits", "edit_line"])
def test_text_copied_from_read_works(call: Call, context: ToolContext, tool: str) -> None:
    path = context.root / "f.py"
    path.write_text("def f():\n    return 1\n")
    rows = call(ReadTool(), path="f.py").text.split("\n")[1:]
    old, new = "\n".join(rows), "\n".join(rows).replace("1", "2").replace("L2|", "L1|", 1)
    if tool == "edit":
        said = call(EditTool(), path="f.py", old=old, new=new).text
        assert "the labels in old and new were left out" in said
    elif tool == "edits":
        call(EditTool(), path="f.py", edits=[{"old": rows[1], "new": rows[1].replace("return 1", "return 2")}])
    else:
        call(EditLineTool(), path="f.py", action="replace", line="L2|", text="L2|    return 2\n")
    assert path.read_text() == "def f():\n    return 2\n"


def test_new_text_alone_with_labels_does_not_write_them(call: Call, context: ToolContext) -> None:
    (context.root / "f").write_text("a\n")
    call(EditTool(), path="f", old="a", new="L1|b\nL2|c")
    assert (context.root / "f").read_text() == "b\nc\n"


def test_a_label_alone_is_no_text(call: Call, context: ToolContext) -> None:
    (context.root / "f").write_text("a\n\nb\n")
    assert "old is a label alone" in call(EditTool(), path="f", old="L2|", new="L2|x").text
    assert not call(EditTool(), path="f", old="L1|a\nL2|\nL3|b", new="L1|a\nL2|x\nL3|b").is_error
    assert (context.root / "f").read_text() == "a\nx\nb\n"


def test_labels_that_the_file_itself_has_stay(call: Call, context: ToolContext) -> None:
    (context.root / "f").write_bytes(b"L1|a\r\nL2|b \r\nc\r\n")
    call(EditTool(), path="f", old="L1|a\nL2|b", new="L1|A\nL2|b")  # matches only without its line ends and spaces
    assert (context.root / "f").read_bytes() == b"L1|A\r\nL2|b \r\nc\r\n"
    (context.root / "g").write_text("L1|a\nL1|a\n")
    assert "occurs 2 times" in call(EditTool(), path="g", old="L1|a", new="L1|b").text


lines_of = st.lists(st.sampled_from(["a", "b", "", "  c"]), min_size=1, max_size=8)


@given(lines=lines_of, ending=st.sampled_from(["\n", "\r\n"]), is_ended=st.booleans(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_the_labels_told_are_those_that_read_shows(
    lines: list[str], ending: str, is_ended: bool, data: st.DataObject
) -> None:
    lines = [f"{line}#{number}" for number, line in enumerate(lines)]
    first = data.draw(st.integers(0, len(lines) - 1))
    last = data.draw(st.integers(first, len(lines) - 1))
    new = data.draw(st.lists(st.sampled_from(["new1", "new2"]), min_size=0, max_size=4))
    whole = not new or data.draw(st.booleans())  # with the line end, or up to it
    tail = "\n" if whole else ""
    with tempfile.TemporaryDirectory() as folder:
        context = ToolContext(root=Path(folder).resolve(), spill_dir=Path(folder) / "spill")
        (context.root / "f").write_bytes((ending.join(lines) + (ending if is_ended else "")).encode())
        old_text, new_text = "\n".join(lines[first : last + 1]) + tail, "\n".join(new) + (tail if new else "")
        result = asyncio.run(call_tool(EditTool(), {"path": "f", "old": old_text, "new": new_text}, context))
        after = [c for c in (context.root / "f").read_bytes().decode().replace("\r\n", "\n").split("\n")]
    assert not result.is_error, result.text
    old_label = re.escape(f"L{first + 1}|" + (f" to L{last + 1}|" if last > first else ""))
    match = re.search(rf"(?:replaced|deleted) {old_label}(?:, now L(\d+)\|(?: to L(\d+)\|)?)?(?:;|$)", result.text)
    assert match, result.text
    moved = int(m.group(1)) if (m := re.search(r"moved by ([+-]\d+)", result.text)) else 0
    for index in range(last + 1, len(lines)):  # lines below stand where the shift says
        assert after[index + moved] == lines[index]
    if new:
        start = int(match.group(1) or first + 1)
        end = int(match.group(2) or match.group(1) or last + 1)
        assert after[start - 1 : end] == new
