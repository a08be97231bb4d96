"""The `job` tool: read, wait for, or stop a command that went into the background."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from m3_tools.base import CommandBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.jobs import Job
from m3_tools.output import clean
from m3_tools.process import result_text

MAX_WAIT_S = 60


class JobArgs(ToolArgs):
    number: int = Field(description="the number that shell gave")
    action: Literal["read", "stop"] = Field(default="read", description="stop ends it with all its children")
    wait_s: float = Field(default=0, ge=0, le=MAX_WAIT_S, description="wait for its end, at most so many seconds")


class JobTool(Tool[JobArgs]):
    name: ClassVar[str] = "job"
    description: ClassVar[str] = (
        "Read what a shell command in the background printed since you last looked, wait for it, or stop it. "
        "When it has ended you get its exit code and its whole output."
    )
    args_type: ClassVar[type[ToolArgs]] = JobArgs
    needs: ClassVar[str] = "shell"
    read_only: ClassVar[bool] = False

    async def run(self, args: JobArgs, context: ToolContext) -> ToolResult:
        job = context.jobs.get(args.number) if context.jobs else None
        if not isinstance(job, Job):
            raise ToolError(
                f"There is no job {args.number}. Running: {context.jobs.describe() if context.jobs else 'none'}."
            )
        if args.action == "stop" and not job.ended:
            await job.stop()
        elif not job.ended:
            await job.wait(args.wait_s)
        return _told(job)


def _told(job: Job) -> ToolResult:
    result = job.result()
    if result is not None:
        text, output, failed = result_text(result), result.text, result.exit_code != 0
    else:
        output = job.take()
        state = "stopped" if job.ended else f"still running after {job.duration_s:.0f} s"
        text, failed = f"{state} (pid {job.pid})\n{output.rstrip() or '(no new output)'}", False
    block = CommandBlock(
        command=clean(job.command),
        exit_code=result.exit_code if result else None,
        duration_s=round(job.duration_s, 3),
        output=output,
        output_path=str(result.output_path) if result and result.output_path else None,
        goes_on=not job.ended,
    )
    return ToolResult(text=text, display=(block,), is_error=failed, data=result)
