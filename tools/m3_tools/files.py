"""Bytes of one file: read whole, checked against what was read before, replaced in one step."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from pathlib import Path

from m3_tools.base import ToolContext, ToolError
from m3_tools.paths import printable

MAX_EDIT_BYTES = 32 * 2**20
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path, name: str) -> int:
    """A descriptor for reading. Raises ToolError unless `path` is a regular file; a pipe or device is never opened."""
    try:
        _require_regular(os.stat(path).st_mode, name)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        raise ToolError(f"{name} does not exist. Find the right name with glob.") from None
    except NotADirectoryError:
        raise ToolError(f"{name} does not exist: a part of its path is a file.") from None
    except PermissionError:
        raise ToolError(f"{name} may not be read (permission denied).") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise ToolError(f"{name} cannot be opened: {error.strerror}.") from None
        raise
    try:
        _require_regular(os.fstat(descriptor).st_mode, name)
    except ToolError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(mode: int, name: str) -> None:
    if not stat.S_ISREG(mode):
        kind = next((label for test, label in _KINDS if test(mode)), "not a regular file")
        hint = " List it with glob or outline." if stat.S_ISDIR(mode) else ""
        raise ToolError(f"{name} is {kind}, not a file that can be read.{hint}")


def read_bytes(path: Path, name: str, *, limit: int = MAX_EDIT_BYTES) -> bytes:
    """The whole file. Raises ToolError if it is missing, not regular, or larger than `limit` bytes."""
    descriptor = open_regular(path, name)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ToolError(f"{name} is larger than {limit // 2**20} MiB; use shell for a file of that size.")
    return data


def remember(context: ToolContext, path: Path, data: bytes) -> None:
    """Note that the model knows the file as `data`."""
    context.read_hashes[path] = digest(data)


def check_unchanged(context: ToolContext, path: Path, data: bytes, name: str) -> None:
    """Raise ToolError if the file is not what the model last saw of it. A file never read passes."""
    known = context.read_hashes.get(path)
    if known is not None and known != digest(data):
        raise ToolError(f"{name} changed since it was read. Read it again, then repeat the edit.")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Give the file exactly `data`: a reader, or a crash at any point, meets the old or the new bytes, never a mixture.

    `path` is resolved, so a symlink that led here stays. Mode, owner and extended attributes are kept. A file that
    forbids writing to everyone is refused with ToolError; other failures raise OSError and leave the old file.
    Not covered: a file with several hard links is written in place, because a replacement would split the links; only
    there a crash can leave a part.
    """
    try:
        old = os.stat(path)
    except FileNotFoundError:
        old = None
    if old is not None:
        _require_regular(old.st_mode, printable(path.name))
        if not old.st_mode & 0o222 or not os.access(path, os.W_OK):
            raise ToolError(f"{printable(path.name)} is read-only. Ask the person before changing its mode.")
        if old.st_nlink > 1:
            _write_in_place(path, data)
            return
    temporary = path.with_name(f".m3-{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(temporary, flags, 0o666 if old is None else 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if old is not None:
                _copy_metadata(path, old, descriptor)
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def _write_in_place(path: Path, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _copy_metadata(path: Path, old: os.stat_result, descriptor: int) -> None:
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    if hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):
            for attribute in os.listxattr(path):
                os.setxattr(descriptor, attribute, os.getxattr(path, attribute))
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
