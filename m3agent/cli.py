"""The command line. Each command lives in its own file and is imported when it is chosen."""

from __future__ import annotations

import importlib
import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from m3agent import __version__
from m3agent.errors import M3Error
from m3agent.exits import Exit

COMMANDS = {
    "chat": "Talk with the model in this repository.",
    "run": "Do one task; nothing is asked.",
    "fix": "Repair a bug from an issue, and prove it with the tests.",
    "issue": "Keep an issue in the repository, to work on it offline.",
    "models": "List, fetch, verify and show models.",
    "cache": "List and clear the prompts that local models keep on disk.",
    "sessions": "List, show, export and remove past sessions.",
    "trust": "See what a repository sets for m3, and let it have an effect.",
    "undo": "Take back what m3 did to your files.",
    "replay": "Show a past session again, as it looked.",
    "serve": "Offer a local model over the OpenAI-compatible API.",
    "doctor": "Check what m3 needs on this machine.",
}
"""Name and one line of every command; the line stands here so that `m3 --help` imports none of them."""


class LazyCommands(click.Group):
    """Commands that are imported from `m3agent.commands.NAME` when they are used; each module holds `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"m3agent.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyCommands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="m3")
@click.pass_context
def cli(ctx: click.Context) -> int | None:
    """m3: a coding agent for the terminal that runs on your own machine, powered by MiniMax M3.

    \b
    m3 fix --repo . --issue 1     repair a bug and show the evidence
    m3 chat                       talk about the code in this folder
    """
    if ctx.invoked_subcommand is not None:
        return None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo(ctx.get_help(), err=True)
        return int(Exit.USAGE)
    from m3agent.commands.tour import tour

    return tour()


def main() -> NoReturn:
    """Run the program and exit with one of the codes in `exits.py`. A command's return value is its exit code."""
    from m3agent.signals import fail

    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = cli.main(prog_name="m3", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = Exit.USAGE
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "m3"
        code = fail(f"{error.format_message().rstrip('.')}. See `{where} --help`.", Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        code = Exit.INTERRUPTED
    except M3Error as error:
        code = fail(str(error), error.exit_code)
    except BrokenPipeError:
        code = _reader_left()
    sys.exit(int(code or 0))


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM before a command's own handler stands, for instance while torch is imported."""
    sys.exit(int(Exit.TERMINATED))


def _reader_left() -> int:
    """Whoever read our output is gone (`m3 … | head`); keep the interpreter from failing again at its last flush."""
    import os

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    main()
