"""A session as a document: Markdown to read and to edit, HTML to look at."""

from __future__ import annotations

import io
import json
import re

from rich.console import Console

from m3_tools.base import DiffBlock
from m3_tools.secret import Secrets
from m3agent.events import Aside, MessageAdded, RunEnded, RunStarted, ToolEnded
from m3agent.session.replay import replay
from m3agent.session.store import Recording
from m3agent.ui.clean import clean, one_line
from m3agent.ui.terminal import TerminalView

HTML_WIDTH = 110


def to_markdown(recording: Recording, secrets: Secrets = Secrets()) -> str:
    """The conversation, the calls with their results and diffs, and how it ended; `secrets` are redacted."""
    parts: list[str] = []
    for event in recording.events:
        match event:
            case RunStarted():
                parts.append(f"# m3 {event.command}: {one_line(event.task, 100) or event.run_id}")
                parts.append(f"- session: {event.run_id}\n- model: {one_line(event.model)}\n- m3: {event.version}")
            case MessageAdded(message=message) if message.role == "user":
                parts.append(f"## Person\n\n{clean(message.text).strip()}")
            case MessageAdded(message=message) if message.role == "assistant":
                if message.text.strip():
                    parts.append(f"## Model\n\n{clean(message.text).strip()}")
                for call in message.tool_calls:
                    arguments = json.dumps(dict(call.arguments), ensure_ascii=False, indent=1)
                    parts.append(f"**{one_line(call.name)}**\n\n{fenced(arguments, 'json')}")
            case Aside():
                parts.append(f"## Aside\n\n{clean(event.question)}\n\n{clean(event.answer).strip()}")
            case ToolEnded():
                diffs = [block for block in event.display if isinstance(block, DiffBlock)]
                parts += [fenced(block.diff, "diff") for block in diffs] or [fenced(event.text)]
            case RunEnded():
                parts.append(
                    f"## End\n\n{one_line(event.outcome)} (exit code {event.exit_code}, {event.duration_s:.1f} s)"
                )
                if event.summary.strip():
                    parts.append(clean(event.summary).strip())
    if recording.torn:
        parts.append("_The last line of the recording was cut off and is not shown._")
    return secrets.redact("\n\n".join(parts)) + "\n"


def to_html(recording: Recording, secrets: Secrets = Secrets()) -> str:
    """The session as its run looked, as a page that needs nothing else; `secrets` are redacted."""
    console = Console(
        file=io.StringIO(), record=True, width=HTML_WIDTH, color_system="truecolor", legacy_windows=False,
        force_terminal=False, highlight=False, emoji=False, markup=False, _environ={},
    )  # fmt: skip
    replay(recording, TerminalView(console, clock=lambda: 0.0))
    return secrets.redact(console.export_html())


def fenced(text: str, language: str = "") -> str:
    """The text in a code fence that is longer than any inside it."""
    longest = max((len(ticks) for ticks in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{clean(text).strip(chr(10))}\n{fence}"
