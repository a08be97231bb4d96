"""Linters and type checkers that the repository has set up: after a change they must not find more than before.

Those that are installed are run, in the sandbox, on the changed Python files; nothing is ever installed.
Not covered: tools of other languages, and findings in files that the change does not touch.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from m3_tools.base import ToolError
from m3_tools.process import ProcessResult, child_environment, run_process
from m3_tools.sandbox import SandboxError, confined
from m3agent.fix.suite import Suite
from m3agent.fix.worktree import WorkTree

LIMIT_S = 120.0
MAX_FILES = 50
_LINE = re.compile(r"(?m)^(?P<path>[^\n:]+):\d+(?::\d+)?:? (?P<said>.+)$")
_CONFIGURED: dict[str, tuple[tuple[str, ...], str]] = {
    "ruff": (("ruff.toml", ".ruff.toml"), r"(?m)^\[tool\.ruff[\].]"),
    "flake8": ((".flake8",), r"(?m)^\[flake8\]"),
    "mypy": (("mypy.ini", ".mypy.ini"), r"(?m)^\[(?:tool\.)?mypy[\].]"),
}
"""Files whose presence sets a tool up, and the section that does so in a file of settings for all tools."""
_ARGUMENTS = {
    "ruff": ("check", "--quiet", "--no-fix", "--no-cache", "--output-format=concise"),
    "flake8": (),
    "mypy": ("--no-error-summary", "--hide-error-context", "--no-color-output", f"--cache-dir={os.devnull}"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One tool, before and after the change. `missing` says why it could not judge; then it has no findings."""

    name: str
    command: str = ""
    before: int = 0
    after: int = 0
    new: tuple[str, ...] = ()
    missing: str = ""


async def run_checks(worktree: WorkTree, suite: Suite, changed: Sequence[str]) -> tuple[Check, ...]:
    """What each tool that is set up here finds in the changed files, with the change and without it."""
    files = [path for path in changed if path.endswith((".py", ".pyi")) and (worktree.root / path).is_file()]
    if not files or len(files) > MAX_FILES:
        return ()
    return tuple([await _run_check(worktree, suite, name, files, changed) for name in configured(worktree)])


def configured(worktree: WorkTree) -> list[str]:
    """The tools that the repository had set up at the beginning."""
    texts = [worktree.base_bytes(name) or b"" for name in ("pyproject.toml", "setup.cfg", "tox.ini")]
    sections = b"\n".join(texts).decode("utf-8", "replace")
    return [
        name
        for name, (files, section) in _CONFIGURED.items()
        if re.search(section, sections) or any(worktree.base_bytes(file) is not None for file in files)
    ]


async def _run_check(
    worktree: WorkTree, suite: Suite, name: str, files: Sequence[str], changed: Sequence[str]
) -> Check:
    program = _program(suite, name)
    if not program:
        return Check(name=name, missing=f"{name} is set up here and not installed")
    old = [path for path in files if worktree.base_bytes(path) is not None]
    command = " ".join((name, *_ARGUMENTS[name][:1], *files))
    after = await _findings(suite, (*program, *_ARGUMENTS[name]), files)
    before: Counter[tuple[str, str]] | str = Counter()
    if old and not isinstance(after, str):
        with worktree.without(tuple(changed)):
            before = await _findings(suite, (*program, *_ARGUMENTS[name]), old)
    if isinstance(after, str) or isinstance(before, str):
        return Check(name=name, command=command, missing=f"{name} {after if isinstance(after, str) else before}")
    new = tuple(f"{path}: {said}" for path, said in (after - before).elements())
    return Check(name=name, command=command, before=before.total(), after=after.total(), new=new)


def _program(suite: Suite, name: str) -> tuple[str, ...]:
    """The tool beside the interpreter of the tests, else the one on the path."""
    beside = Path(suite.python).parent / name if suite.python else None
    if beside is not None and beside.is_file():
        return (str(beside),)
    found = shutil.which(name, path=suite.environment.get("PATH"))
    return (found,) if found else ()


async def _findings(suite: Suite, argv: Sequence[str], files: Sequence[str]) -> Counter[tuple[str, str]] | str:
    """What the tool says, by file and without line numbers, which move; or why it could not judge."""
    environment = child_environment(dict(suite.environment))
    try:
        with confined(suite.sandbox, (*argv, *files), environment) as inside:
            done: ProcessResult = await run_process(
                inside.argv,
                cwd=suite.root,
                environment=inside.environment,
                timeout_s=LIMIT_S,
                spill_dir=suite.spill_dir,
            )
    except (ToolError, SandboxError) as error:
        return f"could not be run: {error}"
    if done.timed_out:
        return f"did not end within {LIMIT_S:.0f} s"
    found = Counter(
        (match["path"], match["said"]) for match in _LINE.finditer(done.text) if not match["said"].startswith("note:")
    )
    if done.exit_code not in (0, 1):
        return f"could not judge (exit code {done.exit_code})"
    return found
