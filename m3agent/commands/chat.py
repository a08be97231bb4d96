"""`m3 chat`: a conversation about a repository, at a terminal or over a pipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from m3agent.approval import Mode
from m3agent.commands.options import (
    device_option,
    gpus_option,
    image_options,
    mode_option,
    model_option,
    repo_option,
    sandbox_options,
    seed_option,
)
from m3agent.commands.trust import offer
from m3agent.images import read_images
from m3agent.llm.gpus import follow_if_told
from m3agent.settings import load_settings
from m3agent.signals import run_command


@click.command()
@click.argument("prompt", default="")
@repo_option
@model_option
@device_option
@gpus_option
@mode_option("plan", "ask", "edit", "auto", default="ask")
@click.option(
    "--resume",
    metavar="[ID]",
    is_flag=False,
    flag_value="last",
    help="Go on with a past chat, without an ID with the last one here; `m3 sessions list` shows the ids.",
)
@click.option("--screen-reader", is_flag=True, default=None, help="Draw nothing twice: plain lines only.")
@image_options
@sandbox_options
@seed_option
def command(
    prompt: str,
    repo: Path,
    mode: Mode,
    resume: str | None,
    images: tuple[Path, ...],
    seed: int | None,
    **for_settings: Any,
) -> int:
    """Talk with the model about the code. PROMPT is the first thing you say. /help lists the commands in it.

    Without a terminal every line of stdin is a message, and nothing is asked.
    """
    from m3agent.chat.session import chat

    follow_if_told(load_settings(gpus=for_settings["gpus"]))
    offer(repo)
    settings = load_settings(repo=repo, **for_settings)
    pictures = read_images(images)
    return run_command(
        lambda: chat(settings, repo, mode=mode, first=prompt, pictures=pictures, resume=resume, seed=seed)
    )
