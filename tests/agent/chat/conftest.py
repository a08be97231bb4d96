"""`m3 chat` in a pseudo-terminal, with a served script in place of a model and a small repository."""

from __future__ import annotations

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


@pytest.fixture
def talk(tmp_path: Path, home: Path, repo: Path) -> Iterator[Talk]:
    """Starts `m3 chat` in the repository with the given turns, and waits until it listens."""
    running: list[Any] = []

    def start(
        *turns: Any, options: tuple[str, ...] = (), early: str = "", width: int = 80, height: int = 24, **variables: str
    ) -> tuple[Terminal, PlayedServer]:
        server = PlayedServer(context=1_000_000)
        server.turns = list(turns)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("M3_", "NO_COLOR"))}
        environment = {
            **kept, "PYTHONPATH": PATHS, "M3_HOME": str(home), "OMP_NUM_THREADS": "1", "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8", **variables,
        }  # fmt: skip
        command = [sys.executable, "-m", "m3agent", "chat", "--model", server.url, *options]
        terminal = Terminal(command, folder=repo, environment=environment, width=width, height=height)
        running.extend((terminal, server))
        if early:  # typed while the model is loaded
            terminal.wait_for("loading")
            terminal.type(early)
        else:
            terminal.wait_until(lambda: "window 1M" in terminal.text())
        return terminal, server

    yield start
    for part in running:
        part.close()
