"""The shapes in which M3's markup leaks out of other engines: each, cut at every place, spelled and as tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from m3_runtime.chat.parser import AnswerParser, BadCall, Call, ParserEvent, TextDelta, ThinkDelta
from m3_runtime.chat.syntax import NAMESPACE as NS
from m3_runtime.chat.syntax import THINK_END, THINK_START

INVOKE = f'{NS}<invoke name="read">{NS}<path>a <b> & "c"\n{NS}</path>{NS}</invoke>\n'
BLOCK = f"{NS}<tool_call>\n{INVOKE}{NS}</tool_call>"
TOOLS = {"read": {"properties": {"path": {"type": "string"}}}}
CALL = Call(name="read", arguments={"path": 'a <b> & "c"\n'})
MARKERS = re.compile(f"({'|'.join(map(re.escape, (NS, THINK_START, THINK_END)))})")


def text(value: str) -> TextDelta:
    return TextDelta(text=value)


def think(value: str) -> ThinkDelta:
    return ThinkDelta(text=value)


def _parse(pieces: Iterable[str], thinking: str, *, tokens: bool) -> list[ParserEvent]:
    """The events of an answer in pieces, neighbouring deltas joined; with `tokens`, markers come as such."""
    parser = AnswerParser(TOOLS, thinking=thinking)
    events: list[ParserEvent] = []
    for piece in pieces:
        for part in MARKERS.split(piece) if tokens else [piece]:
            events += parser.feed_marker(part) if tokens and MARKERS.fullmatch(part) else parser.feed(part)
    joined: list[ParserEvent] = []
    for event in events + parser.finish():
        last = joined[-1] if joined else None
        if isinstance(last, TextDelta | ThinkDelta) and isinstance(event, type(last)):
            joined[-1] = type(last)(text=last.text + event.text)
        else:
            joined.append(event)
    return joined


def parsed(answer: str, thinking: str = "disabled", *, tokens: bool | None = None) -> list[ParserEvent]:
    """The events, which must not depend on where the stream is cut, nor on how its markers were spelled.

    `tokens` says that they come in one way only: a marker that is cut off cannot be a token.
    """
    results = []
    for as_tokens in (False, True) if tokens is None else (tokens,):
        parts = MARKERS.split(answer) if as_tokens else [answer]
        units = [unit for part in parts for unit in ([part] if MARKERS.fullmatch(part) else part)]
        results.append(_parse(units, thinking, tokens=as_tokens))
        for cut in range(len(units)):
            pieces = ["".join(units[:cut]), "".join(units[cut:])]
            assert _parse(pieces, thinking, tokens=as_tokens) == results[-1], pieces
    assert results[0] == results[-1]
    return results[0]


@pytest.mark.parametrize("before", ["", "I look.\n"])
@pytest.mark.parametrize("space", ["", "\n", " \n\n"])
def test_the_mark_is_missing_before_the_first_tag(before: str, space: str) -> None:
    expected = [text(before), CALL] if before else [CALL]
    assert parsed(f"{before}<tool_call>{space}{INVOKE}{NS}</tool_call>") == expected


def test_the_first_tag_is_missing_with_its_mark() -> None:
    assert parsed(f"Look: {INVOKE}{NS}</tool_call>") == [text("Look: "), CALL]


@pytest.mark.parametrize(
    ("answer", "thinking", "expected"),
    [
        (f"{NS}{THINK_START}why{THINK_END}Hi", "adaptive", [think("why"), text("Hi")]),
        (f"{NS}{THINK_END}Hi", "adaptive", [text("Hi")]),
        (f"Hi{NS}{THINK_START}why{THINK_END}", "disabled", [text("Hi"), think("why")]),
        (f"{THINK_END}{NS}{THINK_END}{BLOCK}", "adaptive", [CALL]),
        (f"{THINK_START}why{THINK_END}{BLOCK}{NS}{THINK_END}", "adaptive", [think("why"), CALL]),
    ],
)
def test_a_mark_is_glued_to_a_think_tag(answer: str, thinking: str, expected: list[ParserEvent]) -> None:
    assert parsed(answer, thinking) == expected


def test_a_mark_as_token_is_glued_to_the_end_of_reasoning() -> None:
    assert _parse([f"why{NS}{THINK_END}Hi"], "enabled", tokens=True) == [think("why"), text("Hi")]


def test_reasoning_is_opened_again_in_the_middle() -> None:
    assert parsed(f"{THINK_START}a{THINK_START}b{THINK_END}c", "adaptive") == [think("ab"), text("c")]


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("num_units", range(2, 80))
def test_a_block_is_cut_off_at_the_end_of_the_output(num_units: int, tokens: bool) -> None:
    units = [unit for part in MARKERS.split(BLOCK) for unit in ([part] if part == NS else part)]
    written = "".join(units[:num_units])
    events = parsed("Hi" + written, tokens=tokens)
    begun = written.startswith(f"{NS}<tool_call>")
    assert events[0] == text("Hi") or not begun
    calls = [event for event in events if isinstance(event, Call)]
    assert calls == ([CALL] if f"{NS}</invoke>" in written else [])
    if begun and not calls:
        assert isinstance(events[-1], BadCall)
        assert events[-1].cut_off


BARE = BLOCK.replace(NS, "")


@pytest.mark.parametrize(("before", "behind"), [("", ""), ("Look:\n", "\nDone.")])
def test_raw_markup_in_the_content_is_no_call_and_no_text(before: str, behind: str) -> None:
    """Without marks a tag in a value cannot be told from a tag of the call, so nothing may be run."""
    events = parsed(before + BARE + behind)
    (bad,) = [event for event in events if isinstance(event, BadCall)]
    assert (bad.text, bad.problem, bad.cut_off) == (BARE, "the tags of the call lack their mark", False)
    assert [event for event in events if not isinstance(event, BadCall)] == [text(t) for t in (before, behind) if t]


def test_raw_markup_that_is_cut_off_says_so() -> None:
    (bad,) = parsed(BARE[:40])
    assert isinstance(bad, BadCall)
    assert bad.cut_off


@pytest.mark.parametrize(
    "prose",
    [
        "M3 opens a block with <tool_call> and closes it with </tool_call>.",
        '<tool_call>\n<invoke name="a tool that nobody gave">\n</invoke>',
        "<tool_call>\n<tool_call> <invoke",
        "ends with <tool_call>\n",
        "ends with <tool_call>\n<invo",
        "ends with <tool",
        "a </path> without a beginning, ]<] and ]<]minimax",
    ],
)
def test_prose_about_the_syntax_stays_prose(prose: str) -> None:
    assert parsed(prose) == [text(prose)]
