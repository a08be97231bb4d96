"""A filter of system calls, for what neither namespaces nor mounts keep inside.

It refuses sockets that reach the host of a virtual machine (AF_VSOCK), io_uring, which can open sockets past the
filter, typing into a terminal (TIOCSTI, TIOCLINUX), and system calls of another architecture. The format is classic BPF
as seccomp(2) takes it.
"""

from __future__ import annotations

import errno
import platform
import struct

_NUMBERS = {"x86_64": (0xC000003E, 41, 16, 425), "aarch64": (0xC00000B7, 198, 29, 425)}
"""By machine: the architecture's mark, and the numbers of socket, ioctl and io_uring_setup."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_AT, _SECOND_AT = 0, 4, 16, 24
_X32 = 0x40000000
_AF_VSOCK, _TIOCSTI, _TIOCLINUX = 40, 0x5412, 0x541C


def filter_program(machine: str = "") -> bytes:
    """The filter's instructions; empty for a machine whose numbers are not known here."""
    numbers = _NUMBERS.get(machine or platform.machine())
    if numbers is None:
        return b""
    architecture, socket, ioctl, io_uring = numbers
    instructions = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
        (_EQUAL, 0, 1, io_uring),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
        (_EQUAL, 0, 3, socket),
        (_LOAD, 0, 0, _FIRST_AT),
        (_EQUAL, 0, 5, _AF_VSOCK),
        (_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT),
        (_EQUAL, 0, 3, ioctl),
        (_LOAD, 0, 0, _SECOND_AT),
        (_EQUAL, 2, 0, _TIOCSTI),
        (_EQUAL, 1, 0, _TIOCLINUX),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
