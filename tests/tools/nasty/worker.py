"""Run commands through the shell tool, one after another; for each print one line of JSON. Run as a program.

Standard input gives `[deadline, [[name, command, whether in the sandbox], …]]`. `peak_bytes` is the most memory that
this process had until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import psutil

from m3_tools.base import ToolContext, call_tool
from m3_tools.sandbox import Sandbox, detect, work_tree_policy
from m3_tools.shell import ShellTool


async def run(command: str, timeout_s: float, *, sandboxed: bool) -> dict[str, object]:
    seconds = f"{7000 + os.getpid() % 1000}.{time.monotonic_ns()}"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "repo"
        root.mkdir()
        context = ToolContext(root=root, spill_dir=root.parent / "spill", environment={**os.environ, "NASTY": seconds})
        if sandboxed and (backend := detect().backend):
            context.sandbox = Sandbox(backend, work_tree_policy(root))
        started = time.monotonic()
        arguments = {"command": command.format(s=seconds), "timeout_s": timeout_s}
        result = await call_tool(ShellTool(), arguments, context)
        took_s = time.monotonic() - started
        return {
            "took_s": took_s,
            "left": left(seconds),
            "text": result.text[:300],
            "chars": len(result.text),
            "peak_bytes": peak_bytes(),
        }


def peak_bytes() -> int:
    """The most memory that this program held. What `getrusage` tells on Linux begins with that of its parent."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(next(row.split()[1] for row in status.read_text().splitlines() if row.startswith("VmHWM:")))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def left(seconds: str) -> list[str]:
    """What still runs of a command, by its arguments or its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            with contextlib.suppress(psutil.AccessDenied):
                is_its = process.environ().get("NASTY") == seconds
                if process.pid != os.getpid() and (is_its or seconds in " ".join(process.cmdline())):
                    found.append(f"{process.pid} {process.status()} {' '.join(process.cmdline())[:80]}")
    return found


def main() -> None:
    timeout_s, commands = json.load(sys.stdin)
    for name, command, sandboxed in commands:
        told = asyncio.run(run(command, timeout_s, sandboxed=sandboxed))
        print(json.dumps({"name": name, **told}), flush=True)


if __name__ == "__main__":
    main()
