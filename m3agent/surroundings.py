"""Where the model works, in a few lines of the prompt: facts that it would otherwise ask the shell for."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from m3_tools.runners import find_python, find_runner
from m3agent.git import GitFailed, git


def surroundings(
    root: Path, *, environment: Mapping[str, str], test_command: str = "", has_network: bool = True
) -> str:
    """The folder, the system, git's branch, how tests run, and what commands reach; nothing that changes with time.

    `environment` is that of the commands; `test_command` runs all tests, where that is known already. `has_network`
    False is for commands in a sandbox, each of which has a loopback device of its own.
    """
    python = find_python(root, environment)
    own = Path(python).is_relative_to(root)
    named = f"Python of {os.path.relpath(python, root)}" if own else f"Python {platform.python_version()}"
    lines = [
        f"- Folder: {root.name} (paths of tools are relative to it)",
        f"- System: {platform.system()} {platform.machine()}, {named}",
    ]
    lines.append(f"- git: {_branch(root) or 'none, so `diff` has nothing to compare with'}")
    if not test_command and (runner := find_runner(root, python=python, environment=environment)):
        words = ["python" if word == python else word for word in runner.argv]
        test_command = runner.shown or (" ".join(words) if runner.kind != "unittest" else "python -m unittest")
    if test_command:
        lines.append(f"- Tests: {test_command}")
    if not has_network:
        lines.append("- Network: none, and none between commands; start a server and ask it in the same command")
    return "\n".join(["Surroundings:", *lines])


def _branch(root: Path) -> str:
    try:
        return f"branch {git(root, 'symbolic-ref', '--short', 'HEAD')}"
    except GitFailed:
        pass
    try:
        return f"commit {git(root, 'rev-parse', '--short', 'HEAD')}, on no branch"
    except GitFailed:
        return ""
