"""The backend for Linux without bubblewrap: namespaces and Landlock, set up by a small launcher in Python.

The launcher makes the same mounts as bubblewrap. Landlock stands behind them as a second wall for writing, and keeps
signals, ptrace and abstract sockets inside. It needs Linux 5.13 and user namespaces.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from m3_tools.sandbox.plan import mount_plan
from m3_tools.sandbox.policy import Policy, SandboxError
from m3_tools.sandbox.system_calls import filter_program

NAME = "landlock"
_CREATE_RULESET, _VERSION = 444, 1


def command(argv: Sequence[str], policy: Policy) -> list[str]:
    """The command line that runs `argv` inside. Raises SandboxError when the kernel has no Landlock."""
    if landlock_abi() < 1:
        raise SandboxError("this kernel has no Landlock (Linux 5.13 or newer, enabled at boot)")
    plan = {
        "steps": mount_plan(policy),
        "network": policy.network,
        "filter": filter_program().hex(),
        "memory_bytes": policy.limits.memory_bytes,
        "num_processes": policy.limits.num_processes,
        "file_bytes": policy.limits.file_bytes,
    }
    launcher = Path(__file__).with_name("launcher.py")
    return [sys.executable, "-I", "-S", str(launcher), json.dumps(plan, separators=(",", ":")), *argv]


def landlock_abi() -> int:
    """The version of Landlock's interface in this kernel; 0 for none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _VERSION)))
