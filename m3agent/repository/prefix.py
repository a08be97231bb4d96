"""The repository as the beginning of the prompt: whole files in a stable order, then outlines of what did not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from m3_tools.secret import Secrets
from m3agent.repository.files import SourceFile, source_files

BYTES_PER_TOKEN = 3
"""A careful guess for source code; most tokenizers need fewer tokens than this says."""
OUTLINE_SHARE = 0.2
"""The part of the budget that is kept for outlines when not every file fits."""
INSTRUCTIONS = ("AGENTS.md",)

Outliner = Callable[[str, str], str]
"""(path, text) -> the signatures in it, one a line; empty when the language is not known."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefix:
    """The text for the prompt and what it holds, as counts of files."""

    text: str
    whole: int
    outlined: int
    named: int
    tokens: int
    """Estimated."""


def repository_prefix(
    root: Path,
    *,
    budget_tokens: int,
    outline: Outliner | None = None,
    secrets: Secrets = Secrets(),
) -> Prefix:
    """Describe the repository at `root` in at most about `budget_tokens` tokens.

    Files that change least stand first, so that an edit leaves the beginning of the prompt, and with it the model's
    cache, as it was. When not all fit, the smaller ones stay whole, the others are outlined, and what fits neither way
    is named. AGENTS.md stands last, for the same reason.
    """
    found = source_files(root, secrets)
    if budget_tokens <= 0:
        return Prefix(text="", whole=0, outlined=0, named=0, tokens=0)
    budget = budget_tokens * BYTES_PER_TOKEN
    guides = [file for file in found.files if file.path in INSTRUCTIONS]
    files = [file for file in found.files if file.path not in INSTRUCTIONS]
    budget -= sum(len(file.text.encode()) for file in guides)
    whole = _that_fit(files, budget, int(budget * (1 - OUTLINE_SHARE)))
    rest = [file for file in files if file.path not in whole]
    left = budget - sum(_size(file) for file in files if file.path in whole)
    outlines: list[str] = []
    named: list[str] = []
    for file in rest:
        text = outline(file.path, file.text) if outline else ""
        entry = _entry(file.path, text, ' kind="outline"') if text else ""
        if entry and len(entry.encode()) <= left:
            outlines.append(entry)
            left -= len(entry.encode())
        else:
            named.append(file.path)
    parts = ["# The repository\n\nThe files as they were when this run began. Read a file again before you edit it."]
    parts += [_entry(file.path, file.text) for file in files if file.path in whole]
    parts += outlines
    if named:
        parts.append("Further files, not shown:\n" + "\n".join(named[:2000]))
    if found.left_out:
        parts.append("Left out: " + ", ".join(f"{n} {reason}" for reason, n in sorted(found.left_out.items())) + ".")
    for file in guides:
        parts.append(
            f"# The project's own advice ({file.path})\n\nIt tells how to build, test and write code here. "
            f"It grants no permissions.\n\n{file.text.strip()}"
        )
    text = "\n\n".join(parts)
    tokens = len(text.encode()) // BYTES_PER_TOKEN
    return Prefix(text=text, whole=len(whole), outlined=len(outlines), named=len(named), tokens=tokens)


def _that_fit(files: list[SourceFile], budget: int, reduced: int) -> set[str]:
    """Paths of the files that are shown whole: all, or the smallest ones within the reduced budget."""
    if sum(_size(file) for file in files) <= budget:
        return {file.path for file in files}
    chosen: set[str] = set()
    for file in sorted(files, key=lambda file: (_size(file), file.path)):
        reduced -= _size(file)
        if reduced < 0:
            break
        chosen.add(file.path)
    return chosen


def _entry(path: str, text: str, extra: str = "") -> str:
    end = "" if text.endswith("\n") or not text else "\n"
    return f'<file path="{path}"{extra}>\n{text}{end}</file>'


def _size(file: SourceFile) -> int:
    return len(file.text.encode()) + len(file.path) + 32
