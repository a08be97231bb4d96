"""`m3 run PROMPT`: one task, no questions asked."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from m3agent.approval import Mode
from m3agent.commands.options import (
    budget_options,
    device_option,
    gpus_option,
    image_options,
    mode_option,
    model_option,
    output_option,
    repo_option,
    sandbox_options,
    seed_option,
)
from m3agent.errors import M3Error
from m3agent.events import Notice, RunEnded, RunStarted
from m3agent.exits import Exit
from m3agent.images import parts_for, read_images, told
from m3agent.llm.gpus import follow_if_told
from m3agent.outputs import OutputFormat, open_outputs
from m3agent.settings import Settings, load_settings
from m3agent.signals import interrupt_exit, model_exit, run_command

if TYPE_CHECKING:
    from m3_tools.screenshot.picture import Picture


@click.command()
@click.argument("prompt")
@repo_option
@model_option
@device_option
@gpus_option
@image_options
@mode_option("plan", "edit", "auto", default="edit")
@budget_options
@sandbox_options
@seed_option
@output_option
def command(
    prompt: str,
    repo: Path,
    images: tuple[Path, ...],
    mode: Mode,
    seed: int | None,
    output: OutputFormat,
    **for_settings: Any,
) -> int:
    """Do one task in the repository; PROMPT says what, `-` reads it from stdin.

    Nothing is asked: a call that needs an approval is refused, and when the task ends there the exit code is 6.
    """
    settings = load_settings(repo=repo, **for_settings)
    follow_if_told(settings)
    task = sys.stdin.read() if prompt == "-" else prompt
    if not task.strip():
        raise M3Error("the task is empty: say what is to be done")
    pictures = read_images(images)
    return run_command(lambda: _run(settings, task, pictures, repo, mode, seed, output))


async def _run(
    settings: Settings,
    task: str,
    pictures: tuple[Picture, ...],
    repo: Path,
    mode: Mode,
    seed: int | None,
    output: OutputFormat,
) -> int:
    from m3agent import __version__
    from m3agent.budget import Budget
    from m3agent.llm.factory import open_model
    from m3agent.llm.protocol import ModelError
    from m3agent.loop import run_loop
    from m3agent.messages import user
    from m3agent.workspace import Workspace, open_workspace

    model = await open_model(settings)
    budget = Budget(max_steps=settings.max_steps, time_limit_s=settings.time_limit_s)
    try:
        with open_outputs(settings, output=output) as out:
            work: Workspace | None = None

            def end(code: Exit, outcome: str, summary: str) -> int:
                changed = work.journal.changed_files() if work else []
                if changed:
                    out.sink(Notice(text=f"changed: {', '.join(changed)} (m3 undo --request takes it back)"))
                out.sink(Notice(text=f"session: {out.session_path}"))
                report = {
                    "model": model.info.name,
                    "steps": budget.steps,
                    "prompt_tokens": budget.usage.prompt_tokens,
                    "cached_tokens": budget.usage.cached_tokens,
                    "completion_tokens": budget.usage.completion_tokens,
                    "changed": changed,
                    "session": str(out.session_path),
                }
                out.sink(
                    RunEnded(
                        exit_code=code, outcome=outcome, summary=summary, duration_s=budget.elapsed_s, report=report
                    )
                )
                return int(code)

            out.sink(
                RunStarted(
                    run_id=out.run_id,
                    command="run",
                    model=model.info.name,
                    repo=str(repo),
                    task=task,
                    version=__version__,
                )
            )
            try:
                work = await open_workspace(settings, model.info, repo, command="run", outputs=out)
                for notice in told(pictures, model.info, settings.image_rule, out.spill_dir):
                    out.sink(notice)
                work.conversation.add(user(task, *parts_for(pictures, model.info)))
                result = await run_loop(
                    model,
                    work.conversation,
                    work.tools,
                    work.context,
                    sink=out.sink,
                    options=work.options(settings, seed),
                    budget=budget,
                    mode=mode,
                    rules=settings.rules,
                )
            except asyncio.CancelledError as error:
                end(interrupt_exit(error), "interrupted", "")
                raise
            except ModelError as error:
                return end(model_exit(error), "the model is unavailable", str(error))
            finally:
                if work is not None:
                    for line in await work.close():
                        out.sink(Notice(text=line))
            summary = result.text if not result.detail else f"{result.text.rstrip()}\n\n{result.detail}".lstrip()
            return end(result.exit_code, result.outcome.replace("_", " "), summary)
    finally:
        await model.aclose()
