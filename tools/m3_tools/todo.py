"""The `todo` tool: the model's own list of steps, for the person to see."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from m3_tools.base import TodoBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.text import shown

MAX_ITEMS = 50
_MARKS = {"pending": "[ ]", "active": "[>]", "done": "[x]"}


class TodoItem(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = Field(min_length=1)
    state: Literal["pending", "active", "done"] = "pending"


class TodoArgs(ToolArgs):
    items: tuple[TodoItem, ...] = Field(description="the whole list, in order; it replaces the list before")


class TodoTool(Tool[TodoArgs]):
    name: ClassVar[str] = "todo"
    description: ClassVar[str] = (
        "Write down the steps of a longer task and their states; give the whole list each time. At most one step is "
        f"active, at most {MAX_ITEMS} in all."
    )
    args_type: ClassVar[type[ToolArgs]] = TodoArgs

    async def run(self, args: TodoArgs, context: ToolContext) -> ToolResult:
        if len(args.items) > MAX_ITEMS:
            raise ToolError(f"The list has {len(args.items)} steps; at most {MAX_ITEMS} are kept. Join small ones.")
        if sum(item.state == "active" for item in args.items) > 1:
            raise ToolError("More than one step is active. Mark the one being worked on.")
        pairs = tuple((item.state, " ".join(shown(item.text.replace("\n", " ")).split())) for item in args.items)
        text = "\n".join(f"{_MARKS[state]} {step}" for state, step in pairs) or "(the list is empty)"
        return ToolResult(text=text, display=(TodoBlock(items=pairs),))
