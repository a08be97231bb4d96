"""Options that several commands share. Those of settings go to `load_settings` as they come, by their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

repo_option = click.option(
    "--repo",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    default=".",
    show_default="this folder",
    help="The repository to work in.",
)
model_option = click.option(
    "--model", metavar="M", help="nano, a checkpoint folder, or a URL such as http://host:8000/v1."
)
device_option = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    help="Where a local model computes; auto, the default, is a GPU that it fits on, else the CPU.",
)
gpus_option = click.option(
    "--gpus",
    metavar="N",
    type=click.IntRange(min=1),
    help="Spread the checkpoint folder over N GPUs of this machine.",
)
output_option = click.option(
    "--output",
    type=click.Choice(["text", "json", "stream-json"]),
    default="text",
    show_default=True,
    help="What stdout carries: the result as text, as one JSON object, or every event as a JSON line.",
)
seed_option = click.option("--seed", type=int, help="Seed of the sampling; the same seed gives the same run.")


def image_options(command: F) -> F:
    """`--image` as `images`, and `--no-thumbnails` as `thumbnails`, None when not given."""
    images = click.option(
        "--image",
        "images",
        multiple=True,
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="A picture that the model looks at; may be given several times.",
    )
    thumbnails = click.option(
        "--no-thumbnails", "thumbnails", flag_value="off", default=None, help="Show no pictures on the terminal."
    )
    return images(thumbnails(command))


def page_options(command: F) -> F:
    """`--page`, and how it is looked at: `--viewport`, `--theme`, `--selector`, `--build`."""
    texts = {
        "--page": ("PAGE", "An HTML file, or with --in-place a URL, that must look different afterwards."),
        "--selector": ("CSS", "Look at the first element of the page that fits, not at all of it."),
        "--build": ("CMD", "The command that makes the page; it is run before each look."),
    }
    for name, (metavar, words) in reversed(texts.items()):
        command = click.option(name, default="", metavar=metavar, help=words)(command)
    viewport = click.option(
        "--viewport",
        callback=_size,
        metavar="WxH",
        default="1280x800",
        show_default=True,
        help="Size of the browser's window.",
    )
    theme = click.option(
        "--theme",
        type=click.Choice(["light", "dark"]),
        default="light",
        show_default=True,
        help="Colour scheme that the page is asked for.",
    )
    return viewport(theme(command))


def _size(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    width, _, height = value.partition("x")
    if not (width.isascii() and width.isdecimal() and height.isascii() and height.isdecimal()):
        raise click.BadParameter(f"{value!r} is no size; write for instance 1280x800")
    return int(width), int(height)


def budget_options(command: F) -> F:
    """`--max-steps` and `--time-limit`, None when not given."""
    steps = click.option("--max-steps", type=click.IntRange(min=1), help="Turns of the model at most.")
    limit = click.option(
        "--time-limit", "time_limit_s", type=click.FloatRange(min=0, min_open=True), help="Seconds at most."
    )
    return steps(limit(command))


def sandbox_options(command: F) -> F:
    """`--no-sandbox` as `sandbox` and `--allow-network` as `network`, None when not given."""
    without = click.option(
        "--no-sandbox",
        "sandbox",
        flag_value=False,
        type=bool,
        default=None,
        help="Run commands with all your rights. Without this, unattended commands need a sandbox that works.",
    )
    network = click.option(
        "--allow-network", "network", flag_value=True, type=bool, default=None, help="Let commands use the network."
    )
    return without(network(command))


def mode_option(*modes: str, default: str) -> Callable[[F], F]:
    """`--mode` with the given choices."""
    return click.option(
        "--mode",
        type=click.Choice(modes),
        default=default,
        show_default=True,
        help="plan: read only. ask: approve every change. edit: edits are free. auto: everything runs.",
    )
