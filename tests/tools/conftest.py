"""A work tree in a temporary folder, and tools called the way the agent calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m3_tools.base import Tool, ToolContext, ToolResult, call_tool

Call = Callable[..., ToolResult]


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    root = tmp_path / "repo"
    root.mkdir(exist_ok=True)
    return ToolContext(root=root.resolve(), spill_dir=tmp_path / "spill")


@pytest.fixture
def call(context: ToolContext) -> Call:
    """Run a tool to its end, in a loop of its own."""

    def run(tool: Tool[Any], **arguments: Any) -> ToolResult:
        return asyncio.run(call_tool(tool, arguments, context))

    return run
