"""An answer, piece by piece, to reasoning, text and complete calls.

A marker comes in two ways: as its own token (`feed_marker`) or spelled out in ordinary tokens (`feed`). Outside of
calls both count, since models do spell markers. Inside a call that was opened by the namespace token only that token
counts, so that a value may contain any text, even text that looks like M3's own markup.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from m3_runtime.chat.elements import parse_elements
from m3_runtime.chat.markers import first, held
from m3_runtime.chat.schema import value_of
from m3_runtime.chat.syntax import CALLS_END, CALLS_START, NAMESPACE, THINK_END, THINK_START

_TOKEN = "\ufdd0"
"""Stands for the namespace token in the buffer: a code point that is reserved for such internal use."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThinkDelta:
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextDelta:
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """A complete call; `arguments` has the types of the tool's schema. The parser leaves `id` empty."""

    id: str = ""
    name: str
    arguments: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BadCall:
    """A call that cannot be read, as it was written, and what is wrong with it. Nothing of it may be run."""

    text: str
    problem: str
    cut_off: bool = False
    """Whether the answer ended before the call did; the call may have been fine."""


ParserEvent = ThinkDelta | TextDelta | Call | BadCall


class AnswerParser:
    """Parses one answer. `thinking` is the mode of the prompt: enabled starts inside the reasoning.

    `tools` maps a tool's name to the JSON schema of its parameters; a call of another name keeps strings.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Any]], *, thinking: str = "adaptive"):
        self._tools = tools
        self._state = "think" if thinking == "enabled" else "start"
        self._buffer = ""
        self._mark = NAMESPACE
        self._states: dict[str, Callable[[list[ParserEvent], bool], bool]] = {
            "start": self._in_start,
            "think": self._in_think,
            "text": self._in_text,
            "block": self._in_block,
            "bare": self._in_bare,
        }

    def feed(self, text: str) -> list[ParserEvent]:
        """Take more text; returns what is certain now. Text that may become a marker waits."""
        self._buffer += text.replace(_TOKEN, "\ufffd")
        return self._drain(final=False)

    def feed_marker(self, literal: str) -> list[ParserEvent]:
        """Take one marker token."""
        self._buffer += _TOKEN if literal == NAMESPACE else literal
        return self._drain(final=False)

    def finish(self) -> list[ParserEvent]:
        """The rest, at the end of the answer. A call that was cut off comes out as BadCall."""
        return self._drain(final=True)

    def _drain(self, *, final: bool) -> list[ParserEvent]:
        events: list[ParserEvent] = []
        while True:
            if not self._states[self._state](events, final):
                break
        return [e for e in events if not isinstance(e, ThinkDelta | TextDelta) or e.text]

    def _in_start(self, events: list[ParserEvent], final: bool) -> bool:
        """Before anything else an answer may open or close its reasoning, whatever the mode is."""
        stripped = self._buffer.lstrip()
        for marker, state in ((THINK_START, "think"), (THINK_END, "text")):
            if stripped.startswith(marker):
                self._buffer = stripped[len(marker) :]
                self._state = state
                return True
            if not final and marker.startswith(stripped):
                return False
        self._state = "text"
        return True

    def _in_think(self, events: list[ParserEvent], final: bool) -> bool:
        # The namespace token inside reasoning can only be a call whose closing marker was forgotten; spelled out, it is
        # the model thinking about the syntax. A second opening marker means nothing.
        markers = (THINK_END, THINK_START, _TOKEN + CALLS_START)
        found = first(self._buffer, markers)
        if found is None:
            self._pass(events, ThinkDelta, len(self._buffer) - (0 if final else held(self._buffer, markers)))
            return False
        place, marker = found
        events.append(ThinkDelta(text=self._buffer[:place].removesuffix(_TOKEN)))
        self._buffer = self._buffer[place:] if marker.startswith(_TOKEN) else self._buffer[place + len(marker) :]
        self._state = "think" if marker == THINK_START else "text"
        return True

    def _in_text(self, events: list[ParserEvent], final: bool) -> bool:
        markers = (_TOKEN, NAMESPACE, THINK_START, THINK_END, CALLS_START)
        found = first(self._buffer, markers)
        if found is None:
            self._pass(events, TextDelta, len(self._buffer) - (0 if final else held(self._buffer, markers)))
            return False
        place, marker = found
        rest = self._buffer[place + len(marker) :]
        if marker in (THINK_START, THINK_END):
            self._pass(events, TextDelta, place)
            self._buffer = rest
            self._state = "think" if marker == THINK_START else "text"
            return True
        tag = rest.lstrip()
        if marker == CALLS_START:
            return self._bare_block(events, place, tag, final)
        opening = re.match(r"<(tool_call|invoke\b[^<>]*)>", tag)
        if opening is not None:
            self._pass(events, TextDelta, place)
            self._mark = marker
            # A block may lack its opening tag; the call itself is all that is needed.
            self._buffer = tag[opening.end() :] if opening.group(1) == "tool_call" else marker + tag
            self._state = "block"
            return True
        if not final and _may_open(tag):
            # Text before the mark is certain, but whitespace there may belong to the block.
            self._pass(events, TextDelta, len(self._buffer[:place].rstrip()))
            return False
        if tag.startswith((THINK_START, THINK_END)):
            # A namespace mark glued to a think tag means nothing.
            self._pass(events, TextDelta, place)
            self._buffer = tag
            return True
        events.append(TextDelta(text=self._buffer[:place] + (NAMESPACE if marker == NAMESPACE else "")))
        self._buffer = rest
        return True

    def _bare_block(self, events: list[ParserEvent], place: int, tag: str, final: bool) -> bool:
        """The opening tag of a block without its mark, and what comes behind it."""
        mark = next((mark for mark in (_TOKEN, NAMESPACE) if tag.startswith(mark)), "")
        behind = tag.removeprefix(mark).lstrip()
        named = re.match(r"""<invoke\s+name\s*=\s*["']?([^<>"']*)["']?\s*>""", behind)
        if named is not None and mark:
            # The mark was forgotten before the first tag only. The call itself is all that is needed.
            self._pass(events, TextDelta, place)
            self._buffer = tag
            return True
        if named is not None and named.group(1).strip() in self._tools:
            # No tag has a mark, so text cannot be told from tags: this is a call that nothing may run.
            self._pass(events, TextDelta, place)
            self._state = "bare"
            return True
        if not final and named is None and (NAMESPACE.startswith(tag) or _may_invoke(behind)):
            self._pass(events, TextDelta, place)
            return False
        self._pass(events, TextDelta, place + len(CALLS_START))
        return True

    def _in_bare(self, events: list[ParserEvent], final: bool) -> bool:
        end = self._buffer.find(CALLS_END)
        if end < 0 and not final:
            return False
        text = self._buffer if end < 0 else self._buffer[: end + len(CALLS_END)]
        self._buffer = self._buffer[len(text) :]
        problem = "the tags of the call lack their mark"
        cut_off = end < 0 and "</invoke>" not in text
        events.append(BadCall(text=self._shown(text), problem=problem, cut_off=cut_off))
        self._state = "text"
        return True

    def _pass(self, events: list[ParserEvent], kind: type[TextDelta] | type[ThinkDelta], count: int) -> None:
        """Let the first characters of the buffer out."""
        events.append(kind(text=self._buffer[:count]))
        self._buffer = self._buffer[count:]

    def _in_block(self, events: list[ParserEvent], final: bool) -> bool:
        stripped = self._buffer.lstrip()
        end = re.match(re.escape(self._mark) + r"\s*</tool_call>", stripped)
        if end is not None:
            self._buffer = stripped[end.end() :].lstrip()
            self._state = "text"
            return True
        start = re.match(re.escape(self._mark) + r"\s*<invoke\b([^<>]*)>", stripped)
        if start is not None:
            close = re.search(re.escape(self._mark) + r"\s*</invoke\s*>", stripped[start.end() :])
            if close is None:
                if final:
                    self._give_up(events, stripped, "the answer ended inside the call", cut_off=True)
                return False
            body = stripped[start.end() : start.end() + close.start()]
            written = stripped[: start.end() + close.end()]
            self._buffer = stripped[start.end() + close.end() :]
            events.append(self._call(start.group(1), body, written))
            return True
        if _may_continue(stripped, self._mark):
            if final:
                self._give_up(events, stripped, "the answer ended inside the call block", cut_off=True)
            return False
        # Skip what does not belong here, up to the next tag.
        problem = "a call block holds something that is not a call"
        place = stripped.find(self._mark, 1)
        if place < 0:
            if final:
                self._give_up(events, stripped, problem)
            return False
        events.append(BadCall(text=self._shown(stripped[:place]), problem=problem))
        self._buffer = stripped[place:]
        return True

    def _give_up(self, events: list[ParserEvent], text: str, problem: str, *, cut_off: bool = False) -> None:
        events.append(BadCall(text=self._shown(text), problem=problem, cut_off=cut_off))
        self._buffer, self._state = "", "text"

    def _shown(self, text: str) -> str:
        return text.replace(_TOKEN, NAMESPACE)

    def _call(self, head: str, body: str, written: str) -> ParserEvent:
        named = re.fullmatch(r"""\s*name\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"']+))\s*""", head)
        if named is None:
            return BadCall(text=self._shown(written), problem="the invoke tag has no name")
        name = next(group for group in named.groups() if group is not None)
        try:
            parameters = parse_elements(body, self._mark)
        except ValueError as error:
            return BadCall(text=self._shown(written), problem=str(error))
        schema = self._tools.get(name, {})
        arguments: dict[str, Any] = {}
        properties = schema.get("properties", {})
        for parameter in parameters:
            if parameter.name in arguments:
                return BadCall(text=self._shown(written), problem=f"the parameter {parameter.name} is given twice")
            arguments[parameter.name] = value_of(parameter, properties.get(parameter.name, {}), schema)
        return Call(name=name, arguments=arguments)


def _may_open(tag: str) -> bool:
    """Whether text after a namespace mark can still become an opening tag."""
    return any(option.startswith(tag) for option in (CALLS_START, THINK_START, THINK_END)) or _may_invoke(tag)


def _may_invoke(tag: str) -> bool:
    """Whether text can still become the opening tag of a call."""
    return "<invoke".startswith(tag) or re.fullmatch(r"<invoke\b[^<>]*", tag) is not None


def _may_continue(text: str, mark: str) -> bool:
    """Whether the rest of a block can still become a call or the end of the block."""
    if mark.startswith(text):
        return True
    if not text.startswith(mark):
        return False
    tag = text[len(mark) :].lstrip()
    return CALLS_END.startswith(tag) or _may_invoke(tag)
