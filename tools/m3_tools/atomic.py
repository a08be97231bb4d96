"""Replace a file's bytes in one step: a reader, or a crash at any point, meets the old bytes or the new ones.

The new bytes are complete on disk before they get a name. Between that name and the last step lies one rename; a
process killed just there leaves a `.m3-….tmp`, which the next write in that folder removes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from m3_tools.base import ToolError
from m3_tools.files import require_regular
from m3_tools.paths import printable

_TEMPORARY = re.compile(r"\.m3-[0-9a-f]{16}\.tmp")
_NO_UNNAMED_FILES = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV})


def write_atomic(path: Path, data: bytes) -> None:
    """Give the file exactly `data`, or leave it as it is.

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
        require_regular(old.st_mode, printable(path.name))
        if not old.st_mode & 0o222 or not os.access(path, os.W_OK):
            raise ToolError(f"{printable(path.name)} is read-only. Ask the person before changing its mode.")
    try:
        if old is not None and old.st_nlink > 1:
            _write_in_place(path, data)
        else:
            _replace(path, data, old)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _replace(path: Path, data: bytes, old: os.stat_result | None) -> None:
    _remove_leftovers(path.parent)
    try:
        _replace_through(path, data, old, unnamed=True)
    except OSError as error:
        if error.errno not in _NO_UNNAMED_FILES:
            raise
        _replace_through(path, data, old, unnamed=False)
    _sync_folder(path.parent)


def _replace_through(path: Path, data: bytes, old: os.stat_result | None, *, unnamed: bool) -> None:
    """Replace `path` by a new file, which has no name while it is written if `unnamed`."""
    with new_file(path.parent, 0o666 if old is None else 0o600, unnamed=unnamed) as (descriptor, temporary):
        _write_all(descriptor, data)
        if old is not None:
            _copy_metadata(path, old, descriptor)
        os.fsync(descriptor)
        if unnamed:
            give_name(descriptor, temporary)
        os.replace(temporary, path)


@contextlib.contextmanager
def new_file(folder: Path, mode: int, *, unnamed: bool) -> Iterator[tuple[int, Path]]:
    """A descriptor of a new file, and the temporary name that it has, or may get if it is unnamed.

    The file is locked while its process lives, so that nobody takes it for a leftover.
    """
    temporary = folder / f".m3-{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CLOEXEC
    if not unnamed:
        descriptor = os.open(temporary, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    elif hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd"):
        descriptor = os.open(folder, flags | os.O_TMPFILE, mode)
    else:
        raise OSError(errno.EOPNOTSUPP, "no unnamed files here")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor, temporary
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)


def give_name(descriptor: int, path: Path) -> None:
    """Give an unnamed file a name, which must be free."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Only with a folder's descriptor does Python make the call that follows the link in /proc.
        os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary files of writers that were killed: nobody holds their lock."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if _TEMPORARY.fullmatch(name):
                _remove_unless_locked(folder / name)


def _remove_unless_locked(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(descriptor)


def _write_in_place(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        old = _read_all(descriptor)
        old_size = os.fstat(descriptor).st_size
        if len(data) > old_size and hasattr(os, "posix_fallocate"):
            try:  # a full disk shows here, before a byte has changed
                os.posix_fallocate(descriptor, 0, len(data))
            except OSError:
                os.ftruncate(descriptor, old_size)
                raise
        try:
            os.lseek(descriptor, 0, os.SEEK_SET)
            _write_all(descriptor, data)
            os.ftruncate(descriptor, len(data))
            os.fsync(descriptor)
        except BaseException:  # an interrupt, too; the old bytes are put back as far as the disk lets us
            with contextlib.suppress(OSError):
                os.lseek(descriptor, 0, os.SEEK_SET)
                _write_all(descriptor, old)
                os.ftruncate(descriptor, old_size)
            raise
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    pieces = []
    while piece := os.read(descriptor, 1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _copy_metadata(path: Path, old: os.stat_result, descriptor: int) -> None:
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(descriptor, old.st_uid, old.st_gid)
        except PermissionError:  # somebody else's file: its group at least, if it is one of ours
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, -1, old.st_gid)
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
