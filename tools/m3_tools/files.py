"""Bytes of one file: read whole, and checked against what was read before."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

from m3_tools.base import MissingPath, ToolContext, ToolError

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
        require_regular(os.stat(path).st_mode, name)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        raise MissingPath(name, f"{name} does not exist. Find the right name with glob.") from None
    except NotADirectoryError:
        raise MissingPath(name, f"{name} does not exist: a part of its path is a file.") from None
    except PermissionError:
        raise ToolError(f"{name} may not be read (permission denied).") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise ToolError(f"{name} cannot be opened: {error.strerror}.") from None
        raise
    try:
        require_regular(os.fstat(descriptor).st_mode, name)
    except ToolError:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(mode: int, name: str) -> None:
    """Raise ToolError unless `mode`, from stat, is that of a regular file."""
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
