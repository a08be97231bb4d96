"""`m3 doctor`: what m3 needs on this machine, and whether it is there."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from m3_tools.sandbox import detect
from m3agent.exits import Exit
from m3agent.settings import Settings, load_settings

Check = tuple[bool, str, str]
"""Whether it is well, what it is, and what was found or what to do."""


@click.command()
@click.option("--egress", is_flag=True, help="Show that no command in the sandbox can open a connection.")
def command(egress: bool) -> int:
    """Check what m3 needs on this machine. The exit code is 7 when something needed is missing.

    The sandbox is tried by a command that attempts to leave it. Without one that works, m3 asks before every command
    and runs none unattended.
    """
    if egress:
        return _egress()
    well = True
    for good, name, detail in checks(load_settings()):
        print(f"{'ok     ' if good else 'MISSING'}  {name:<16} {detail}")
        well = well and good
    for works, line in sandboxes():
        print(f"{'ok     ' if works else 'no     '}  {'sandbox':<16} {line}")
    return int(Exit.OK if well else Exit.BROKEN_ENVIRONMENT)


def checks(settings: Settings) -> Iterator[Check]:
    """Every check in order; none of them changes anything or uses the network."""
    yield sys.version_info >= (3, 11), "python", sys.version.split()[0]
    for program, advice in (("git", "install git"), ("rg", "pip install ripgrep")):
        yield _program(program, advice)
    torch = importlib.util.find_spec("torch")
    yield (
        torch is not None,
        "torch",
        "for local models" if torch else "pip install torch; models behind a URL do not need it",
    )
    nano = nano_folder()
    missing = [name for name in ("config.json", "model.safetensors", "tokenizer.json") if not (nano / name).is_file()]
    yield (
        not missing,
        "embedded model",
        str(nano) if not missing else f"{nano} lacks {', '.join(missing)}: reinstall m3",
    )
    place = next(p for p in (settings.state_dir, *settings.state_dir.parents) if p.exists())
    yield os.access(place, os.W_OK), "sessions", f"{settings.sessions_dir}"
    yield True, "model", settings.model


def sandboxes() -> Iterator[tuple[bool, str]]:
    """Every kind of sandbox: whether it works here, and what came of trying to leave it. One that works is enough."""
    for trial in detect(all_backends=True).trials:
        yield trial.works, trial.line()


def _egress() -> int:
    """Try every way to a connection from inside the sandbox that commands would get."""
    found = detect()
    trial = found.trials[-1]
    if found.backend is None:
        print(f"no sandbox works here, so commands can open connections: {found.reason()}")
        return int(Exit.BROKEN_ENVIRONMENT)
    print(f"inside {trial.backend.name}:")
    for name in trial.connections():
        print(f"refused  {name:<22} {trial.attempts[name]}")
    print("no command can open a connection (m3 run --allow-network lets them)")
    return int(Exit.OK)


def _program(name: str, advice: str) -> Check:
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.is_file() else shutil.which(name)
    if path is None:
        return False, name, advice
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return False, name, f"{path} does not run: {error}"
    return True, name, f"{done.stdout.splitlines()[0] if done.stdout else ''} ({path})"


def nano_folder() -> Path:
    spec = importlib.util.find_spec("m3_model")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0] if places else "m3_model") / "nano"
