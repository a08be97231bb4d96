"""The live view: what is finished is printed once, above; what is going on is drawn in a few lines below it.

Scrollback stays the terminal's own, and the cost of a redraw does not grow with what was printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from markdown_it import MarkdownIt
from rich.console import Console, Group, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
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
from m3agent.ui.blocks import BlockSplitter
from m3agent.ui.clean import clean, one_line, with_bounded_words
from m3agent.ui.graphics import Graphics
from m3agent.ui.render import aside, candidate_line, marked, render, seconds, tool_ended, tool_started, turn_line
from m3agent.ui.surface import LiveSurface, Surface
from m3agent.ui.thumbnail import Thumbnail

TAIL_CHARACTERS = 4000
CHARACTERS_A_TOKEN = 4
"""Roughly; reasoning is counted by its length until the turn has ended."""
STYLES = {"reads": "blue", "thinks": "magenta", "runs": "yellow"}
"""What is going on, by colour; everything else is cyan."""
SHOWN_CANDIDATES = 3
MAX_MARKDOWN_CHARACTERS = 20_000
MAX_BRACKETS = 200
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
"""Rich's own parser takes `vector<int>` for HTML, and Rich shows none."""


class TerminalView:
    """A sink that draws on a terminal. `close` may be called at any time, and more than once."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic, thumbnails: Graphics = "off"):
        self.console = console
        self._thumbnails = thumbnails
        self._clock = clock
        self.surface: Surface = LiveSurface(console)
        self._spinner = Spinner("dots", style="cyan")
        self._calls: dict[str, ToolStarted] = {}
        self._blocks = BlockSplitter()
        self._answer = ""
        self._thought = ""
        self._thought_characters = 0
        self._since = clock()
        self._activity = ""
        self._progress: tuple[int, int] | None = None
        self._read_from: tuple[float, int] | None = None
        self._tool_tail = ""
        self._candidates: list[CandidateTried] = []

    def __call__(self, event: Event) -> None:
        match event:
            case PhaseStarted():
                self._print(render(event))
                self._now(one_line(event.name, 40))
            case PhaseEnded():
                self._print_candidates()
                self._print(render(event))
                self._now("")
            case TurnStarted():
                self._answer = ""
                self._now("reads")
            case Prefill():
                self._progress = (event.done_tokens, event.total_tokens)
                if self._read_from is None:
                    self._read_from = (self._clock(), event.done_tokens)
            case ThinkText():
                if not self._thought:
                    self._now("thinks")
                self._thought = (self._thought + event.text)[-TAIL_CHARACTERS:]
                self._thought_characters += len(event.text)
            case AnswerText():
                self._end_thought()
                if not self._answer:
                    self._now("writes")
                self._answer += event.text
                for block in self._blocks.feed(event.text):
                    self._print_answer(block)
            case TurnEnded():
                self._end_thought()
                self._print_answer(self._blocks.finish())
                self._print(turn_line(event))
                self._now("")
            case ToolStarted():
                self._calls[event.call_id] = event
                self._tool_tail = ""
                self._now("")
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
                if event.summary.strip() and event.summary.strip() != self._answer.strip():
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
        self._now("")
        self.surface.hide()

    def resume(self) -> None:
        """Draw the live lines again after `close`; what runs counts from now."""
        self._now("")
        self.surface.show(self._frame)

    def _now(self, activity: str) -> None:
        self._activity, self._since = activity, self._clock()
        self._progress = self._read_from = None

    def _print(self, shown: RenderableType | None) -> None:
        if shown is not None:
            self.surface.print(shown)

    def _print_pictures(self, blocks: Iterable[DisplayBlock]) -> None:
        if self._thumbnails != "off":
            for block in blocks:
                if isinstance(block, PictureBlock):
                    self._print(Thumbnail(block, self._thumbnails))

    def _print_answer(self, block: str) -> None:
        if block.strip():
            self._print(Padding(answer_block(block), (0, 0, 0, 2)))

    def _end_thought(self) -> None:
        if self._thought:
            took = seconds(self._clock() - self._since) or "a moment"
            words = f"thought for {took} · {self._thought_tokens()}"
            self._print(marked("✻", "dim", Text(words, "dim italic")))
            self._thought, self._thought_characters = "", 0

    def _thought_tokens(self) -> str:
        return f"about {max(1, self._thought_characters // CHARACTERS_A_TOKEN):,} tokens"

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
                    "✗", "red", Text(f"{len(failed)} candidate{'s' * (len(failed) > 1)} did not work: {words}", "dim")
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
            parts.append(self._open_block(tail, rows))
        if self._thought:
            width = max(10, self.console.width - 4)
            parts.append(Padding(Text(one_line(self._thought, TAIL_CHARACTERS)[-width:], "dim italic"), (0, 0, 0, 2)))
        parts += [candidate_line(c) for c in self._candidates[-SHOWN_CANDIDATES:]]
        for call in list(self._calls.values())[-3:]:
            parts.append(tool_started(call))
            if self._tool_tail.strip():
                parts.append(self._tail(self._tool_tail, 3, "dim"))
        parts.append(self._status())
        return Group(*parts)

    def _open_block(self, text: str, rows: int) -> RenderableType:
        """The block that is being written, as it will look; its last `rows` lines where it is long."""
        if len(text) > TAIL_CHARACTERS:
            return self._tail(text, rows, "")
        width = max(10, self.console.width - 2)
        lines = self.console.render_lines(answer_block(text), self.console.options.update(width=width), pad=False)
        return Padding(Group(*(_line(line) for line in lines[-rows:])), (0, 0, 0, 2), expand=False)

    def _tail(self, text: str, rows: int, style: str) -> RenderableType:
        """The last `rows` lines of a text, each cut to the width."""
        width = max(10, self.console.width - 4)
        lines = clean(text[-TAIL_CHARACTERS:]).rstrip("\n").split("\n")
        wrapped = [line[i : i + width] for line in lines[-rows:] for i in range(0, max(1, len(line)), width)]
        return Padding(Text("\n".join(wrapped[-rows:]), style, no_wrap=True, overflow="ellipsis"), (0, 0, 0, 2))

    def _status(self) -> RenderableType:
        activity = self._activity or ("runs" if self._calls else "works")
        text = Text(activity, STYLES.get(activity, "cyan"), no_wrap=True, overflow="ellipsis")
        if self._candidates:
            text.append(f" · candidate {self._candidates[-1].index} of {self._candidates[-1].total}", "dim")
        if self._progress and self._progress[1]:
            done, total = self._progress
            text.append(f" · {done:,} of {total:,} tokens ({100 * done // total} %)", "dim")
            if left := self._reading_left_s():
                text.append(f" · {seconds(left)} left", "dim")
        if self._thought:
            text.append(f" · {self._thought_tokens()}", "dim")
        text.append(f" · {self._clock() - self._since:.0f} s", "dim")
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row("", self._spinner, text)
        return line

    def _reading_left_s(self) -> float | None:
        """Seconds until the prompt is read, at the speed so far; None while that is not known."""
        if self._progress is None or self._read_from is None:
            return None
        (done, total), (start, before) = self._progress, self._read_from
        took = self._clock() - start
        return took * (total - done) / (done - before) if done > before and took > 0.5 else None


def _line(segments: list[Segment]) -> Text:
    """A rendered line as a text that is not folded again."""
    parts = [(segment.text, segment.style or "") for segment in segments if not segment.control]
    line = Text.assemble(*parts, no_wrap=True, overflow="crop")
    line.rstrip()
    return line


def answer_block(block: str) -> RenderableType:
    """One block of an answer as Markdown; as plain text where a Markdown parser would take its time."""
    if len(block) > MAX_MARKDOWN_CHARACTERS or block.count("[") > MAX_BRACKETS:
        return plain_text(block)
    shown = Markdown("", hyperlinks=False)
    shown.parsed = _MARKDOWN.parse(with_bounded_words(clean(block)))
    return shown


def plain_text(text: str) -> Text:
    return Text(with_bounded_words(clean(text)).strip("\n"))
