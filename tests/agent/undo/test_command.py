"""`m3 undo` as a person types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from m3agent.undo.journal import UndoJournal

ROOT = Path(__file__).parents[3]


def m3(home: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools"))
    return subprocess.run(
        [sys.executable, "-m", "m3agent", "undo", *arguments],
        cwd=cwd, env={**os.environ, "PYTHONPATH": paths, "M3_HOME": str(home)}, capture_output=True, text=True,
    )  # fmt: skip


def test_steps_are_listed_undone_and_redone(repo: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert "nothing to undo" in m3(home, cwd=repo).stdout
    empty = m3(home, "--list", cwd=repo)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", f"m3: it has changed nothing in {repo}\n")
    journal = UndoJournal(home, repo, request="1")
    for text in ("one", "two"):
        with journal.step(f"shell echo {text} > sums.py"):
            (repo / "sums.py").write_text(text)
    listed = m3(home, "--list", cwd=repo).stdout.splitlines()
    assert ["echo two" in listed[0], "echo one" in listed[1], "1 file" in listed[0]] == [True, True, True]
    undone = m3(home, cwd=repo)
    assert (undone.returncode, (repo / "sums.py").read_text()) == (0, "one")
    assert undone.stdout.splitlines() == ["undone: shell echo two > sums.py", "sums.py is as it was"]
    assert "undone" in m3(home, "--list", cwd=repo).stdout.splitlines()[0]
    assert "sums.py is changed again" in m3(home, "--redo", cwd=repo).stdout
    assert (repo / "sums.py").read_text() == "two"
    assert m3(home, "--request", "--repo", str(repo), cwd=tmp_path).returncode == 0
    assert "return a - b" in (repo / "sums.py").read_text()


def test_a_file_of_the_person_stays_and_one_line_says_so(repo: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with UndoJournal(home, repo).step("edit"):
        (repo / "sums.py").write_text("agent")
    (repo / "sums.py").write_text("person")
    refused = m3(home, cwd=repo)
    assert refused.returncode == 1
    assert len(refused.stderr.strip().splitlines()) == 1
    assert "sums.py was changed since then" in refused.stderr
    assert (repo / "sums.py").read_text() == "person"


def test_a_history_that_cannot_be_read_says_what_to_do(repo: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    journal = UndoJournal(home, repo)
    with journal.step("edit"):
        (repo / "sums.py").write_text("agent")
    next((home / "undo").glob("*/steps.json")).write_text("[")
    refused = m3(home, cwd=repo)
    assert refused.returncode == 1
    assert "steps.json cannot be read" in refused.stderr
