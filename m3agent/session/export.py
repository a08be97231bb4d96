"""A session as a Markdown document."""

from __future__ import annotations

import json
import re

from m3_tools.base import DiffBlock
from m3_tools.secret import Secrets
from m3agent.events import MessageAdded, RunEnded, RunStarted, ToolEnded
from m3agent.session.store import Recording
from m3agent.ui.clean import clean, one_line


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


def fenced(text: str, language: str = "") -> str:
    """The text in a code fence that is longer than any inside it."""
    longest = max((len(ticks) for ticks in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{clean(text).strip(chr(10))}\n{fence}"
