"""`m3` alone, at a terminal: one screen that says what it is, who would answer, and how to begin."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from m3agent import __version__
from m3agent.settings import Settings, load_settings
from m3agent.ui.clean import one_line
from m3agent.ui.themes import use_theme

EXAMPLE_PLACES = (Path(__file__).parents[1] / "example", Path(__file__).parents[2] / "examples" / "inventory")
"""Where the bundled example lies: in an installed package, and in the repository of m3."""
COMMANDS = (
    ("m3 chat", "talk about this code"),
    ("m3 fix --issue 1", "repair a bug, proven"),
    ("m3 run 'a task'", "do one task, unasked"),
    ("m3 doctor", "check this machine"),
)
ABOUT_NANO = (
    ("can", "repair small faults in Python projects that have tests, offline"),
    ("cannot", "converse, plan, or read much: its window is 2,048 tokens"),
)
ABOUT_OTHERS = (
    ("can", "read files and a repository that fits its window, edit, run tests and commands, plan"),
    ("cannot", "know whether it is right: look at the diff, and at the tests that m3 runs for you"),
)


def tour() -> int:
    """Explain m3 and offer the example. Returns the exit code."""
    settings = load_settings()
    console = Console(highlight=False, emoji=False, markup=False)
    use_theme(console, settings.theme)
    for line in page(settings):
        console.print(line)
    example = next((place for place in EXAMPLE_PLACES if (place / "issues").is_dir()), None)
    if example is None or settings.model != "nano":
        return 0
    click.echo()
    if not click.confirm("Watch nano repair the bundled example, on a copy?", default=False):
        return 0
    folder = Path(tempfile.mkdtemp(prefix="m3-example-"))  # it stays, so that the person can look at it
    code = repair_example(example, folder)
    click.echo(f"\nThe copy stays in {folder}.\nNow try it on your own code: m3 chat")
    return code


def page(settings: Settings) -> list[Text]:
    """The lines of the screen; none is longer than 40 columns can fold well."""
    lines = [
        Text.assemble(("m3 ", "accent.strong"), (__version__, "quiet"), "  a local coding agent"),
        Text(),
        *(Text.assemble((f"  {command:<18}", "strong"), (what, "quiet")) for command, what in COMMANDS),
        Text(),
        Text.assemble("Who answers: ", (one_line(settings.model, 60), "strong"), (_origin(settings), "quiet")),
    ]
    for word, what in ABOUT_NANO if settings.model == "nano" else ABOUT_OTHERS:
        lines.append(Text.assemble((f"  {word:<7}", "good" if word == "can" else "warn"), what))
    lines += [
        Text("A larger one: --model FOLDER, or URL", "quiet"),
        Text("Nothing leaves this machine, but to a server that you choose.", "quiet"),
        Text.assemble(("m3 --help", "strong"), (" lists everything.", "quiet")),
    ]
    return lines


def _origin(settings: Settings) -> str:
    return ", the small model that is built in; it is not M3" if settings.model == "nano" else ""


def repair_example(example: Path, folder: Path) -> int:
    """Copy the example into the folder, and repair it there with nano. Returns the exit code.

    Its tests run in the environment of m3, which has what they need; the one that is active may lack pytest.
    """
    copy = folder / example.name
    shutil.copytree(example, copy, ignore=shutil.ignore_patterns("__pycache__", ".m3", ".pytest_cache"))
    command = ["fix", "--repo", str(copy), "--issue", "1", "--model", "nano"]
    click.echo(f"$ m3 {' '.join(command)}\n")
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    process = subprocess.Popen([sys.executable, "-m", "m3agent", *command], env=environment)
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the other one too, which puts things away
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, previous)
