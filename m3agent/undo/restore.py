"""Bring files from the state after a step to the state before it, or back; all of them or none."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from m3agent.errors import M3Error
from m3agent.undo.history import Step
from m3agent.undo.shadow import Entry, Shadow

Change = Literal["removed", "made", "changed"]
States = Mapping[str, Entry | None]


def step_states(shadow: Shadow, step: Step) -> tuple[dict[str, Entry | None], dict[str, Entry | None]]:
    """The files that the step changed, as they were before and after it."""
    before, after = shadow.entries(step.before), shadow.entries(step.after)
    return (
        {name: _entry(before.get(name), modes[0]) for name, modes in step.modes.items()},
        {name: _entry(after.get(name), modes[1]) for name, modes in step.modes.items()},
    )


def move(shadow: Shadow, now: States, wanted: States) -> list[tuple[str, Change]]:
    """Make the files that lie there as `now` says lie there as `wanted` says; returns what happened to each.

    A file that is as wanted already stays, so what a kill broke off can be done again. Errors: M3Error, before anything
    is written, if a file is neither; and if one cannot be written, after the others were put back.
    """
    contents = {name: None if entry is None else shadow.blob(entry.blob) for name, entry in wanted.items()}
    now = {n: wanted[n] if _is_as(wanted[n], shadow.root / n, shadow) else entry for n, entry in now.items()}
    _check(shadow, now, wanted)
    changes: list[tuple[str, Change]] = []
    try:
        for name in sorted(now, reverse=True):
            if wanted[name] is None and now[name] is not None:
                _remove(shadow.root, name)
                changes.append((name, "removed"))
        for name, entry in sorted(wanted.items()):
            content = contents[name]
            if entry is not None and content is not None and entry != now[name]:
                _write(shadow.root / name, entry.mode, content)
                changes.append((name, "made" if now[name] is None else "changed"))
    except OSError as error:
        _put_back(shadow, now, [name for name, _ in changes])
        where = error.filename or "a file"
        raise M3Error(f"{where} cannot be changed ({error.strerror}); the files are as they were") from error
    return changes


def _is_as(entry: Entry | None, path: Path, shadow: Shadow) -> bool:
    return not os.path.lexists(path) if entry is None else _lies_there(path, entry, shadow)


def _put_back(shadow: Shadow, now: States, names: Sequence[str]) -> None:
    for name in reversed(names):
        entry = now[name]
        with contextlib.suppress(OSError):
            if entry is None:
                _remove(shadow.root, name)
            else:
                _write(shadow.root / name, entry.mode, shadow.blob(entry.blob))


def _entry(blob: str | None, mode: int | None) -> Entry | None:
    return None if blob is None or mode is None else Entry(mode=mode, blob=blob)


def _check(shadow: Shadow, now: States, wanted: States) -> None:
    removed = {name for name, entry in wanted.items() if entry is None}
    for name, entry in now.items():
        path = shadow.root / name
        if entry is None:
            if path.is_dir() and not path.is_symlink():
                inside = {p.relative_to(shadow.root).as_posix() for p in path.rglob("*") if not _is_folder(p)}
                changed = bool(inside - removed)
            else:
                changed = os.path.lexists(path) and os.path.realpath(path.parent) == str(path.parent)
        else:
            changed = not _lies_there(path, entry, shadow)
        if wanted[name] is not None:
            changed |= any(
                _is_in_the_way(parent) and relative not in removed for parent, relative in _above(name, shadow)
            )
        if changed:
            raise M3Error(f"{name} was changed since then; nothing was touched (save your version elsewhere first)")


def _above(name: str, shadow: Shadow) -> Iterator[tuple[Path, str]]:
    """The folders between the root and the file, with their names."""
    for parent in list(PurePosixPath(name).parents)[:-1]:
        yield shadow.root / parent, str(parent)


def _is_in_the_way(path: Path) -> bool:
    """Whether something other than a folder lies where a folder is needed."""
    return os.path.lexists(path) and not _is_folder(path)


def _lies_there(path: Path, entry: Entry, shadow: Shadow) -> bool:
    try:
        mode = path.lstat().st_mode
        if mode != entry.mode or os.path.realpath(path.parent) != str(path.parent):
            return False
        return _bytes(path, mode) == shadow.blob(entry.blob)
    except OSError:
        return False


def _bytes(path: Path, mode: int) -> bytes:
    return os.fsencode(os.readlink(path)) if stat.S_ISLNK(mode) else path.read_bytes()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove(root: Path, name: str) -> None:
    """Remove a file, and the folders above it that are empty then."""
    path = root / name
    path.unlink()
    for parent in path.parents:
        if parent == root:
            return
        try:
            parent.rmdir()
        except OSError:
            return


def _write(path: Path, mode: int, content: bytes) -> None:
    """Put a file or a symlink there at once, never a part of it."""
    if _is_folder(path):
        path.rmdir()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".m3-{secrets.token_hex(8)}")
    try:
        if stat.S_ISLNK(mode):
            os.symlink(content, os.fsencode(new))
        else:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
