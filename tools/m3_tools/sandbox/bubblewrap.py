"""The backend that uses bubblewrap (`bwrap`), the sandbox of Flatpak: it needs user namespaces, and no privileges."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Sequence

from m3_tools.sandbox.plan import Kind, mount_plan
from m3_tools.sandbox.policy import Limits, Policy, SandboxError
from m3_tools.sandbox.system_calls import filter_program

NAME = "bubblewrap"
ADVICE = "install bubblewrap (apt install bubblewrap, dnf install bubblewrap)"
_WITH_FILTER = ("/bin/sh", "-c", 'exec "$@" 9<"$0"')
"""bwrap reads the filter from a descriptor. Nothing of it can stay behind: it ends with the process that holds it."""
_OPTIONS: dict[Kind, str] = {"read": "--ro-bind", "write": "--bind", "empty": "--tmpfs", "dev": "--dev"}


def command(argv: Sequence[str], policy: Policy) -> list[str]:
    """The command line that runs `argv` inside. Raises SandboxError when bwrap is not installed."""
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError(f"bwrap is not installed: {ADVICE}")
    line = [*_WITH_FILTER, _filter_path(), program, "--seccomp", "9"] if filter_program() else [program]
    line += ["--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    line += ["--die-with-parent", "--new-session", *(("--share-net",) if policy.network else ())]
    for kind, source, target in mount_plan(policy):
        match kind:
            case "proc":
                line += ["--proc", target]
            case "null":
                line += ["--dev-bind", "/dev/null", target]  # an ordinary bind refuses to open a device
            case "empty" | "dev":
                line += [_OPTIONS[kind], target]
            case "read" | "write":
                line += [_OPTIONS[kind], source, target]
    return [*line, "--", "/bin/sh", "-c", limit_script(policy.limits), "sh", *argv]


def _filter_path() -> str:
    """The filter of system calls as a file in memory, by the name under which a child of this process finds it."""
    return f"/proc/{os.getpid()}/fd/{_filter_descriptor()}"


@functools.cache
def _filter_descriptor() -> int:
    descriptor = os.memfd_create("m3-filter")
    os.write(descriptor, filter_program())
    return descriptor


def limit_script(limits: Limits) -> str:
    """A line of sh that sets the limits and becomes its arguments. sh counts files in 512 bytes, memory in kilobytes;
    shells disagree on the letter for processes.
    """
    return (
        f"ulimit -c 0; ulimit -f {limits.file_bytes // 512}; ulimit -d {limits.memory_bytes // 1024}; "
        f"{{ ulimit -u {limits.num_processes} || ulimit -p {limits.num_processes}; }} 2>/dev/null; "
        'exec "$@"'
    )
