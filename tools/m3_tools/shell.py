"""The `shell` tool: one command in a fresh shell."""

from __future__ import annotations

import re
import shutil
from typing import ClassVar

from pydantic import Field

from m3_tools.base import CommandBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.output import SPILL_VARIABLE, clean
from m3_tools.paths import resolve_folder
from m3_tools.process import ProcessResult, child_environment, run_process
from m3_tools.sandbox import SandboxError, confined

MAX_TIMEOUT_S = 600
HEAD_BYTES, TAIL_BYTES, LINE_CHARS = 5_000, 7_000, 2_000


class ShellArgs(ToolArgs):
    command: str = Field(description="the command line, for bash")
    workdir: str = Field(default=".", description="folder to run in, relative to the repository")
    timeout_s: float = Field(default=120, gt=0, le=MAX_TIMEOUT_S, description="deadline in seconds, at most 600")


class ShellTool(Tool[ShellArgs]):
    name: ClassVar[str] = "shell"
    description: ClassVar[str] = (
        "Run a command line in a fresh bash. There is no terminal and no stdin, so a program that asks gets nothing. "
        "Variables and cd do not last; use workdir. Of long output the head and the tail are shown, and a file that "
        "read and grep take holds all of it. At the deadline, and when the command ends, everything it started is "
        "stopped, background processes too."
    )
    args_type: ClassVar[type[ToolArgs]] = ShellArgs
    read_only: ClassVar[bool] = False

    async def run(self, args: ShellArgs, context: ToolContext) -> ToolResult:
        if "\0" in args.command:
            raise ToolError("The command holds a NUL character; bash cannot take it.")
        folder = resolve_folder(context, args.workdir)
        environment = child_environment(context.environment, {SPILL_VARIABLE: str(context.spill_dir)})
        shell = shutil.which("bash", path=environment.get("PATH")) or "/bin/sh"
        try:
            with confined(context.sandbox, [shell, "-c", args.command], environment) as inside:
                result = await run_process(
                    inside.argv,
                    cwd=folder,
                    environment=inside.environment,
                    timeout_s=args.timeout_s,
                    spill_dir=context.spill_dir,
                    head_bytes=HEAD_BYTES,
                    tail_bytes=TAIL_BYTES,
                    line_chars=LINE_CHARS,
                    on_output=context.on_output,
                )
        except SandboxError as error:
            raise ToolError(f"The command was not run: {error}.") from error
        block = CommandBlock(
            command=clean(args.command),
            exit_code=result.exit_code,
            duration_s=round(result.duration_s, 3),
            output=result.text,
            output_path=str(result.output_path) if result.output_path else None,
        )
        failed = result.exit_code != 0
        text = _for_model(result, args.timeout_s)
        if context.sandbox is not None and (hidden := _secret_files(args.command, context)):
            text += f"\n({', '.join(hidden)}: a file of secrets is empty for commands)"
        return ToolResult(text=text, display=(block,), is_error=failed, data=result)


def _secret_files(command: str, context: ToolContext) -> list[str]:
    """The words of a command that name files which the sandbox hides."""
    return [word for word in dict.fromkeys(re.findall(r"[\w./~+-]+", command)) if context.secrets.guards(word)]


def _for_model(result: ProcessResult, timeout_s: float) -> str:
    if result.timed_out:
        longer = f"a longer timeout_s (at most {MAX_TIMEOUT_S}) or " if timeout_s < MAX_TIMEOUT_S else ""
        first = f"stopped at the deadline of {timeout_s:g} s (exit code unknown); give {longer}a narrower command"
    elif result.exit_code is not None and result.exit_code < 0:
        first = f"ended by signal {-result.exit_code}{_after(result)}"
    else:
        first = f"exit code {result.exit_code}{_after(result)}"
    lines = [first, result.text.rstrip("\n") or "(no output)"]
    if result.stopped:
        lines.append("Still running when the command ended, and stopped: " + "; ".join(result.stopped))
    return "\n".join(lines)


def _after(result: ProcessResult) -> str:
    """The time that it took, in whole seconds: short commands that end alike must read alike in every run."""
    return f" after {result.duration_s:.0f} s" if result.duration_s >= 1 else ""
