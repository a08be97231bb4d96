"""The `shell` tool: one command in a fresh shell."""

from __future__ import annotations

import shutil
from typing import ClassVar

from pydantic import Field

from m3_tools.base import CommandBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.output import clean
from m3_tools.paths import printable, resolve_inside
from m3_tools.process import ProcessResult, child_environment, run_process


class ShellArgs(ToolArgs):
    command: str = Field(description="the command line, for bash")
    workdir: str = Field(default=".", description="folder to run in, relative to the repository")
    timeout_s: float = Field(default=120, gt=0, le=600, description="deadline in seconds, at most 600")


class ShellTool(Tool[ShellArgs]):
    name: ClassVar[str] = "shell"
    description: ClassVar[str] = (
        "Run a command line in a fresh bash. There is no terminal and no stdin, so a program that asks gets nothing. "
        "Variables and cd do not last; use workdir. Of long output the head and the tail are shown and a file holds "
        "the rest. At the deadline, and when the command ends, everything it started is stopped, background processes "
        "too."
    )
    args_type: ClassVar[type[ToolArgs]] = ShellArgs
    read_only: ClassVar[bool] = False

    async def run(self, args: ShellArgs, context: ToolContext) -> ToolResult:
        if "\0" in args.command:
            raise ToolError("The command holds a NUL character; bash cannot take it.")
        folder = resolve_inside(context.root, args.workdir)
        if not folder.is_dir():
            raise ToolError(f"workdir {printable(args.workdir)} is not a folder of the repository.")
        environment = child_environment(context.environment)
        shell = shutil.which("bash", path=environment.get("PATH")) or "/bin/sh"
        result = await run_process(
            [shell, "-c", args.command],
            cwd=folder,
            environment=environment,
            timeout_s=args.timeout_s,
            spill_dir=context.spill_dir,
            on_output=context.on_output,
        )
        block = CommandBlock(
            command=clean(args.command),
            exit_code=result.exit_code,
            duration_s=round(result.duration_s, 3),
            output=result.text,
            output_path=str(result.output_path) if result.output_path else None,
        )
        failed = result.exit_code != 0
        return ToolResult(text=_for_model(result, args.timeout_s), display=(block,), is_error=failed, data=result)


def _for_model(result: ProcessResult, timeout_s: float) -> str:
    if result.timed_out:
        first = f"stopped at the deadline of {timeout_s:g} s (exit code unknown)"
    elif result.exit_code is not None and result.exit_code < 0:
        first = f"ended by signal {-result.exit_code}"
    else:
        first = f"exit code {result.exit_code}"
    lines = [first, result.text.rstrip("\n") or "(no output)"]
    if result.stopped:
        lines.append("Still running when the command ended, and stopped: " + "; ".join(result.stopped))
    return "\n".join(lines)
