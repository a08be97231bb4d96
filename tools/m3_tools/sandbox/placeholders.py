"""Protected paths that do not exist yet: something must lie there, or a command could make it.

A placeholder is an empty folder or a tiny file without write permission, which means nothing to git and other
programs. It lies there while commands run and is removed when the last of them has ended. What a killed run left is
recognised by its mode and its content, and removed by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from m3_tools.sandbox.policy import Policy, SandboxError

_FILES = {"config": b"", "config.worktree": b"", "commondir": b".\n"}
"""Names that are files, with a content that changes nothing: git stops at a `commondir` without one."""
_FOLDER_MODE, _FILE_MODE = 0o555, 0o444


@contextlib.contextmanager
def placeholders(policy: Policy) -> Iterator[None]:
    """Within the block every protected path exists. Afterwards those that did not are gone again.

    A protected path that is a symlink cannot be held by a mount; it is put back when a command replaced it.
    Errors: SandboxError when a placeholder cannot be made.
    """
    missing = [path for path in policy.protected if path.parent.is_dir() and not os.path.lexists(path)]
    links = {path: os.readlink(path) for path in policy.protected if path.is_symlink()}
    locks = [_lock(root) for root in policy.writable]
    try:
        for path in missing:
            _make(path)
        yield
    finally:
        for path, target in links.items():
            _restore_link(path, target)
        alone = all([_is_last(lock) for lock in locks])
        for lock in locks:
            os.close(lock)
        if alone:
            for path in policy.protected:
                _remove(path)


def _lock(root: Path) -> int:
    """Shared by the commands that run in one root, also those of other processes."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _is_last(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _make(path: Path) -> None:
    try:
        if path.name in _FILES:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_FILES[path.name])
                os.fchmod(file.fileno(), _FILE_MODE)
        else:
            path.mkdir()
            path.chmod(_FOLDER_MODE)
    except FileExistsError:  # another command was quicker
        return
    except PermissionError:  # where this user may not write, their commands may not either
        return
    except OSError as error:
        raise SandboxError(f"{path} cannot be protected: {error.strerror or error}") from error


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == _FOLDER_MODE:
            path.rmdir()  # fails when something lies in it
        elif found.st_mode == stat.S_IFREG | _FILE_MODE and path.read_bytes() == _FILES.get(path.name):
            path.unlink()


def _restore_link(path: Path, target: str) -> None:
    if path.is_symlink() and os.readlink(path) == target:
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)
