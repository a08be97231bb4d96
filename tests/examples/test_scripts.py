"""Every numbered script runs as it stands, from a folder that is not ours, and prints something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 5


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_script_runs(script: Path, tmp_path: Path) -> None:
    paths = [ROOT, *(ROOT / name for name in ("runtime", "kernels", "model", "tools"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "M3_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
