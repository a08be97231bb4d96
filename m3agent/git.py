"""Calls of git: without prompts, hooks or pagers, with errors in one line."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from m3agent.errors import BrokenEnvironment

TIMEOUT_S = 300.0
_IDENTITY = ("-c", "user.name=m3", "-c", "user.email=m3@localhost")
_QUIET = (
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "gc.auto=0"),
    *("-c", "core.quotePath=false"),  # people and models read the names; only what is unsafe to show is escaped
    *("-c", "commit.gpgSign=false"),
)


class GitFailed(Exception):
    """A git command ended with an error; the text is its last line."""


def git_bytes(
    folder: Path, *arguments: str, data: bytes | None = None, environment: Mapping[str, str] | None = None
) -> bytes:
    """The output of a git command run in `folder`.

    Variables that point git to another repository (GIT_DIR and the like) are not passed on.
    Errors: GitFailed for an error of git, BrokenEnvironment when git is missing or hangs.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **(environment or {})}
    command = ["git", "-C", str(folder), *_QUIET, *arguments]
    try:
        result = subprocess.run(
            command,
            env=env,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            input=data or b"",
        )
    except FileNotFoundError as error:
        raise BrokenEnvironment("git is not installed or not on PATH; m3 fix needs it") from error
    except subprocess.TimeoutExpired as error:
        raise BrokenEnvironment(f"git {arguments[0]} did not end within {TIMEOUT_S:g} s in {folder}") from error
    if result.returncode != 0:
        lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
        raise GitFailed(lines[-1] if lines else f"git {arguments[0]} ended with {result.returncode}")
    return result.stdout


def git(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """The output of `git_bytes` as text without the line end at its end."""
    return git_bytes(folder, *arguments, environment=environment).decode("utf-8", "surrogateescape").rstrip("\n")


def commit_all(folder: Path, message: str) -> str:
    """Commit everything that is not ignored in a repository of our own; returns the commit's id."""
    git(folder, "add", "--all", "--force")
    git(folder, *_IDENTITY, "commit", "--quiet", "--allow-empty", "--no-verify", "-m", message)
    return git(folder, "rev-parse", "HEAD")
