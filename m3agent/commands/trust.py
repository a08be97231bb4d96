"""`m3 trust`: see what a repository brings, and let it have an effect."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m3agent.commands.options import repo_option
from m3agent.exits import Exit
from m3agent.settings import load_settings

if TYPE_CHECKING:
    from m3agent.repository.config import Brought

STATES = {
    "trusted": "trusted",
    "refused": "not trusted: you refused it",
    "changed": "not trusted: it changed since you trusted it",
    "unknown": "not trusted",
}


@click.command()
@repo_option
@click.option("--withdraw", is_flag=True, help="No longer trust it.")
def command(repo: Path, withdraw: bool) -> int:
    """Show what a repository sets in .m3/config.toml and which commands .m3/commands brings, and trust it.

    Until you do, and again when anything in .m3 changes, it has no effect. Only a person at a terminal can trust it;
    elsewhere the exit code is 6 unless it is trusted already.
    """
    from m3agent.repository.config import read_brought
    from m3agent.trust import TrustStore

    store = TrustStore(load_settings().state_dir)
    if withdraw:
        print("no longer trusted" if store.forget(repo) else "it was not trusted")
        return int(Exit.OK)
    brought = read_brought(repo)
    if brought is None:
        print("there are no settings and no commands in .m3 here; nothing needs to be trusted")
        return int(Exit.OK)
    state = store.state(repo, brought.digest)
    show(brought)
    print(STATES[state])
    if state != "trusted" and sys.stdin.isatty() and sys.stdout.isatty():
        store.record(repo, brought.digest, trusted=(answer := ask()))
        state = "trusted" if answer else "refused"
    return int(Exit.OK if state == "trusted" else Exit.NEEDS_APPROVAL)


def offer(repo: Path) -> None:
    """Ask the person at the terminal, if the repository brings something that they have not judged yet."""
    from m3agent.repository.config import read_brought
    from m3agent.trust import TrustStore

    store = TrustStore(load_settings().state_dir)
    brought = read_brought(repo)
    if brought is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    if store.state(repo, brought.digest) in ("unknown", "changed"):
        show(brought)
        store.record(repo, brought.digest, trusted=ask())


def show(brought: Brought) -> None:
    """The settings whole, and the names of the files that come with them."""
    from m3agent.ui.clean import one_visible_line, visible

    if brought.text:
        print("This repository sets in .m3/config.toml:")
        print("\n".join(f"    {line}" for line in visible(brought.text).splitlines()))
    names = ", ".join(one_visible_line(name) for name in brought.files)
    if brought.files and not brought.text:
        print(f"This repository brings commands for the chat: {names}")
    elif brought.files:
        print(f"\nWith it come: {names}")
    print()


def ask() -> bool:
    """The person's answer. What was typed before the question is none."""
    with contextlib.suppress(ImportError):
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    return click.confirm("Trust this, until it changes?", default=False)
