"""The program as a person starts it: `python -m m3agent` with a script in place of a model, in real terminals."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What a started m3 gets: our packages, a home of its own, a colour terminal."""
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("M3_")}
    home = str(tmp_path / "home")
    return {**kept, "PYTHONPATH": paths, "M3_HOME": home, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "NO_COLOR": ""}


class Screen:
    """A tmux window of a fixed size that runs one command."""

    def __init__(self, command: str, folder: Path, environment: dict[str, str], width: int, height: int):
        self._socket = f"m3-{uuid.uuid4().hex[:8]}"
        keys = ("PYTHONPATH", "M3_HOME", "LC_ALL")
        exports = " ".join(f"{key}={shlex.quote(environment[key])}" for key in keys)
        shell = f"env -u NO_COLOR {exports} {command}; echo EXIT $?; sleep 60"
        size = ["-x", str(width), "-y", str(height)]
        self._tmux("-f", "/dev/null", "new-session", "-d", "-s", "m3", *size, "-c", str(folder), shell)

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout

    def text(self) -> str:
        """What stands on the screen and above it in the scrollback."""
        return self._tmux("capture-pane", "-p", "-S", "-500", "-t", "m3")

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", "-t", "m3", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-t", "m3", "-l", text)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-t", "m3", "-x", str(width), "-y", str(height))

    def wait_for(self, text: str, *, times: int = 1, timeout_s: float = 15.0) -> str:
        """The screen once it holds `text`, that many times."""
        deadline = time.monotonic() + timeout_s
        while (shown := self.text()).count(text) < times:
            assert time.monotonic() < deadline, f"{text!r} did not come; the screen:\n{shown}"
            time.sleep(0.05)
        return shown

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], capture_output=True, check=False)


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Screen]]:
    """Starts `m3 ARGUMENTS` in a folder, in a terminal of a given size."""
    running: list[Screen] = []

    def begin(*arguments: str, folder: Path, width: int = 80, height: int = 24) -> Screen:
        command = shlex.join([sys.executable, "-m", "m3agent", *arguments])
        running.append(Screen(command, folder, environment, width, height))
        return running[-1]

    yield begin
    for screen in running:
        screen.close()


@pytest.fixture
def example(tmp_path: Path) -> Callable[[str], Path]:
    """Copies of the example repositories, each a git repository with one commit."""

    def copy(name: str) -> Path:
        folder = tmp_path / "examples" / name
        shutil.copytree(ROOT / "examples" / name, folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        identity = ["-c", "user.name=T", "-c", "user.email=t@localhost"]
        for command in (["init", "-q", "-b", "main"], ["add", "-A"], [*identity, "commit", "-q", "-m", "begin"]):
            subprocess.run(["git", *command], cwd=folder, check=True)
        return folder

    return copy
