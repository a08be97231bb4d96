"""The agent's loop with a scripted model: everything that happens is an event, and any function can watch."""

import asyncio
import tempfile
from pathlib import Path

from m3_tools.base import ToolContext
from m3_tools.toolset import all_tools
from m3agent.budget import Budget
from m3agent.events import Event
from m3agent.llm.protocol import Options
from m3agent.llm.scripted import ScriptedModel
from m3agent.loop import run_loop
from m3agent.messages import ToolCall, assistant, user
from m3agent.prompt import Conversation


def show(event: Event) -> None:
    print(event.kind)


async def main() -> None:
    write = ToolCall(id="1", name="write", arguments={"path": "notes.txt", "content": "done\n"})
    model = ScriptedModel([assistant("I will leave a note.", calls=(write,)), assistant("The note is written.")])
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        conversation = Conversation(show, [user("Leave a note.")])
        result = await run_loop(
            model,
            conversation,
            all_tools(),
            ToolContext(root=root, spill_dir=root),
            sink=show,
            options=Options(),
            budget=Budget(max_steps=5),
            mode="auto",
        )
        assert (root / "notes.txt").read_text() == "done\n"
    print(result.outcome, "-", result.text)
    assert result.outcome == "answered"


asyncio.run(main())
