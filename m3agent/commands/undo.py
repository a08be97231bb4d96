"""`m3 undo`: take back what the agent did to the files of a repository."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import click

from m3agent.commands.options import repo_option
from m3agent.errors import M3Error
from m3agent.exits import Exit
from m3agent.settings import load_settings


@click.command()
@repo_option
@click.option("--request", is_flag=True, help="Undo all that the last request led to.")
@click.option("--redo", is_flag=True, help="Do again what the last undo took back.")
@click.option("--list", "listing", is_flag=True, help="Show the steps, newest first.")
def command(repo: Path, request: bool, redo: bool, listing: bool) -> int:
    """Take back the last change that m3 made to your files, side effects of its commands included.

    Your index, branches, stash and ignored files stay as they are. A file that you changed since then is never
    overwritten: nothing is undone then, and the exit code is 1.
    """
    from m3agent.ui.clean import one_line
    from m3agent.undo.journal import UndoJournal, describe

    if request + redo + listing > 1:
        raise M3Error("give only one of --request, --redo and --list")
    journal = UndoJournal(load_settings().state_dir, repo)
    if listing:
        history = journal.history()
        if not history.steps:
            print(f"m3: it has changed nothing in {one_line(str(repo), 200)}", file=sys.stderr)
        for index, step in reversed(list(enumerate(history.steps))):
            state = "      " if index < history.applied else "undone"
            when = datetime.fromtimestamp(step.time).strftime("%Y-%m-%d %H:%M:%S")
            print(f"{step.number:>4}  {when}  {state}  {one_line(describe(step), 100)}")
        return int(Exit.OK)
    try:
        lines = journal.redo() if redo else journal.undo_request() if request else journal.undo()
    except M3Error as error:
        raise M3Error(str(error), exit_code=Exit.NOT_FIXED) from error
    for line in lines or [f"there is nothing to {'redo' if redo else 'undo'} in {repo}"]:
        print(one_line(line, 200))
    return int(Exit.OK)
