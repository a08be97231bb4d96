"""The backend for macOS: a profile for `sandbox-exec`.

This was never run: it was written from the profile language as it is documented by its users, and only its text is
tested. `detect` tries it before it is used, like every backend.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from m3_tools.sandbox.bubblewrap import limit_script
from m3_tools.sandbox.policy import Policy, SandboxError

NAME = "seatbelt"
_PROGRAM = "/usr/bin/sandbox-exec"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/dtracehelper")


def command(argv: Sequence[str], policy: Policy) -> list[str]:
    """The command line that runs `argv` inside. Raises SandboxError where there is no sandbox-exec."""
    if sys.platform != "darwin" or not Path(_PROGRAM).exists():
        raise SandboxError("this is not macOS")
    return [_PROGRAM, "-p", profile(policy), "/bin/sh", "-c", limit_script(policy.limits), "sh", *argv]


def profile(policy: Policy) -> str:
    """The profile: of several rules that match, the last one counts.

    Processes may only be inspected and signalled inside. /tmp is shared, so commands write to `scratch` (TMPDIR).
    """
    writable = (*policy.writable, *((policy.scratch,) if policy.scratch else ()))
    lines = [
        "(version 1)",
        "(deny default)",
        "(allow process-exec process-fork)",
        "(allow signal process-info* (target same-sandbox))",
        "(allow sysctl-read)",
        '(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))',
        "(allow ipc-posix-sem)",
        "(allow file-read*)",
        f"(allow file-write* {' '.join(f'(literal {_quoted(path)})' for path in _DEVICES)})",
        "(allow pseudo-tty)",
    ]
    lines += [f"(allow file-write* (subpath {_quoted(path)}))" for path in writable]
    lines += [f"(deny file-write* (subpath {_quoted(path)}))" for path in policy.protected]
    # Renaming a folder above a protected path would carry it away.
    above = sorted({parent for path in policy.protected for parent in path.parents if _inside(parent, policy)})
    lines += [f"(deny file-write-unlink (literal {_quoted(path)}))" for path in above]
    lines += [f"(deny file-read* file-write* (subpath {_quoted(path)}))" for path in policy.hidden]
    lines.append("(allow network*)" if policy.network else '(allow network* (local ip "localhost:*"))')
    if not policy.network:
        lines.append("(deny network-outbound)")
    return "\n".join(lines) + "\n"


def _inside(path: Path, policy: Policy) -> bool:
    return any(path.is_relative_to(root) and path != root for root in policy.writable)


def _quoted(path: Path | str) -> str:
    """A string of the profile language, which quotes as JSON does for what paths hold."""
    return json.dumps(str(path), ensure_ascii=False)
