"""A recorded fix once more, and the first place where it goes another way.

`check` asks the model again and answers every call with the recorded result: it shows whether model and prompts are
still the same. `live` does the whole fix again, from the recorded commit and issue, with tools and tests that run.
Not covered: `check` for the search strategy, whose results are the tests of candidates.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from m3_tools.base import Tool, ToolArgs, ToolContext, ToolResult, ToolSpec
from m3_tools.screenshot.tool import ScreenshotTool
from m3_tools.toolset import all_tools
from m3agent.budget import Budget
from m3agent.errors import M3Error
from m3agent.events import CandidateTried, Event, FixAsked, MessageAdded, RunEnded, RunStarted, ToolEnded
from m3agent.fix.flow import Fix, ModelOpener
from m3agent.fix.issue import issue_from_json
from m3agent.fix.request import CHOSEN, SETTLED, FixRequest
from m3agent.llm.protocol import LanguageModel, ModelEvent, ModelInfo, Options
from m3agent.loop import run_loop
from m3agent.messages import Message
from m3agent.prompt import Conversation
from m3agent.session.store import Recording
from m3agent.settings import Settings
from m3agent.sinks import EventSink, discard

MAX_LINES = 40
_VARYING = re.compile(
    r"m3-(?:fix|tests)-\w+|0x[0-9a-f]{6,}|\b\d+(?:\.\d+)? ?m?s\b|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|pid \d+"
)
"""What differs between two runs that went the same way: folders, addresses, durations, times."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One thing that counts as the way of a run: what it is (a reply, a result, the end), and its text to compare."""

    what: str
    text: str


class Diverged(BaseException):
    """The first step that is not as it was recorded. No exception, so that nothing on the way takes it for a fault."""

    def __init__(self, number: int, recorded: Step | None, now: Step | None):
        super().__init__()
        self.number, self.recorded, self.now = number, recorded, now

    def __str__(self) -> str:
        """Which step, and both of it as a diff."""
        old, new = self.recorded or Step(what="nothing", text=""), self.now or Step(what="nothing", text="")
        lines = list(difflib.unified_diff(old.text.splitlines(), new.text.splitlines(), "recorded", "now", lineterm=""))
        more = [f"… {len(lines) - MAX_LINES} more lines"] if len(lines) > MAX_LINES else []
        what = old.what if old.what == new.what else f"recorded {old.what}, now {new.what}"
        return "\n".join([f"step {self.number}: {what}", *lines[:MAX_LINES], *more])


def steps_of(events: Sequence[Event]) -> list[Step]:
    """The way that a recorded run went."""
    return [step for event in events if (step := _step(event)) is not None]


class Comparison:
    """A sink that holds a run against a recorded one. Errors: Diverged at the first step that differs."""

    def __init__(self, recorded: Sequence[Step], sink: EventSink = discard):
        self._recorded, self._sink, self.number, self._over = list(recorded), sink, 0, False

    def __call__(self, event: Event) -> None:
        self._sink(event)
        step = _step(event)
        if step is None or self._over:  # what is told while the run is given up is no step of it
            return
        self.number += 1
        expected = self._recorded[self.number - 1] if self.number <= len(self._recorded) else None
        if step != expected:
            self._over = True
            raise Diverged(self.number, expected, step)

    def end(self) -> None:
        """The run is over; the recorded one must be, too."""
        if self.number < len(self._recorded):
            raise Diverged(self.number + 1, self._recorded[self.number], None)


async def rerun_live(recording: Recording, settings: Settings, opener: ModelOpener, sink: EventSink = discard) -> int:
    """Do a recorded fix again; returns how many steps it went, all as recorded.

    Errors: Diverged; M3Error for a session that is no fix, or was recorded before fixes told what they start from.
    """
    started, asked = _beginning(recording)
    if asked is None:
        raise M3Error(f"{recording.run_id} does not say what it started from; only --check is possible")
    request = FixRequest(
        repo=Path(started.repo),
        issue=issue_from_json(asked.issue),
        base=asked.base,
        **{name: asked.choices[name] for name in CHOSEN},
    )
    comparison = Comparison(steps_of(recording.events), sink)
    with tempfile.TemporaryDirectory(prefix="m3-replay-") as folder:
        # Nothing of the person's changes: a patch that the run writes goes away with its folder.
        own = dataclasses.replace(_settled(settings, asked), state_dir=Path(folder))
        fix = Fix(request, own, comparison, run_id="replay", spill_dir=Path(folder), opener=opener, keep=False)
        await fix.run()
    comparison.end()
    return comparison.number


async def recheck(recording: Recording, settings: Settings, model: LanguageModel, sink: EventSink = discard) -> int:
    """Ask the model for every recorded reply again, with the recorded results; returns how many steps were the same.

    Errors: Diverged; M3Error for a session that is no fix of the *agent* strategy.
    """
    _, asked = _beginning(recording)
    if any(isinstance(event, CandidateTried) for event in recording.events):
        raise M3Error(f"{recording.run_id} was a search: its results are tests of candidates; use --live")
    settings = _settled(settings, asked)
    choices = asked.choices if asked else {}
    messages = [event.message for event in recording.events if isinstance(event, MessageAdded)]
    results = [ToolResult(text=e.text, is_error=e.is_error) for e in recording.events if isinstance(e, ToolEnded)]
    way = steps_of([e for e in recording.events if isinstance(e, MessageAdded)])
    comparison = Comparison(way, sink)
    conversation = Conversation(lambda event: comparison(event))
    options = Options(max_tokens=settings.max_tokens, temperature=settings.temperature, seed=choices.get("seed"))
    budget = Budget(max_steps=settings.max_steps)
    tools = _recorded_tools(results, model.info)
    with tempfile.TemporaryDirectory(prefix="m3-replay-") as folder:
        context = ToolContext(root=Path(folder), spill_dir=Path(folder), disposable=True)
        while len(conversation.messages) < len(messages):
            while (number := len(conversation.messages)) < len(messages) and messages[number].role in (
                "system",
                "user",
            ):
                conversation.add(messages[number])
            if number == len(messages):
                break
            result = await run_loop(
                _UntilRecorded(model, messages), conversation, tools, context, sink=discard, options=options,
                budget=budget, mode=choices.get("mode", "edit"),
            )  # fmt: skip
            if result.outcome != "answered":
                break
    comparison.end()
    return comparison.number


class _UntilRecorded:
    """The model, asked for no more replies than were recorded."""

    def __init__(self, model: LanguageModel, messages: Sequence[Message]):
        self._model, self._messages = model, messages

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], options: Options
    ) -> AsyncIterator[ModelEvent]:
        if len(messages) >= len(self._messages):
            raise Diverged(len(messages) + 1, None, Step(what="one more reply", text=""))
        async for event in self._model.stream(messages, tools, options):
            yield event

    async def aclose(self) -> None:
        """The model is not ours."""


def _recorded_tools(results: list[ToolResult], info: ModelInfo) -> list[Tool[Any]]:
    """Every tool as it is, its arguments checked as ever, but it answers with the next recorded result."""

    async def run(self: Tool[Any], args: ToolArgs, context: ToolContext) -> ToolResult:
        return results.pop(0) if results else ToolResult(text="no result was recorded", is_error=True)

    known = (*all_tools(), *((ScreenshotTool(),) if info.reads_images else ()))
    return [type("Recorded", (type(tool),), {"run": run})() for tool in known]


def _beginning(recording: Recording) -> tuple[RunStarted, FixAsked | None]:
    started = recording.events[0] if recording.events else None
    if not isinstance(started, RunStarted) or started.command != "fix":
        raise M3Error(f"{recording.run_id} is no fix; only a fix can be run again")
    return started, next((event for event in recording.events if isinstance(event, FixAsked)), None)


def _settled(settings: Settings, asked: FixAsked | None) -> Settings:
    """The limits and the sampling of the recorded run; the model is what the settings say."""
    if asked is None:
        return settings
    return dataclasses.replace(settings, **{name: asked.choices[name] for name in SETTLED})


def _step(event: Event) -> Step | None:
    """The event as a step, without what varies: call ids, folders, durations."""
    match event:
        case MessageAdded(message=message) if message.role == "assistant":
            calls = [f"{c.name} {_arguments(c.arguments)}" for c in message.tool_calls]
            parts = [f"(thinks) {message.reasoning}" if message.reasoning else "", message.text, *calls]
            return Step(what="the model's reply", text=_fixed("\n".join(part for part in parts if part)))
        case MessageAdded(message=message):
            return Step(
                what="a tool's result" if message.role == "tool" else f"a {message.role} message",
                text=_fixed(message.text),
            )
        case CandidateTried():
            return Step(what="a tried edit", text=_fixed(f"{event.verdict}\n{event.diff}"))
        case RunEnded():
            return Step(
                what="the end", text=f"{event.outcome}, exit code {event.exit_code}\n{event.report.get('diff', '')}"
            )
    return None


def _arguments(values: Any) -> str:
    return "\n  ".join(f"{name}={value!r}" for name, value in sorted(dict(values).items()))


def _fixed(text: str) -> str:
    return _VARYING.sub("…", text)
