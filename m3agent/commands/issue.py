"""`m3 issue pull REF`: keep an issue in the repository's `.m3/issues/`, to work on it without the network."""

from __future__ import annotations

from pathlib import Path

import click

from m3agent.commands.options import repo_option
from m3agent.settings import load_settings


@click.group()
def command() -> None:
    """Work with issues."""


@command.command()
@click.argument("ref")
@repo_option
def pull(ref: str, repo: Path) -> int:
    """Write the issue REF (a number, an address, a file or -) with its comments to .m3/issues/."""
    from m3agent.fix.intake import load_issue
    from m3agent.fix.pack import write_pack

    issue = load_issue(ref, repo, load_settings())
    for note in issue.notes:
        click.echo(note, err=True)
    click.echo(str(write_pack(issue, repo)))
    return 0
