"""`m3 chat` in a pseudo-terminal, with a served script in place of a model and a small repository."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.chat.terminal import Terminal
from tests.contracts.played_server import PlayedServer

ROOT = Path(__file__).parents[3]
PATHS = os.pathsep.join(str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools"))
Talk = Callable[..., tuple[Terminal, PlayedServer]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@contextlib.contextmanager
def started(
    repo: Path,
    home: Path,
    *turns: Any,
    options: tuple[str, ...] = (),
    early: str = "",
    width: int = 80,
    height: int = 24,
    **variables: str,
) -> Iterator[tuple[Terminal, PlayedServer]]:
    """`m3 chat` in the repository with the given turns, once it listens."""
    server = PlayedServer(context=1_000_000)
    server.turns = list(turns)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("M3_", "NO_COLOR"))}
    environment = {
        **kept, "PYTHONPATH": PATHS, "M3_HOME": str(home), "OMP_NUM_THREADS": "1", "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8", **variables,
    }  # fmt: skip
    command = [sys.executable, "-m", "m3agent", "chat", "--model", server.url, *options]
    terminal = Terminal(command, folder=repo, environment=environment, width=width, height=height)
    try:
        if early:  # typed while the model is loaded
            terminal.wait_for("loading")
            terminal.type(early)
        else:
            terminal.wait_until(lambda: "window 1M" in terminal.text() or "write a message" in terminal.text())
        yield terminal, server
    finally:
        terminal.close()
        server.close()


@pytest.fixture
def talk(home: Path, repo: Path) -> Iterator[Talk]:
    """Starts `m3 chat` in the repository with the given turns, and waits until it listens."""
    with contextlib.ExitStack() as running:

        def start(*turns: Any, **choices: Any) -> tuple[Terminal, PlayedServer]:
            return running.enter_context(started(repo, home, *turns, **choices))

        yield start
