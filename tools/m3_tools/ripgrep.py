"""The ripgrep binary: where it is, and which files it would search."""

from __future__ import annotations

import operator
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from m3_tools.base import ToolContext, ToolError
from m3_tools.process import ProcessResult, child_environment, run_process

MAX_OUTPUT_BYTES = 64 * 2**20
_TIMEOUT_S = 60


def find_ripgrep() -> str:
    """Path of `rg`: beside this Python first (the ripgrep wheel), then on PATH. Raises ToolError if there is none."""
    beside = Path(sys.executable).with_name("rg")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("rg")
    if found is None:
        raise ToolError("ripgrep (rg) is not installed. Install it: pip install ripgrep.")
    return found


async def run_ripgrep(
    context: ToolContext, arguments: Sequence[str], *, include_ignored: bool, timeout_s: float = _TIMEOUT_S
) -> ProcessResult:
    """Run rg at the root of the work tree. The ignore files count even without git; .git and .m3 never show."""
    common = ["--no-config", "--hidden", "--no-require-git", "--color=never"]
    if include_ignored:
        common.append("--no-ignore")
    return await run_process(
        [find_ripgrep(), *common, *arguments],
        cwd=context.root,
        environment=child_environment(context.environment),
        timeout_s=timeout_s,
        head_bytes=MAX_OUTPUT_BYTES,
        tail_bytes=0,
        for_model=False,
        starts_others=False,
    )


async def list_files(context: ToolContext, folder: Path, *, include_ignored: bool = False) -> list[Path]:
    """Every file under `folder`, sorted by path; ignored ones left out unless asked for, symlinks not followed."""
    return [context.root / name for name in await list_names(context, folder, include_ignored=include_ignored)]


async def list_names(context: ToolContext, folder: Path, *, include_ignored: bool = False) -> list[str]:
    """The same files as names relative to the root, with forward slashes. Much faster where there are many."""
    return sorted(await names_below(context, folder, include_ignored=include_ignored), key=by_folder)


async def names_below(
    context: ToolContext, folder: Path, options: Sequence[str] = (), *, include_ignored: bool = False
) -> list[str]:
    """The same names in any order, of those files that the options of ripgrep let through."""
    # ripgrep is an eighth slower where no folder is named. Every name then begins with ./
    where = os.path.join(".", os.path.relpath(folder, context.root)) if folder != context.root else "."
    result = await run_ripgrep(
        context,
        ["--files", "--null", "--no-messages", *options, "--glob=!.git", "--glob=!.m3", "--", where],
        include_ignored=include_ignored,
    )
    whole, _, _ = result.head.rpartition(b"\0")
    listed = os.fsdecode(whole).removeprefix("./")
    return listed.split("\0./") if listed else []


by_folder: Callable[[str], str] = operator.methodcaller("replace", "/", "\0")
"""A key that sorts names as a walk through the folders meets them."""
