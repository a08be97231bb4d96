"""Events as Rich renderables: pure, no state, no terminal. What a call, a result, a verdict look like is decided here.

Run `python -m m3agent.ui.render` to see every kind of event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from m3_tools.base import CommandBlock, DiffBlock, DisplayBlock, PictureBlock, TestsBlock, TextBlock, TodoBlock
from m3agent.approval import CHANGES_NOTHING
from m3agent.events import (
    Aside,
    CandidateTried,
    Event,
    Notice,
    PhaseEnded,
    PhaseStarted,
    RunEnded,
    RunStarted,
    Said,
    ToolEnded,
    ToolStarted,
    TurnEnded,
)
from m3agent.ui.clean import clean, one_line, one_visible_line
from m3agent.ui.diff import diff_text

MAX_OUTPUT_LINES = 10
"""Lines of a command's or a tool's output that are shown; the model saw more, and the session holds all of it."""
MAX_SAID_LINES = 20
INDENT = 4
VERDICTS = {
    "fixed": ("✓", "good", "fixed"),
    "still_failing": ("✗", "bad", "still failing"),
    "regressed": ("✗", "bad", "breaks other tests"),
    "broken": ("✗", "warn", "does not run"),
}


def render(event: Event) -> RenderableType | None:
    """What is printed when this event happens; None for the events that only a live view shows."""
    match event:
        case RunStarted():
            return run_started(event)
        case PhaseStarted():
            line = _with_details(Text(one_line(event.name), "strong"), event.detail)
            return marked("▸", "accent", line, indent=0)
        case PhaseEnded():
            return marked("▪", "accent", _with_details(Text(one_line(event.summary)), seconds(event.duration_s)))
        case ToolEnded():
            return tool_ended(event)
        case CandidateTried():
            return candidate_line(event)
        case Notice():
            mark, style = {"info": ("·", "quiet"), "warning": ("!", "warn"), "error": ("✗", "bad")}[event.level]
            return marked(mark, style, Text(one_line(event.text), style))
        case Said():
            return marked("›", "accent.strong", excerpt(event.text, MAX_SAID_LINES, "strong"), indent=0)
        case Aside():
            return aside(event, Text(clean(event.answer).strip()))
        case RunEnded():
            return run_ended(event)
    return None


def run_started(event: RunStarted) -> RenderableType:
    head = Text.assemble(("m3 ", "accent.strong"), (one_line(event.command), "strong"), ("  ", ""))
    head.append(f"{one_line(event.model)} · {one_line(event.repo)}", "quiet")
    return Group(head, marked("", "", Text(one_line(event.task)), indent=0)) if event.task.strip() else head


def aside(event: Aside, answer: RenderableType) -> RenderableType:
    """A question beside the conversation, with its answer behind a bar of its own."""
    return Group(marked("↳", "aside", Text(one_line(event.question), "slanted")), Padding(answer, (0, 0, 0, INDENT)))


def run_ended(event: RunEnded) -> RenderableType:
    style = "good.strong" if event.exit_code == 0 else "warn.strong"
    mark = "✓" if event.exit_code == 0 else "✗"
    code = "" if event.exit_code == 0 else f"exit code {event.exit_code}"
    line = _with_details(Text(one_line(event.outcome), style), seconds(event.duration_s), code)
    return marked(mark, style, line, indent=0)


def call_text(name: str, arguments: Mapping[str, Any]) -> Text:
    """A call on one line: the tool and what it is about."""
    text = Text(one_visible_line(name, 40), "strong")
    values = dict(arguments)
    for key in ("path", "symbol", "line", "pattern", "command", "tests", "action"):
        if values.get(key) not in (None, "", []):
            value = values[key]
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            text.append(" " + one_visible_line(shown.removesuffix("|") if key == "line" else shown, 120), "default")
        values.pop(key, None)
    for key in ("start", "end", "glob", "url"):
        if values.get(key) not in (None, ""):
            text.append(f" {key} {one_visible_line(str(values[key]), 60)}", "quiet")
    return text


def tool_started(event: ToolStarted) -> RenderableType:
    return marked("→", "accent", call_text(event.name, event.arguments))


def tool_ended(event: ToolEnded, arguments: Mapping[str, Any] | None = None) -> RenderableType:
    """The call's line as its result, then what it shows. `arguments` are those of its `ToolStarted`, when known."""
    failed_tests = any(isinstance(b, TestsBlock) and b.failed + b.errors for b in event.display)
    mark, style = ("✗", "bad") if event.is_error or failed_tests else ("✓", "good")
    line = call_text(event.name, arguments or {})
    facts = [fact for fact in _facts(event.display) if fact not in line.plain]
    allowed = "" if event.is_error or event.rule == CHANGES_NOTHING else event.rule
    line = _with_details(line, *facts, seconds(event.duration_s), allowed)
    parts: list[RenderableType] = [marked(mark, style, line)]
    parts += [
        Padding(shown, (0, 0, 0, INDENT), expand=False)
        for block in event.display
        if (shown := display_block(block)) is not None
    ]
    if event.is_error and not event.display:
        parts.append(Padding(excerpt(event.text, 4, "bad"), (0, 0, 0, INDENT), expand=False))
    return Group(*parts)


def display_block(block: DisplayBlock) -> RenderableType | None:
    """What a block shows below its call; None when the call's line says it all."""
    match block:
        case DiffBlock():
            return diff_text(block.path, block.diff)
        case CommandBlock():
            return excerpt(block.output) if block.output.strip() else None
        case TestsBlock():
            return _lines(Text(one_line(name, 200), "bad") for name in block.failures[:5]) if block.failures else None
        case TodoBlock():
            marks = {"done": ("☑", "good"), "active": ("◐", "accent"), "pending": ("☐", "quiet")}
            rows = [(marks.get(state, ("☐", "quiet")), text) for state, text in block.items]
            return _lines(Text.assemble((f"{m} ", s), one_line(t, 200)) for (m, s), t in rows)
        case TextBlock():
            return excerpt(block.text) if block.text.strip() else None
        case PictureBlock():
            return None


def candidate_line(event: CandidateTried) -> RenderableType:
    mark, style, words = VERDICTS[event.verdict]
    line = Text.assemble((f"{event.index}/{event.total} ", "quiet"), one_line(event.path, 60))
    return marked(mark, style, _with_details(line, words, one_line(event.detail, 80), seconds(event.duration_s)))


def turn_line(event: TurnEnded) -> RenderableType | None:
    """What a turn cost: tokens read and how many of them were cached, tokens written and how fast."""
    facts = []
    if event.prompt_tokens:
        share = f" ({100 * event.cached_tokens // event.prompt_tokens} % cached)" if event.cached_tokens else ""
        facts.append(f"{event.prompt_tokens:,} tokens in{share}")
    if event.completion_tokens:
        facts.append(f"{event.completion_tokens:,} out")
    if event.completion_tokens > 1 and event.duration_s > 0.05:
        facts.append(f"{event.completion_tokens / event.duration_s:.0f}/s")
    return marked("", "", Text(" · ".join(facts), "quiet")) if facts else None


def excerpt(text: str, limit: int = MAX_OUTPUT_LINES, style: str = "quiet") -> Text:
    """The head and tail of a text, with the number of lines between them."""
    lines = [line[:400] + "…" if len(line) > 400 else line for line in clean(text).strip("\n").split("\n")]
    if len(lines) > limit:
        head = limit // 2
        tail = limit - head - 1
        lines = [*lines[:head], f"… {len(lines) - head - tail} more lines …", *lines[len(lines) - tail :]]
    return Text("\n".join(lines), style)


def marked(mark: str, style: str, text: Text, *, indent: int = 2) -> RenderableType:
    """A line behind a mark; where it wraps, it goes on below its own beginning."""
    line = Table.grid()
    line.add_column(width=indent + 2)
    line.add_column(overflow="fold")
    line.add_row(Text(" " * indent + mark, style), text)
    return line


def seconds(value: float) -> str:
    if value >= 60:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{value:.1f} s" if value >= 0.05 else ""


def _facts(blocks: Iterable[DisplayBlock]) -> list[str]:
    facts: list[str] = []
    for block in blocks:
        match block:
            case TestsBlock():
                names = ("passed", "failed", "errors", "skipped")
                counts = [f"{n} {name}" for name in names if (n := getattr(block, name))]
                facts.append(", ".join(counts) or "no tests ran")
            case CommandBlock(goes_on=True):
                facts.append("goes on in the background")
            case CommandBlock(exit_code=code) if code != 0:
                facts.append("stopped" if code is None else f"exit code {code}")
            case DiffBlock(diff=diff):
                changed = [line[:1] for line in diff.splitlines() if not line.startswith(("+++", "---"))]
                facts.append(f"+{changed.count('+')} −{changed.count('-')}")
            case PictureBlock():
                facts.append(f"{one_line(block.title, 40)} {block.width} × {block.height}")
            case TextBlock(title=title) if title:
                facts.append(one_line(title, 60))
    return facts


def _with_details(line: Text, *details: str) -> Text:
    for detail in details:
        if detail:
            line.append(f" · {one_line(detail, 200)}", "quiet")
    return line


def _lines(lines: Iterable[Text]) -> Text:
    return Text("\n").join(lines)


if __name__ == "__main__":
    from rich.console import Console

    from m3agent.ui.samples import SAMPLES

    for sample in SAMPLES:
        if (shown := render(sample)) is not None:
            Console().print(shown)
