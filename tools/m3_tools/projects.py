"""Python projects below the root of a repository that holds several: a bounded look at its upper folders."""

from __future__ import annotations

import os
import sys
from pathlib import Path

MAX_DEPTH, MAX_FOLDERS = 2, 400
_MARKS = ("pyproject.toml", "setup.py", "setup.cfg")
_SKIPPED = frozenset({"node_modules", "venv", "build", "dist", "target", "vendor", "third_party"})
_NO_MODULES = frozenset({"setup.py", "conftest.py", "noxfile.py", "tasks.py"})


def nested_projects(root: Path) -> list[Path]:
    """The folders below `root` that hold a Python project, nearest first; none lies within another."""
    found: list[Path] = []
    level, num_seen = [root], 0
    for _ in range(MAX_DEPTH):
        below = [folder for parent in level for folder in _folders(parent)][: MAX_FOLDERS - num_seen]
        num_seen += len(below)
        projects = [folder for folder in below if any((folder / mark).is_file() for mark in _MARKS)]
        found += projects
        level = [folder for folder in below if folder not in projects]
    return found


def source_folders(root: Path) -> list[str]:
    """Where the repository's own packages are imported from, so that they come before an installed copy."""
    found = [str(root / "src")] if _is_source(root / "src") else []
    for project in nested_projects(root):
        if _is_source(project / "src"):
            found.append(str(project / "src"))
        elif _holds_packages_alone(project):
            found.append(str(project))
    return found


def _is_source(folder: Path) -> bool:
    return folder.is_dir() and not (folder / "__init__.py").exists()


def _holds_packages_alone(project: Path) -> bool:
    """Whether nothing but packages can be imported from it, none of them in place of one of Python's own modules."""
    try:
        names = os.listdir(project)
    except OSError:
        return False
    if any(name.endswith(".py") and name not in _NO_MODULES for name in names):
        return False
    packages = [name for name in names if (project / name / "__init__.py").is_file()]
    return bool({*packages} - {"tests", "test"}) and sys.stdlib_module_names.isdisjoint(packages)


def _folders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [parent / name for name in sorted(names) if not name.startswith(".") and name not in _SKIPPED]
