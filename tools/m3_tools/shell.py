"""The `shell` tool: one command in a fresh shell."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from m3_tools.base import CommandBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.jobs import Job
from m3_tools.output import SPILL_VARIABLE, clean
from m3_tools.paths import resolve_folder
from m3_tools.process import ProcessResult, child_environment, result_text, run_process
from m3_tools.sandbox import SandboxError, confined, reaches_network

MAX_TIMEOUT_S = 3600
SETTLE_S = 2.0
"""So long a command that is meant for the background is looked at: by then a server that cannot start has said why."""
ALONE = "no other command reaches its ports: there is no network between commands; ask a server in the command it is in"
HEAD_BYTES, TAIL_BYTES, LINE_CHARS = 5_000, 7_000, 2_000


class ShellArgs(ToolArgs):
    command: str = Field(description="the command line, for bash")
    workdir: str = Field(default=".", description="folder to run in, relative to the repository")
    timeout_s: float = Field(
        default=120, gt=0, le=MAX_TIMEOUT_S, description=f"deadline in seconds, at most {MAX_TIMEOUT_S}"
    )
    background: bool = Field(default=False, description="go on as a job after two seconds; for a server")

    @property
    def deadline_s(self) -> float:
        """What belongs in the background may run as long as any command, if nothing else was asked for."""
        asked = "timeout_s" in self.model_fields_set
        return self.timeout_s if asked or not self.background else MAX_TIMEOUT_S


class ShellTool(Tool[ShellArgs]):
    name: ClassVar[str] = "shell"
    description: ClassVar[str] = (
        "Run a command line in a fresh bash. There is no terminal and no stdin, so a program that asks gets nothing. "
        "Variables and cd do not last; use workdir. Of long output the head and the tail are shown, and a file that "
        "read and grep take holds all of it. A command that takes longer than a minute, or is for the background, goes "
        "on as a job. At the deadline, and when the command ends, everything it started is stopped, background "
        "processes too."
    )
    args_type: ClassVar[type[ToolArgs]] = ShellArgs
    read_only: ClassVar[bool] = False

    async def run(self, args: ShellArgs, context: ToolContext) -> ToolResult:
        if "\0" in args.command:
            raise ToolError("The command holds a NUL character; bash cannot take it.")
        folder = resolve_folder(context, args.workdir)
        environment = child_environment(context.environment, {SPILL_VARIABLE: str(context.spill_dir)})
        shell = shutil.which("bash", path=environment.get("PATH")) or "/bin/sh"
        job = Job(args.command, context.secrets, context.on_output)
        jobs = context.jobs if context.jobs and not context.jobs.full else None
        if args.background and jobs is None:
            raise ToolError(f"There is no room for another job. Running: {_running(context)}. Stop one with job.")
        work = _work(job, args, context, folder, [shell, "-c", args.command], environment)
        patience_s = jobs.patience_s if jobs else None
        if args.background and patience_s is not None:
            patience_s = min(patience_s, SETTLE_S)
        result = await job.run(work, patience_s)
        if result is None:
            assert jobs is not None
            jobs.add(job)
        output = result.text if result else job.take()
        block = CommandBlock(
            command=clean(args.command),
            exit_code=result.exit_code if result else None,
            duration_s=round(job.duration_s, 3),
            output=output,
            output_path=str(result.output_path) if result and result.output_path else None,
            goes_on=result is None,
        )
        text = _told(result, args.deadline_s) if result else _in_background(job, args.deadline_s, output)
        if result is None and args.background and not reaches_network(context.sandbox):
            text += f"\n({ALONE})"
        if context.sandbox is not None and (hidden := _secret_files(args.command, context)):
            text += f"\n({', '.join(hidden)}: a file of secrets is empty for commands)"
        failed = result is not None and result.exit_code != 0
        return ToolResult(text=text, display=(block,), is_error=failed, data=result)


async def _work(
    job: Job, args: ShellArgs, context: ToolContext, folder: Path, argv: list[str], environment: dict[str, str]
) -> ProcessResult:
    """The command inside the boundary, from its start to its end."""
    try:
        with confined(context.sandbox, argv, environment) as inside:
            return await run_process(
                inside.argv,
                cwd=folder,
                environment=inside.environment,
                timeout_s=args.deadline_s,
                spill_dir=context.spill_dir,
                head_bytes=HEAD_BYTES,
                tail_bytes=TAIL_BYTES,
                line_chars=LINE_CHARS,
                on_output=job.show if context.on_output else None,
                on_start=job.started,
            )
    except SandboxError as error:
        raise ToolError(f"The command was not run: {error}.") from error


def _running(context: ToolContext) -> str:
    return context.jobs.describe() if context.jobs else "none"


def _in_background(job: Job, timeout_s: float, output: str) -> str:
    return (
        f"still running after {job.duration_s:.0f} s, now as job {job.number} (pid {job.pid}), until its deadline of "
        f"{timeout_s:g} s. Go on; the tool job reads and stops it.\n{output.rstrip() or '(no output yet)'}"
    )


def _secret_files(command: str, context: ToolContext) -> list[str]:
    """The words of a command that name files which the sandbox hides."""
    return [word for word in dict.fromkeys(re.findall(r"[\w./~+-]+", command)) if context.secrets.guards(word)]


def _told(result: ProcessResult, timeout_s: float) -> str:
    if not result.timed_out:
        return result_text(result)
    longer = f"a longer timeout_s (at most {MAX_TIMEOUT_S}) or " if timeout_s < MAX_TIMEOUT_S else ""
    first = f"stopped at the deadline of {timeout_s:g} s (exit code unknown); give {longer}a narrower command"
    return "\n".join([first, *result_text(result).split("\n")[1:]])
