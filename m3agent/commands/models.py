"""`m3 models`: which models can answer, what is known of one, fetching one, and whether its files are whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from m3agent.errors import M3Error
from m3agent.exits import Exit
from m3agent.settings import load_settings

VERIFY_SCHEMA = 1
"""Of the JSON of `verify`; it rises when a field changes its meaning or goes."""

output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="What stdout carries: text, or one JSON object.",
)


@click.group()
def command() -> None:
    """List, fetch, verify and show models."""


@command.command("list")
def list_models() -> int:
    """List the embedded model and the one that the settings choose."""
    chosen = load_settings().model
    state = "embedded" if (_folder("nano") / "model.safetensors").is_file() else "not in this installation"
    print(f"{'*' if chosen == 'nano' else ' '} nano  {state}")
    if chosen != "nano":
        print(f"* {chosen}")
    return 0


@command.command()
@click.argument("model_id", metavar="ID")
@click.option("--to", "folder", type=click.Path(file_okay=False, path_type=Path), help="Instead of the hub's cache.")
def pull(model_id: str, folder: Path | None) -> int:
    """Fetch a model from the hub, for instance MiniMaxAI/MiniMax-M3-MXFP8, and print its folder.

    After a download that broke off, the command fetches only the files that are not whole.
    """
    from m3agent import hub

    print(hub.pull(model_id, folder))
    return 0


@command.command()
@click.argument("path", type=click.Path(path_type=Path))
@output_option
def verify(path: Path, output: str) -> int:
    """Check that the checkpoint in PATH is whole. The exit code is 75 if it is not.

    Headers are checked first, then the scales of quantised matrices, then the hashes of files whose hash is known.
    """
    if not path.is_dir():
        raise M3Error(f"there is no folder {path}; give the folder of a checkpoint")
    report = verification(path)
    if output == "json":
        print(json.dumps(report))
    else:
        for problem in report["problems"]:
            print(f"WRONG    {problem}")
        if not report["problems"]:
            unread = f"; {report['ignored']:,} of them, of the image side, are not loaded" if report["ignored"] else ""
            print(f"ok       {report['tensors']:,} tensors, as config.json asks for{unread}")
        states = list(report["hashes"].values())
        print("hashes   " + ", ".join(f"{states.count(state)} {state}" for state in ("equal", "different", "unknown")))
    return int(report["exit_code"])


def verification(folder: Path) -> dict[str, Any]:
    """The report of `verify`. Progress of the hashes goes to stderr."""
    from m3_model.checkpoint import Checkpoint, CheckpointError
    from m3_model.hashes import files_with_hashes, matches

    problems: list[str] = []
    hashes: dict[str, str] = {}
    tensors, ignored = 0, 0
    try:
        checkpoint = Checkpoint.open(folder)
    except CheckpointError as error:
        problems += error.problems
    else:
        tensors, ignored = len(checkpoint.entries), len(checkpoint.ignored)
        for name in filter(checkpoint.quantized, checkpoint.entries):
            try:
                checkpoint.scales(name)
            except CheckpointError as error:
                problems += error.problems
    try:
        for path, published in files_with_hashes(folder):
            if published is None:
                hashes[path.name] = "unknown"
                continue
            print(f"m3: hashing {path.name}, {path.stat().st_size / 1e9:,.2f} GB", file=sys.stderr, flush=True)
            equal = matches(path, published)
            hashes[path.name] = "equal" if equal else "different"
            if not equal:
                problems.append(f"{path} is not the published file, its hash differs: fetch it again")
    except (OSError, ValueError) as error:
        problems.append(str(error))
    return {
        "schema": VERIFY_SCHEMA,
        "exit_code": int(Exit.MODEL_UNAVAILABLE if problems else Exit.OK),
        "folder": str(folder),
        "tensors": tensors,
        "ignored": ignored,
        "problems": problems,
        "hashes": hashes,
    }


@command.command()
@click.argument("model", default="")
@output_option
def show(model: str, output: str) -> int:
    """Show what the files of a model say, and where on this machine it fits. MODEL is nano or a checkpoint folder."""
    from m3agent.model_facts import describe, to_lines

    facts = describe(_folder(model or load_settings().model))
    if output == "json":
        print(json.dumps(facts))
    else:
        for line in to_lines(facts):
            print(line)
    return 0


def _folder(name: str) -> Path:
    from m3agent.commands.doctor import nano_folder

    return nano_folder() if name == "nano" else Path(name).expanduser()
