"""What a newcomer does first: `make demo`, or `m3` alone and yes. Another project's environment may be active then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.chat.terminal import Terminal

DEMO = [sys.executable, str(Path(__file__).resolve().parents[2] / "examples" / "demo.py")]
M3 = [sys.executable, "-m", "m3agent"]


@pytest.fixture
def with_another(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment of a person whose active virtual environment has no pytest, nor anything else."""
    python = tmp_path / "other" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho no module named pytest; exit 1\n")
    python.chmod(0o755)
    (tmp_path / "other" / "pyvenv.cfg").touch()
    terminal = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "TMPDIR": str(tmp_path)}
    return {**environment, **terminal, "VIRTUAL_ENV": str(tmp_path / "other")}


def test_the_demo_runs_the_tests_of_the_example(with_another: dict[str, str], tmp_path: Path) -> None:
    terminal = Terminal(DEMO, folder=tmp_path, environment=with_another, width=80, height=24)
    try:
        terminal.wait_for("14 passed, 2 failing, 2 of them belong to the issue")
        terminal.press("Ctrl-C")
        assert terminal.wait_for_end() == 130
        assert not list(tmp_path.glob("m3-*"))
    finally:
        terminal.close()


@pytest.mark.slow
def test_the_demo_repairs_the_example(with_another: dict[str, str]) -> None:
    done = subprocess.run(DEMO, env=with_another, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "exit code 0." in done.stderr


@pytest.mark.slow
def test_the_example_of_the_tour_is_repaired_and_stays(with_another: dict[str, str], tmp_path: Path) -> None:
    terminal = Terminal(M3, folder=tmp_path, environment=with_another, width=80, height=24)
    try:
        terminal.wait_for("Watch nano repair the bundled example")
        terminal.type("y\r")
        terminal.wait_until(lambda: "Now try it on your own code: m3 chat" in terminal.text(), timeout_s=240)
        assert terminal.wait_for_end() == 0
        (copy,) = tmp_path.glob("m3-example-*/inventory")
        assert (copy / "issues" / "1.md").is_file()
    finally:
        terminal.close()


def test_the_demo_knows_its_examples(with_another: dict[str, str]) -> None:
    done = subprocess.run([*DEMO, "none"], env=with_another, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "choose one of: date_parser" in done.stderr
