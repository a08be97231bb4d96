"""What is drawn: hostile text, narrow terminals, and the promise that finished text is drawn once."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from m3_tools import base
from m3agent.approval import Question
from m3agent.events import (
    AnswerText,
    Aside,
    CandidateTried,
    Event,
    Notice,
    PhaseStarted,
    Prefill,
    RunEnded,
    RunStarted,
    Said,
    ThinkText,
    ToolEnded,
    ToolOutput,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from m3agent.ui.ask import question
from m3agent.ui.blocks import MAX_OPEN_CHARACTERS, Block, BlockSplitter
from m3agent.ui.clean import clean, one_line
from m3agent.ui.diff import MAX_DIFF_LINES, diff_text
from m3agent.ui.plain import PlainView
from m3agent.ui.render import excerpt, render
from m3agent.ui.samples import DIFF, SAMPLES
from m3agent.ui.terminal import TerminalView

HOSTILE = (
    "\x1b]0;title\x07\x1b]52;c;aGk=\x07\x1b[2J\x1b[31mred\x1b[0m \x1bP1$r\x1b\\ \x9b31m \x00\x07\x08 [bold]x[/bold] "
    "[/x] \u202eevil\u2066 :smile: \ud800 日本 👩‍👩‍👧 e\u0301\r\n progress 1%\rprogress 100%\n\ttab"
)
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
ODD = "".join(map(chr, (*range(0x1F1E6, 0x1F200), *range(0x1F3FB, 0x1F400))))
"""Parts of flags, and skin tones: they stand in another form."""
any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)


def drawn(event: Event, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    if (shown := render(event)) is not None:
        console.print(shown, markup=False, emoji=False, highlight=False)
    return console.file.getvalue()  # type: ignore[attr-defined]


def events_with(text: str) -> list[Event]:
    """Every place where text of a model, a tool or a repository is drawn."""
    blocks = (
        base.TextBlock(text=text, title=text),
        base.DiffBlock(path=text, diff=f"--- {text}\n+++ b\n@@ -1,2 +1,2 @@\n-{text}\n+{text}\n"),
        base.CommandBlock(command=text, exit_code=None, duration_s=1, output=text),
        base.TestsBlock(passed=0, failed=1, errors=0, skipped=0, duration_s=1, failures=(text,)),
        base.TodoBlock(items=((text, text), ("done", text))),
    )
    return [
        RunStarted(run_id="x", command=text, model=text, repo=text, task=text, version="0"),
        PhaseStarted(name=text, detail=text),
        TurnStarted(turn=1),
        ThinkText(text=text),
        AnswerText(text=text),
        ToolStarted(call_id="1", name=text, arguments={"path": text, "command": text, text: text, "tests": [text]}),
        ToolOutput(call_id="1", text=text),
        ToolEnded(call_id="1", name=text, is_error=True, duration_s=0, text=text, display=blocks),
        ToolEnded(call_id="2", name=text, is_error=True, duration_s=0, text=text),
        TurnEnded(turn=1, finish="stop", prompt_tokens=1, cached_tokens=0, completion_tokens=2, duration_s=1),
        CandidateTried(index=1, total=1, score=0, path=text, diff=text, verdict="fixed", detail=text, duration_s=0),
        Notice(text=text, level="error"),
        Said(text=text),
        Aside(question=text, answer=text),
        RunEnded(exit_code=1, outcome=text, summary=text, duration_s=1),
    ]


def without_styles(output: str) -> str:
    """The output of the live view without the sequences that Rich itself writes: styles, cursor moves, erasing."""
    return re.sub(r"\x1b\[(?:[\d;]*m|\d*[AK]|2K|\?25[lh])|\r", "", output)


@given(any_text)
def test_clean_text_holds_no_control_characters_and_is_stable(text: str) -> None:
    assert not CONTROL.search(clean(text))
    assert clean(clean(text)) == clean(text)
    assert "\n" not in one_line(text)
    assert len(one_line(text, 10)) <= 10


@given(
    st.text(
        st.characters(categories=["L", "N", "P", "S"], include_characters=" \n", exclude_characters=ODD), max_size=60
    )
)
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert clean(text) == text


def test_escape_sequences_vanish_whole() -> None:
    assert clean("a\x1b]8;;http://evil\x1b\\b\x1b[1;31mc\x1b[0m\x1b(Bd\x9b5ne") == "abcde"
    assert clean("10%\r50%\r100%\ndone\r\n") == "100%\ndone\n"


@settings(max_examples=60, deadline=None)
@given(any_text, st.sampled_from([1, 10, 40, 80, 200]))
def test_no_text_reaches_the_terminal_as_control_and_nothing_raises(text: str, width: int) -> None:
    for event in events_with(text):
        for line in drawn(event, width).split("\n"):
            assert not CONTROL.search(line)
            assert cell_len(line) <= max(width, 8)


def test_hostile_text_is_harmless_in_the_live_view_and_in_the_plain_one() -> None:
    for hostile in (HOSTILE, HOSTILE * 400, "x" * 200_000, "日" * 5000, "[" * 3000):
        live = Console(file=io.StringIO(), width=60, height=20, force_terminal=True, color_system="standard")
        view = TerminalView(live)
        plain = io.StringIO()
        lines = PlainView(plain)
        for event in events_with(hostile):
            view(event)
            lines(event)
        view.close()
        output = live.file.getvalue()  # type: ignore[attr-defined]
        assert not CONTROL.search(without_styles(output))
        assert "\x1b]" not in output
        assert not CONTROL.search(plain.getvalue())


def test_what_looks_like_html_in_an_answer_is_shown() -> None:
    view, screen = live_view(no_color=True)
    view(AnswerText(text="A `list<int>`, a list<str> and\n\n<div>\n\n"))
    view.close()
    shown = without_styles(screen.getvalue())
    assert "A list<int>, a list<str> and" in shown
    assert "<div>" in shown


def test_markup_and_emoji_codes_of_others_are_text() -> None:
    assert "[bold]x[/bold] [/x]" in drawn(Notice(text="[bold]x[/bold] [/x] :smile:"))
    assert ":smile:" in drawn(Notice(text=":smile:"))


def test_wide_characters_and_emoji_stay_within_the_width() -> None:
    for event in events_with("漢字かな交じり文👩‍👩‍👧" * 20):
        assert all(cell_len(line) <= 40 for line in drawn(event, 40).split("\n"))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_samples_keep_to_the_width_and_their_indent(width: int) -> None:
    text = "".join(drawn(event, width) for event in SAMPLES)
    assert max(cell_len(line) for line in text.split("\n")) <= width
    for fact in ("11 passed, 1 failed", "if level >= self.minimum:", "fixed and verified", "breaks"):
        assert (fact in text) == (fact != "breaks")


def test_a_diff_shows_line_numbers_signs_and_code_but_no_headers() -> None:
    rows = diff_text("a.py", DIFF).plain.split("\n")
    assert rows[1:3] == ["  40 -     if level > self.minimum:", "  40 +     if level >= self.minimum:"]
    assert not any(row.startswith(("---", "+++", "@@")) for row in rows)
    assert len(rows) == 5


def test_blank_lines_tabs_and_a_removed_line_that_looks_like_a_header_stay_in_a_diff() -> None:
    diff = "--- a\n+++ b\n@@ -1,3 +1,3 @@\n \n--- old comment\n+++ new comment\n+\tx\n\\ No newline at end of file\n"
    rows = diff_text("a.sql", diff).plain.split("\n")
    assert [row.rstrip() for row in rows[:3]] == ["   1", "   2 - -- old comment", "   2 + ++ new comment"]
    assert rows[3] == "   3 +     x"
    assert "no newline" in rows[4]


def test_a_long_diff_is_cut_and_says_by_how_much() -> None:
    diff = "@@ -0,0 +1,500 @@\n" + "".join(f"+line {i}\n" for i in range(500))
    assert diff_text("a.txt", diff).plain.endswith(f"… {500 - MAX_DIFF_LINES} more lines")


def test_an_excerpt_keeps_head_and_tail() -> None:
    lines = excerpt("\n".join(str(i) for i in range(100)), 5).plain.split("\n")
    assert lines == ["0", "1", "… 96 more lines …", "98", "99"]


markdown = st.lists(
    st.sampled_from(["word ", "\n", "\n\n", "```", "```py\n", "~~~\n", "- item\n", "    code\n", "````", "x"]),
    max_size=30,
)


@given(markdown, st.integers(1, 7))
def test_blocks_join_to_what_was_streamed_however_it_was_cut(pieces: list[str], size: int) -> None:
    text = "".join(pieces)
    whole, cut = BlockSplitter(), BlockSplitter()
    at_once = [*whole.feed(text), whole.finish()]
    in_pieces = [block for i in range(0, len(text), size) for block in cut.feed(text[i : i + size])]
    in_pieces.append(cut.finish())
    assert "".join(block.text for block in at_once) == text
    assert at_once == in_pieces


def test_a_block_never_ends_inside_a_code_fence() -> None:
    splitter = BlockSplitter()
    assert splitter.feed("Look:\n\n```py\nx = 1\n\ny = 2\n") == [Block(text="Look:\n\n")]
    assert splitter.feed("```\n\nDone") == [Block(text="```py\nx = 1\n\ny = 2\n```\n\n")]
    assert splitter.finish() == Block(text="Done")


def test_a_long_block_is_cut_at_a_line_and_its_code_stays_code() -> None:
    code = "".join(f"x{number} = {number}\n" for number in range(5000))
    splitter = BlockSplitter()
    blocks: list[Block] = []
    for at in range(0, len(code), 7):
        blocks += splitter.feed(("```py\n" if at == 0 else "") + code[at : at + 7])
        assert len(splitter.rest) <= MAX_OPEN_CHARACTERS + 7
    blocks.append(splitter.finish())
    assert "".join(block.text for block in blocks) == "```py\n" + code
    assert [block.lead for block in blocks] == ["", *["```py\n"] * (len(blocks) - 1)]
    assert len(blocks) > 5
    assert all(block.text.endswith("\n") for block in blocks)


class Counting(io.StringIO):
    """A terminal that counts what it was sent."""

    total = 0

    def write(self, text: str) -> int:
        self.total += len(text)
        return super().write(text)


def live_view(**choices: Any) -> tuple[TerminalView, Counting]:
    screen = Counting()
    return TerminalView(Console(file=screen, width=80, height=24, force_terminal=True, **choices)), screen


def test_the_answer_is_printed_once_as_markdown_and_reasoning_is_folded() -> None:
    view, screen = live_view(no_color=True)
    for event in SAMPLES:
        view(event)
    view.close()
    text = without_styles(screen.getvalue())
    assert text.count("exactly at its minimum was ordered") == 1
    assert "**strict**" not in text.split("tokens in")[-1]
    assert "thought for" in text
    assert "The failing test stands exactly" not in text.split("thought for")[-1]


def test_the_summary_is_not_repeated_when_it_is_the_answer() -> None:
    view, screen = live_view(no_color=True)
    view(TurnStarted(turn=1))
    view(AnswerText(text="All is well."))
    view(TurnEnded(turn=1, finish="stop", prompt_tokens=1, cached_tokens=0, completion_tokens=2, duration_s=1))
    view(RunEnded(exit_code=0, outcome="answered", summary="All is well.", duration_s=1))
    assert without_styles(screen.getvalue()).count("All is well.") == 1


def test_closing_shows_the_cursor_again_and_may_happen_twice() -> None:
    view, screen = live_view()
    view(TurnStarted(turn=1))
    view(AnswerText(text="half a sen"))
    view.close()
    view.close()
    output = screen.getvalue()
    assert output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l")
    assert "half a sen" in output


def test_reading_a_prompt_shows_how_far_it_is_and_the_time_left() -> None:
    now = [0.0]
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, no_color=True)
    view = TerminalView(console, clock=lambda: now[0])
    view(TurnStarted(turn=1))
    view(Prefill(done_tokens=20_000, total_tokens=100_000))
    now[0] = 2.0
    view(Prefill(done_tokens=40_000, total_tokens=100_000))
    with console.capture() as drawn:
        console.print(view._frame())
    view.close()
    assert "reads · 40,000 of 100,000 tokens (40 %) · 6.0 s left · 2 s" in without_styles(drawn.get())


def test_a_long_block_that_is_open_keeps_to_the_screen() -> None:
    view, screen = live_view(no_color=True)
    view(AnswerText(text="".join(f"- item {number} with some words\n" for number in range(100))))
    lines = view.console.render_lines(view._frame())
    assert len(lines) <= 24
    assert any("item 99" in "".join(segment.text for segment in line) for line in lines)
    view.close()
    assert "item 0 with" in without_styles(screen.getvalue())


def test_the_cost_of_a_long_answer_does_not_grow_with_its_length() -> None:
    view, screen = live_view()
    view(TurnStarted(turn=1))
    for _ in range(2000):
        view(AnswerText(text="some words of a paragraph without any end "))
    assert len(view._frame().renderables) <= 3  # type: ignore[attr-defined]
    view.close()
    assert screen.total < 2000 * 42 * 3


def test_nothing_that_moves_reaches_a_pipe() -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    for event in SAMPLES:
        view(event)
    text = stream.getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    assert all(line == line.rstrip() for line in text.split("\n"))
    assert "edit_line inventory/stock.py L40 replace" in text


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "a.py", "old": "x = 1", "new": "y", "edits": [{"old": "hidden one", "new": "hidden two"}]},
        {"cmd": "rm -rf build"},
        {"command": "true # " + "x" * 300 + " END"},
        {"path": "sub/" * 40 + "END", "content": "a\nb"},
        {"anything": {"deep": ["inside", 5, None]}},
    ],
)
def test_a_question_hides_no_argument(arguments: dict[str, Any]) -> None:
    def leaves(value: Any) -> list[str]:
        if isinstance(value, dict | list):
            return [leaf for inner in (value.values() if isinstance(value, dict) else value) for leaf in leaves(inner)]
        return [str(value)]

    console = Console(file=io.StringIO(), width=80)
    console.print(question(Question(tool="edit", arguments=arguments, rule="r")))
    drawn = re.sub(r"\s", "", console.file.getvalue())  # type: ignore[attr-defined]
    for leaf in leaves(arguments):
        assert re.sub(r"\s", "", leaf) in drawn


def test_a_line_keeps_the_spaces_that_a_test_compares() -> None:
    failure = "assert 'a  b   c' == 'a b c'"
    assert one_line(f"  {failure}\n\n   next line \n") == f"{failure} next line"
    block = base.TestsBlock(passed=0, failed=1, errors=0, skipped=0, duration_s=0.1, failures=(failure,))
    ended = ToolEnded(call_id="c", name="test", is_error=False, duration_s=0.1, text="", display=(block,))
    assert failure in drawn(ended)
