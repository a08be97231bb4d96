"""A small repository and the parts of a run, real ones: files, git, tools; the model is scripted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from m3_tools.base import ToolContext

GIT_IDENTITY = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}


def git(folder: Path, *arguments: str, date: str = "2026-01-01T00:00:00Z") -> str:
    environment = {**os.environ, **GIT_IDENTITY, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    done = subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where m3 may keep its state; it is not there yet."""
    return tmp_path / "home"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A git repository with one wrong function and a test that shows it."""
    root = tmp_path / "repo"
    root.mkdir()
    (root / "sums.py").write_text("def add(a, b):\n    return a - b\n")
    (root / "test_sums.py").write_text("from sums import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


@pytest.fixture
def context(repo: Path, tmp_path: Path) -> ToolContext:
    spill = tmp_path / "spill"
    spill.mkdir()
    return ToolContext(root=repo.resolve(), spill_dir=spill, environment=dict(os.environ))
