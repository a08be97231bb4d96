"""The tools together, in the order in which a model is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from m3_tools.base import Tool
from m3_tools.delete import DeleteTool
from m3_tools.diff import DiffTool
from m3_tools.edit import EditTool
from m3_tools.edit_line import EditLineTool
from m3_tools.glob import GlobTool
from m3_tools.grep import GrepTool
from m3_tools.job import JobTool
from m3_tools.move import MoveTool
from m3_tools.outline import OutlineTool
from m3_tools.read import ReadTool
from m3_tools.run_tests import RunTests
from m3_tools.shell import ShellTool
from m3_tools.terminal import TerminalTool
from m3_tools.todo import TodoTool
from m3_tools.write import WriteTool


def all_tools(*, run_tests: RunTests | None = None, more: Sequence[Tool[Any]] = ()) -> tuple[Tool[Any], ...]:
    """One of each tool, then `more`; `run_tests` is a configured `test` tool to use instead of the ordinary one."""
    return (
        ReadTool(),
        GrepTool(),
        GlobTool(),
        OutlineTool(),
        EditTool(),
        EditLineTool(),
        WriteTool(),
        MoveTool(),
        DeleteTool(),
        DiffTool(),
        ShellTool(),
        JobTool(),
        TerminalTool(),
        run_tests or RunTests(),
        TodoTool(),
        *more,
    )
