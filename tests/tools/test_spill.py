"""Long output: what the window gets is bounded, the rest lies in a file that read and grep take and nothing changes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3_tools.base import CommandBlock, ToolContext, ToolResult
from m3_tools.delete import DeleteTool
from m3_tools.edit import EditTool
from m3_tools.edit_line import EditLineTool
from m3_tools.grep import GrepTool
from m3_tools.move import MoveTool
from m3_tools.output import Output
from m3_tools.read import ReadTool
from m3_tools.shell import ShellTool
from m3_tools.write import WriteTool

Call = Callable[..., ToolResult]
NAME = re.compile(r"all of it: (\$M3_OUTPUT/[0-9a-f]{10}\.txt)")


def spilled(result: ToolResult) -> str:
    match = NAME.search(result.text)
    assert match, result.text[-300:]
    return match.group(1)


@pytest.fixture
def name(call: Call) -> str:
    return spilled(call(ShellTool(), command="seq 1 20000; echo needle; seq 20001 40000"))


def test_read_grep_and_shell_take_the_name(call: Call, name: str) -> None:
    assert (
        call(ReadTool(), path=name, start=20001, end=20001).text
        == f"{name} (lines 20001-20001 of 40001)\nL20001|needle"
    )
    assert call(GrepTool(), path=name, pattern="needle").text == f"{name}\nL20001|needle"
    assert call(GrepTool(), path="$M3_OUTPUT", pattern="^needle").text == f"{name}\nL20001|needle"
    assert call(ShellTool(), command=f"sed -n 20001p {name}").text == "exit code 0\nneedle"


def test_the_person_gets_the_real_path_and_it_is_taken_too(call: Call) -> None:
    result = call(ShellTool(), command="seq 1 9999")
    (block,) = result.display
    assert isinstance(block, CommandBlock)
    assert block.output_path is not None
    assert Path(block.output_path).read_text() == "".join(f"{n}\n" for n in range(1, 10_000))
    assert call(ReadTool(), path=block.output_path, start=5, end=5).text.endswith("\nL5|5")


def test_equal_output_has_an_equal_name_and_one_file(call: Call, context: ToolContext) -> None:
    first, second = (spilled(call(ShellTool(), command="seq 1 9999")) for _ in range(2))
    assert first == second
    assert spilled(call(ShellTool(), command="seq 2 9999")) != first
    assert len(os.listdir(context.spill_dir)) == 2


@pytest.mark.parametrize(
    "path", ["{name}", "$M3_OUTPUT/new.txt", "$M3_OUTPUT/a/../new.txt", "{real}", "{spill}/new.txt", "$M3_OUTPUT/"]
)
def test_nothing_writes_there(call: Call, context: ToolContext, name: str, path: str) -> None:
    real = context.spill_dir / name.rpartition("/")[2]
    before = real.read_bytes()
    path = path.format(name=name, real=real, spill=context.spill_dir)
    call(ReadTool(), path=name)
    (context.root / "f").write_text("1\n")
    for result in (
        call(WriteTool(), path=path, content="x"),
        call(EditTool(), path=path, old="needle", new="x"),
        call(EditLineTool(), path=path, action="delete", line="L1|"),
        call(MoveTool(), path=path, to="g"),
        call(MoveTool(), path="f", to=path),
        call(DeleteTool(), path=path),
    ):
        assert result.is_error
    assert real.read_bytes() == before
    assert os.listdir(context.spill_dir) == [real.name]
    assert os.listdir(context.root) == ["f"]


def test_a_folder_for_output_inside_the_work_tree_is_not_written_either(call: Call, context: ToolContext) -> None:
    context.spill_dir = context.root / "out"
    name = spilled(call(ShellTool(), command="seq 1 9999"))
    real = context.spill_dir / name.rpartition("/")[2]
    for path in (name, f"out/{real.name}", str(real), "out/new.txt"):
        assert "can be read and not changed" in call(WriteTool(), path=path, content="x").text
    assert os.listdir(context.spill_dir) == [real.name]


def test_a_work_tree_inside_the_folder_for_output_can_be_written(call: Call, context: ToolContext) -> None:
    context.spill_dir = context.root.parent
    assert not call(WriteTool(), path="f.txt", content="x").is_error
    assert not call(ReadTool(), path=str(context.root / "f.txt")).is_error
    assert "outside" in call(ReadTool(), path=str(context.root.parent / "other.txt")).text


@pytest.mark.parametrize(
    "path", ["$M3_OUTPUT/../repo/f", "$M3_OUTPUT/none.txt", "$M3_OUTPUT//etc/passwd", "$M3_OUTPUTx"]
)
def test_the_name_leads_nowhere_else(call: Call, context: ToolContext, name: str, path: str) -> None:
    assert call(ReadTool(), path=path).is_error
    assert call(GrepTool(), path=path, pattern="x").is_error


class TestBounds:
    def test_the_window_gets_about_twelve_kilobytes(self, call: Call) -> None:
        for command in ("seq 1 100000", "head -c 5000000 /dev/zero | tr '\\0' x", "yes | head -c 3000000"):
            text = call(ShellTool(), command=command).text
            assert len(text) < 12_500
            assert "bytes left out" in text

    def test_long_lines_are_cut_with_a_mark_even_in_short_output(self, call: Call) -> None:
        result = call(ShellTool(), command="head -c 9000 /dev/zero | tr '\\0' x; echo; echo end")
        rows = result.text.split("\n")
        assert rows[1] == "x" * 2000 + " [… 7,000 more characters]"
        assert rows[2] == "end"
        name = spilled(result)
        assert call(ReadTool(), path=name, column=8999).text == f"{name}\nL1|xx\nL2|"

    def test_a_line_of_exactly_the_limit_is_whole(self, call: Call, context: ToolContext) -> None:
        result = call(ShellTool(), command="head -c 2000 /dev/zero | tr '\\0' x")
        assert result.text == "exit code 0\n" + "x" * 2000
        assert not context.spill_dir.exists()

    def test_escape_sequences_and_rewritten_lines_do_not_count(self, call: Call, context: ToolContext) -> None:
        result = call(ShellTool(), command="for i in $(seq 400); do printf '\\r%5d of 400' $i; done; echo")
        assert result.text == "exit code 0\n  400 of 400"
        assert not context.spill_dir.exists()

    def test_a_file_that_cannot_be_written_does_not_stop_the_command(self, call: Call, context: ToolContext) -> None:
        context.spill_dir.write_text("a file where the folder should be")
        result = call(ShellTool(), command="seq 1 9999; exit 3")
        assert result.text.startswith("exit code 3\n1\n2\n")
        assert "bytes left out …" in result.text


class TestTimes:
    def test_seconds_are_told_from_one_on(self, call: Call) -> None:
        assert call(ShellTool(), command="true").text.startswith("exit code 0\n")
        assert call(ShellTool(), command="sleep 1.1; exit 4").text.startswith("exit code 4 after 1 s\n")

    def test_at_the_deadline_the_way_on_is_told(self, call: Call) -> None:
        first = call(ShellTool(), command="sleep 9", timeout_s=0.2).text.split("\n")[0]
        assert "give a longer timeout_s (at most 3600) or a narrower command" in first


@given(st.lists(st.binary(max_size=12), max_size=12), st.integers(0, 60))
def test_what_came_since_a_position_is_its_end_and_the_rest_is_counted(chunks: list[bytes], position: int) -> None:
    output = Output(None, 10, 10)
    for chunk in chunks:
        output.add(chunk)
    whole = b"".join(chunks)
    position = min(position, len(whole))
    data, left_out = output.since(position)
    assert whole[position + left_out :] == data
    assert left_out == 0 or position + left_out == len(whole) - 10
