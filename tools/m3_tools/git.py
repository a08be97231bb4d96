"""Read-only calls of git in the work tree: no prompt, no pager, no hook, no monitor, no lock on the index.

Not covered: content filters (git-lfs and the like) that the repository's settings name; git compares through them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from m3_tools.base import ToolContext, ToolError
from m3_tools.process import ProcessResult, child_environment, run_process

_TIMEOUT_S = 60
_MAX_OUTPUT_BYTES = 16 * 2**20
_SETTINGS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.quotePath=false")
_DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-color", "--relative")


async def run_git(context: ToolContext, *arguments: str, index: Path | None = None) -> ProcessResult:
    """Run git at the root of the work tree, on another index if given. Raises ToolError if git is missing or hangs."""
    inherited = child_environment(context.environment)
    # GIT_DIR and the like would lead to another repository than the one around the work tree.
    environment = {k: v for k, v in inherited.items() if not k.startswith("GIT_")}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
    result = await run_process(
        ["git", *_SETTINGS, *arguments],
        cwd=context.root,
        environment=environment,
        timeout_s=_TIMEOUT_S,
        head_bytes=_MAX_OUTPUT_BYTES,
        tail_bytes=0,
    )
    if result.timed_out:
        raise ToolError(f"git {arguments[0]} did not end within {_TIMEOUT_S} s.")
    return result


def git_name(context: ToolContext, path: Path) -> str:
    """A resolved path as git takes it: relative to the work tree, its bytes as they are."""
    return path.relative_to(os.path.realpath(context.root)).as_posix()


async def require_repository(context: ToolContext) -> None:
    """Raise ToolError unless the work tree belongs to a git repository."""
    if (await run_git(context, "rev-parse", "--is-inside-work-tree")).head.strip() != b"true":
        raise ToolError(
            "This folder is not in a git repository, so nothing says how its files were. Read them as they are now."
        )


async def base_commit(context: ToolContext) -> str:
    """What the work tree is compared with: HEAD, or the empty tree before the first commit."""
    if (await run_git(context, "rev-parse", "--quiet", "--verify", "HEAD^{commit}")).exit_code == 0:
        return "HEAD"
    return os.fsdecode((await run_git(context, "hash-object", "-t", "tree", "/dev/null")).head.strip())


async def diff_with_base(context: ToolContext, path: str, *options: str) -> ProcessResult:
    """`git diff` of a path against the last commit, on a copy of the index: git refreshes the one that it works on."""
    base = await base_commit(context)
    original = os.fsdecode((await run_git(context, "rev-parse", "--git-path", "index")).head.rstrip(b"\n"))
    with tempfile.TemporaryDirectory(prefix="m3-git-") as folder:
        index = Path(folder) / "index"
        with contextlib.suppress(FileNotFoundError):  # nothing was ever added
            # With its time: an entry as young as the index is compared by its bytes, since its time proves nothing.
            shutil.copy2(context.root / original, index)
        return await run_git(context, *_DIFF, *options, base, "--", f":(literal){path}", index=index)


async def is_committed(context: ToolContext, name: str) -> bool:
    """Whether HEAD has the file with exactly the bytes that the work tree has."""
    tracked = await run_git(context, "ls-files", "--error-unmatch", "--", f":(literal){name}")
    if tracked.exit_code != 0:
        return False
    difference = await diff_with_base(context, name)
    return difference.exit_code == 0 and not difference.head
