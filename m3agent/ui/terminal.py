"""The live view: what is finished is printed once, above; what is going on is drawn in a few lines below it.

Scrollback stays the terminal's own, and the cost of a redraw does not grow with what was printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rich.cells import cell_len, chop_cells
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from m3_tools.base import DisplayBlock, PictureBlock
from m3agent.events import (
    AnswerText,
    Aside,
    CandidateTried,
    Event,
    MessageAdded,
    Notice,
    PhaseEnded,
    PhaseStarted,
    Prefill,
    RequestStarted,
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
from m3agent.settings import ThemeName
from m3agent.ui.blocks import Block, BlockSplitter
from m3agent.ui.clean import clean, one_line
from m3agent.ui.graphics import Graphics
from m3agent.ui.markdown import answer_block, plain_text
from m3agent.ui.progress import Progress
from m3agent.ui.render import aside, candidate_line, marked, render, seconds, tool_ended, tool_started, turn_line
from m3agent.ui.surface import LiveSurface, Surface
from m3agent.ui.themes import use_theme
from m3agent.ui.thumbnail import Thumbnail

TAIL_CHARACTERS = 4000
CHARACTERS_A_TOKEN = 4
"""Roughly; reasoning is counted by its length until the turn has ended."""
SHOWN_CANDIDATES = 3
MAX_KEPT_CHARACTERS = 100_000
"""Of the reasoning and the answer of a turn: what can be shown again, or compared with the summary of a run."""


class TerminalView:
    """A sink that draws on a terminal. `close` may be called at any time, and more than once."""

    def __init__(
        self,
        console: Console,
        *,
        clock: Callable[[], float] = time.monotonic,
        theme: ThemeName | None = "dark",
        hyperlinks: bool = False,
        thumbnails: Graphics = "off",
    ):
        """`theme` None leaves the styles of the console as they are."""
        self.console = console
        self._thumbnails = thumbnails
        if theme is not None:
            use_theme(console, theme)
        self.surface: Surface = LiveSurface(console)
        self._hyperlinks = hyperlinks
        self._progress = Progress(clock=clock)
        self._calls: dict[str, ToolStarted] = {}
        self._blocks = BlockSplitter()
        self._answer = Kept()
        self._thought = Kept()
        self._last_thought = ""
        self._tool_tail = ""
        self._candidates: list[CandidateTried] = []

    def __call__(self, event: Event) -> None:
        match event:
            case PhaseStarted():
                self._print(render(event))
                self._progress.begin(one_line(event.name, 40))
            case PhaseEnded():
                self._print_candidates()
                self._print(render(event))
                self._progress.begin("")
            case TurnStarted():
                self._answer = Kept()
                self._progress.begin("reads")
            case Prefill():
                self._progress.read(event.done_tokens, event.total_tokens)
            case ThinkText():
                if not self._thought.length:
                    self._progress.begin("thinks")
                self._thought.add(event.text)
            case AnswerText():
                self._end_thought()
                if not self._answer.length:
                    self._progress.begin("writes")
                self._answer.add(event.text)
                for block in self._blocks.feed(event.text):
                    self._print_answer(block)
            case TurnEnded():
                self._end_thought()
                self._print_answer(self._blocks.finish())
                self._print(turn_line(event))
                self._progress.begin("")
            case ToolStarted():
                self._calls[event.call_id] = event
                self._tool_tail = ""
                self._progress.begin("")
            case ToolOutput():
                self._tool_tail = (self._tool_tail + event.text)[-TAIL_CHARACTERS:]
            case ToolEnded():
                started = self._calls.pop(event.call_id, None)
                self._print(tool_ended(event, started.arguments if started else None))
                self._print_pictures(event.display)
            case Notice():
                self._print(render(event))
                self._print_pictures(event.pictures)
            case CandidateTried():
                self._candidates.append(event)
            case Aside():
                self._print(aside(event, answer_block(event.answer)))
            case RunEnded():
                self.close()
                self._calls.clear()
                self._print(render(event))
                if event.summary.strip() and event.summary.strip() != self._answer.text.strip():
                    self._print(Padding(plain_text(event.summary), (0, 0, 0, 2), expand=False))
            case _:
                self._print(render(event))
        if not isinstance(event, RunStarted | RunEnded | Notice | MessageAdded | RequestStarted | Said | Aside):
            self.surface.show(self._frame)

    def close(self) -> None:
        """Take the live lines away and give the cursor back; what was streamed so far is printed."""
        self._print_answer(self._blocks.finish())
        self._end_thought()
        self._print_candidates()
        self._progress.begin("")
        self.surface.hide()

    def resume(self) -> None:
        """Draw the live lines again after `close`; what runs counts from now."""
        self._progress.begin("")
        self.surface.show(self._frame)

    def expand(self) -> None:
        """Print the reasoning whole that was folded last, or that is going on."""
        thought = self._thought.text or self._last_thought
        words = plain_text(thought) if thought else Text("there was no reasoning yet")
        words.style = "thought"
        self._print(Padding(words, (0, 0, 0, 2), expand=False))

    def _print(self, shown: RenderableType | None) -> None:
        if shown is not None:
            self.surface.print(shown)

    def _print_pictures(self, blocks: Iterable[DisplayBlock]) -> None:
        if self._thumbnails != "off":
            for block in blocks:
                if isinstance(block, PictureBlock):
                    self._print(Thumbnail(block, self._thumbnails))

    def _print_answer(self, block: Block) -> None:
        if block.text.strip():
            self._print(Padding(answer_block(block.lead + block.text, hyperlinks=self._hyperlinks), (0, 0, 0, 2)))

    def _end_thought(self) -> None:
        if self._thought.length:
            took = seconds(self._progress.lasted_s) or "a moment"
            words = f"thought for {took} · {self._thought_tokens()}"
            self._print(marked("✻", "quiet", Text(words, "thought")))
            self._last_thought, self._thought = self._thought.text, Kept()

    def _thought_tokens(self) -> str:
        return f"about {max(1, self._thought.length // CHARACTERS_A_TOKEN):,} tokens"

    def _print_candidates(self) -> None:
        """The candidates as they stay: the one that worked, and how many did not."""
        if not self._candidates:
            return
        failed = [c for c in self._candidates if c.verdict != "fixed"]
        if failed:
            counts = {v: sum(c.verdict == v for c in failed) for v in dict.fromkeys(c.verdict for c in failed)}
            words = ", ".join(f"{n} {verdict.replace('_', ' ')}" for verdict, n in counts.items())
            self._print(
                marked(
                    "✗", "bad", Text(f"{len(failed)} candidate{'s' * (len(failed) > 1)} did not work: {words}", "quiet")
                )
            )
        for candidate in self._candidates:
            if candidate.verdict == "fixed":
                self._print(candidate_line(candidate))
        self._candidates = []

    def _frame(self) -> RenderableType:
        """The lines that change. They never exceed the height of the terminal."""
        parts: list[RenderableType] = []
        rows = max(2, self.console.height - 6)
        if tail := self._blocks.rest.strip("\n"):
            parts.append(self._open_block(self._blocks.lead + tail, rows))
        details = []
        if self._thought.length:
            width = max(10, self.console.width - 4)
            line = one_line(self._thought.tail, TAIL_CHARACTERS)
            parts.append(Padding(Text(_last_cells(line, width), "thought"), (0, 0, 0, 2)))
            details.append(self._thought_tokens())
        parts += [candidate_line(c) for c in self._candidates[-SHOWN_CANDIDATES:]]
        if self._candidates:
            details.append(f"candidate {self._candidates[-1].index} of {self._candidates[-1].total}")
        for call in list(self._calls.values())[-3:]:
            parts.append(tool_started(call))
            if self._tool_tail.strip():
                parts.append(self._tail(self._tool_tail, 3, "quiet"))
        parts.append(self._progress.line("runs" if self._calls else "works", *details))
        return Group(*parts)

    def _open_block(self, text: str, rows: int) -> RenderableType:
        """The block that is being written, as it will look; its last `rows` lines where it is long."""
        if len(text) > TAIL_CHARACTERS:
            return self._tail(text, rows, "")
        width = max(10, self.console.width - 2)
        lines = self.console.render_lines(answer_block(text), self.console.options.update(width=width), pad=False)
        return Padding(Group(*(_line(line) for line in lines[-rows:])), (0, 0, 0, 2), expand=False)

    def _tail(self, text: str, rows: int, style: str) -> RenderableType:
        """The last `rows` lines of a text as it is, folded at the width."""
        width = max(10, self.console.width - 4)
        lines = clean(text[-TAIL_CHARACTERS:]).rstrip("\n").split("\n")
        folded = [part for line in lines[-rows:] for part in (chop_cells(line, width) or [""])]
        return Padding(Text("\n".join(folded[-rows:]), style, no_wrap=True, overflow="ellipsis"), (0, 0, 0, 2))


def _line(segments: list[Segment]) -> Text:
    """A rendered line as a text that is not folded again."""
    parts = [(segment.text, segment.style or "") for segment in segments if not segment.control]
    line = Text.assemble(*parts, no_wrap=True, overflow="crop")
    line.rstrip()
    return line


def _last_cells(line: str, width: int) -> str:
    """The end of a line, as much as stands in so many cells."""
    line = line[-width:]
    while cell_len(line) > width:
        line = line[1:]
    return line


class Kept:
    """The beginning and the end of a text that may be of any length."""

    def __init__(self) -> None:
        self.length = 0
        """Characters of the whole text."""
        self.tail = ""
        self._pieces: list[str] = []

    def add(self, text: str) -> None:
        if self.length < MAX_KEPT_CHARACTERS:
            self._pieces.append(text[:MAX_KEPT_CHARACTERS])
        self.length += len(text)
        self.tail = (self.tail + text)[-TAIL_CHARACTERS:]

    @property
    def text(self) -> str:
        """The text, or its beginning if it is longer than what is kept."""
        return "".join(self._pieces)
