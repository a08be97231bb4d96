"""The folder of all pages on disk: a folder for each model, and in it a file for each page. Several processes share it.

Nothing here locks. A page is written under another name first and never changed, and whoever finds a file gone that it
saw a moment ago goes on without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".page"
UNFINISHED = ".tmp"
_ABANDONED_S = 3600.0
"""An unfinished file this old belongs to a process that was killed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredModel:
    """What is kept of one model. `last_used_s` is in seconds since 1970."""

    name: str
    num_pages: int
    num_bytes: int
    last_used_s: float


@dataclasses.dataclass(frozen=True)
class _File:
    path: Path
    num_bytes: int
    used_ns: int


def stored_models(folder: Path) -> list[StoredModel]:
    """The models of which pages are kept, the one used last first."""
    found: dict[str, list[_File]] = {}
    for file in _files(folder):
        found.setdefault(file.path.parent.name, []).append(file)
    models = [
        StoredModel(
            name=name,
            num_pages=sum(file.path.suffix == SUFFIX for file in files),
            num_bytes=sum(file.num_bytes for file in files),
            last_used_s=max(file.used_ns for file in files) / 1e9,
        )
        for name, files in found.items()
    ]
    return sorted(models, key=lambda model: -model.last_used_s)


def clear(folder: Path, name: str | None = None) -> int:
    """Remove the pages of one model, or of all; returns the bytes that were freed. Raises OSError."""
    freed = 0
    for file in _files(folder):
        if name is None or file.path.parent.name == name:
            file.path.unlink(missing_ok=True)
            freed += file.num_bytes
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and (name is None or path.name == name):
            with contextlib.suppress(OSError):  # something that is not ours, or a page that just came
                path.rmdir()
    return freed


def shrink(folder: Path, max_bytes: int) -> int:
    """Remove what a killed process left and then the least recently used pages, until `max_bytes` are left at most.

    Returns the bytes that are left. Raises OSError.
    """
    files = sorted(_files(folder), key=lambda file: file.used_ns)
    left = sum(file.num_bytes for file in files)
    abandoned_ns = time.time_ns() - int(_ABANDONED_S * 1e9)
    for file in files:
        if left > max_bytes or (file.path.suffix == UNFINISHED and file.used_ns < abandoned_ns):
            file.path.unlink(missing_ok=True)
            left -= file.num_bytes
    return left


def _files(folder: Path) -> Iterator[_File]:
    """All files that are ours; others are neither counted nor removed."""
    for model in _entries(folder):
        if not model.is_dir(follow_symlinks=False):
            continue
        for entry in _entries(model):
            if entry.name.endswith((SUFFIX, UNFINISHED)):
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat(follow_symlinks=False)
                    yield _File(Path(entry.path), stat.st_size, stat.st_mtime_ns)


def _entries(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
