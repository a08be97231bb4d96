"""The backend that uses bubblewrap (`bwrap`), the sandbox of Flatpak: it needs user namespaces, and no privileges."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from m3_tools.sandbox.plan import Kind, mount_plan
from m3_tools.sandbox.policy import Limits, Policy, SandboxError
from m3_tools.sandbox.system_calls import filter_program

NAME = "bubblewrap"
ADVICE = "install bubblewrap (apt install bubblewrap, dnf install bubblewrap)"
_WITH_FILTER = ("/bin/sh", "-c", 'exec "$@" 9<"$0"')
"""bwrap reads the filter from a descriptor."""
_OPTIONS: dict[Kind, str] = {"read": "--ro-bind", "write": "--bind", "empty": "--tmpfs", "dev": "--dev"}


def command(argv: Sequence[str], policy: Policy) -> list[str]:
    """The command line that runs `argv` inside. Raises SandboxError when bwrap is not installed."""
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError(f"bwrap is not installed: {ADVICE}")
    line = [*_WITH_FILTER, _filter_file(), program, "--seccomp", "9"] if filter_program() else [program]
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


@functools.cache
def _filter_file() -> str:
    """The filter of system calls in a file, until this process ends."""
    descriptor, name = tempfile.mkstemp(prefix="m3-filter-")
    with open(descriptor, "wb") as file:
        file.write(filter_program())
    atexit.register(Path(name).unlink, missing_ok=True)
    return name


def limit_script(limits: Limits) -> str:
    """A line of sh that sets the limits and becomes its arguments. sh counts files in 512 bytes, memory in kilobytes;
    shells disagree on the letter for processes.
    """
    return (
        f"ulimit -c 0; ulimit -f {limits.file_bytes // 512}; ulimit -d {limits.memory_bytes // 1024}; "
        f"{{ ulimit -u {limits.num_processes} || ulimit -p {limits.num_processes}; }} 2>/dev/null; "
        'exec "$@"'
    )
