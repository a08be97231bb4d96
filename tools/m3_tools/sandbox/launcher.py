"""Runs as a program of its own: `launcher.py PLAN ARGV...` enters namespaces, mounts the plan, and runs ARGV inside.

The plan is the JSON that `landlock.command` writes. Only the standard library is used, no package is imported. Exit
codes: that of ARGV, 128 plus the number of the signal that ended it, 125 when the sandbox could not be made.

Three processes: the outer one waits; the first one inside is init of the process namespace, so that everything ends
with it; the second one becomes ARGV.
"""

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

LIBC = ctypes.CDLL(None, use_errno=True)
FAILED = 125

NEW_NS, NEW_CGROUP, NEW_UTS, NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 0x1, 0x2, 0x4
SYS_MOUNT_SETATTR, SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 442, 444, 445, 446
AT_FDCWD, AT_RECURSIVE, RULE_PATH_BENEATH = -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

FS_WRITE_FILE, FS_REFER, FS_TRUNCATE, FS_IOCTL_DEV = 1 << 1, 1 << 13, 1 << 14, 1 << 15
FS_CHANGE = sum(1 << bit for bit in range(4, 13))
"""Remove and make files and folders of every type."""
SCOPE_ABSTRACT_SOCKET, SCOPE_SIGNAL = 1 << 0, 1 << 1


def main() -> NoReturn:
    plan, argv = json.loads(sys.argv[1]), sys.argv[2:]
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # end with the program that started this
    try:
        enter_namespaces(network=plan["network"])
        inner = os.fork()
        if inner == 0:
            be_init(plan, argv)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # those inside get it as well; this one waits for them
        leave(os.waitpid(inner, 0)[1])
    except OSError as error:
        fail(error)


def enter_namespaces(*, network: bool) -> None:
    """New namespaces, in which this user has the same number as outside, and all capabilities for a moment."""
    uid, gid = os.geteuid(), os.getegid()
    kinds = NEW_USER | NEW_NS | NEW_PID | NEW_IPC | NEW_UTS | NEW_CGROUP | (0 if network else NEW_NET)
    check(LIBC.unshare(kinds), "user namespaces are not allowed here")
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{uid} {uid} 1")
    write("/proc/self/gid_map", f"{gid} {gid} 1")
    write("/proc/sys/user/max_user_namespaces", "0")  # no further ones from here on: the command needs none


def be_init(plan: dict[str, Any], argv: list[str]) -> NoReturn:
    """The first process inside: mounts everything, starts the command, and waits for whatever ends meanwhile."""
    try:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        folder = os.getcwd()
        if not plan["network"]:
            raise_loopback()
        mount_all(plan["steps"])
        os.chdir(folder)
        command = os.fork()
        if command == 0:
            become(plan, argv)
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == command:
                leave(status)
    except OSError as error:
        fail(error)


def become(plan: dict[str, Any], argv: list[str]) -> NoReturn:
    """Give up every privilege and turn into the command."""
    os.setsid()
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, plan["file_bytes"]),
        (resource.RLIMIT_DATA, plan["memory_bytes"]),
        (resource.RLIMIT_NPROC, plan["num_processes"]),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    drop_capabilities()
    writable = [step[2] for step in plan["steps"] if step[0] in ("write", "empty", "dev")]
    restrict_writes([path for path in writable if os.path.isdir(path)])
    filter_system_calls(bytes.fromhex(plan["filter"]))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a program inherits that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        os._exit(126 if isinstance(error, PermissionError) else 127)


# Mounts


def mount_all(steps: list[list[str]]) -> None:
    """Make everything read-only, then carry out the steps. Sources are opened before anything covers them."""
    mount(None, "/", None, MS_REC | MS_PRIVATE, None)
    paths = {source for kind, source, _ in steps if kind in ("read", "write")}
    opened = {path: os.open(path, os.O_PATH) for path in paths | {f"/dev/{name}" for name in DEVICES}}
    set_attributes("/", add=ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)
    for kind, source, target in steps:
        if target == "/":
            continue
        if kind == "dev":
            mount_devices(target, opened)
        elif kind == "proc":
            mount("proc", target, "proc", MS_NOSUID | MS_NODEV, None)
        elif kind == "empty":
            mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
        elif kind == "null":
            bind(opened["/dev/null"], target)
            set_attributes(target, remove=ATTR_NODEV)
        else:
            make_target(target, like=opened[source])
            bind(opened[source], target)
            set_attributes(target, **({"remove": ATTR_RDONLY} if kind == "write" else {"add": ATTR_RDONLY}))
    for descriptor in opened.values():
        os.close(descriptor)


def mount_devices(folder: str, opened: dict[str, int]) -> None:
    mount("tmpfs", folder, "tmpfs", MS_NOSUID, "mode=755")
    for name in DEVICES:
        path = f"{folder}/{name}"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        bind(opened[f"/dev/{name}"], path)
        set_attributes(path, remove=ATTR_RDONLY | ATTR_NODEV)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        os.symlink(f"/proc/self/fd/{number}", f"{folder}/{name}")
    os.symlink("/proc/self/fd", f"{folder}/fd")
    os.mkdir(f"{folder}/shm", 0o1777)
    os.mkdir(f"{folder}/pts")
    mount("devpts", f"{folder}/pts", "devpts", MS_NOSUID, "newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", f"{folder}/ptmx")


def make_target(target: str, *, like: int) -> None:
    """A mount point, where there is none because a private folder covers its place."""
    if os.path.lexists(target):
        return
    if os.path.isdir(f"/proc/self/fd/{like}"):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))


def bind(source: int, target: str) -> None:
    mount(f"/proc/self/fd/{source}", target, None, MS_BIND | MS_REC, None)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    result = LIBC.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    check(result, f"mounting {target} is not allowed")


def set_attributes(path: str, *, add: int = 0, remove: int = 0) -> None:
    """mount_setattr(2) on the mount at `path` and all below it."""
    attributes = struct.pack("=QQQQ", add, remove, 0, 0)
    result = LIBC.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), AT_RECURSIVE, attributes, len(attributes))
    check(result, f"the mount {path} cannot be changed")


# Privileges


def drop_capabilities() -> None:
    for number in range(64):
        if LIBC.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break  # past the last capability of this kernel
    header = struct.pack("=Ii", 0x20080522, 0)
    check(LIBC.capset(header, struct.pack("=6I", *[0] * 6)), "capabilities cannot be dropped")
    check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "privileges cannot be given up")


def restrict_writes(folders: list[str]) -> None:
    """Landlock: from here on only what lies in `folders` can be written, made or removed."""
    abi = LIBC.syscall(SYS_LANDLOCK_CREATE, None, 0, 1)
    check(abi, "this kernel has no Landlock")
    handled = FS_WRITE_FILE | FS_CHANGE
    handled |= (FS_REFER if abi >= 2 else 0) | (FS_TRUNCATE if abi >= 3 else 0) | (FS_IOCTL_DEV if abi >= 5 else 0)
    scoped = SCOPE_ABSTRACT_SOCKET | SCOPE_SIGNAL if abi >= 6 else 0
    attributes = struct.pack("=QQQ", handled, 0, scoped)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    ruleset = LIBC.syscall(SYS_LANDLOCK_CREATE, attributes, len(attributes), 0)
    check(ruleset, "Landlock refused the rules")
    for folder in folders:
        descriptor = os.open(folder, os.O_PATH)
        rule = struct.pack("=Qi", handled, descriptor)
        check(LIBC.syscall(SYS_LANDLOCK_ADD, ruleset, RULE_PATH_BENEATH, rule, 0), f"Landlock refused {folder}")
        os.close(descriptor)
    check(LIBC.syscall(SYS_LANDLOCK_RESTRICT, ruleset, 0), "Landlock cannot be switched on")
    os.close(ruleset)


def filter_system_calls(program: bytes) -> None:
    """Switch the filter on; it holds for everything that is started from here on."""
    if not program:
        return
    instructions = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    check(LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, head, 0, 0), "system calls cannot be filtered")


def raise_loopback() -> None:
    """Switch on the loopback device of the new network namespace; it has no other one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS


# Errors and ends


def check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what} ({os.strerror(number)})")


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def leave(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def fail(error: OSError) -> NoReturn:
    where = f": {error.filename}" if error.filename else ""
    print(f"sandbox: {error.strerror or error}{where}", file=sys.stderr, flush=True)
    os._exit(FAILED)


if __name__ == "__main__":
    main()
