"""Where an issue comes from: a number, an address, a file, or stdin."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from m3agent.errors import M3Error
from m3agent.fix.issue import Issue, clean_issue
from m3agent.fix.pack import read_about
from m3agent.forge.issues import fetch_issue
from m3agent.forge.place import Project, issue_at, project_of_remote
from m3agent.settings import Settings

MAX_FILE_BYTES = 1_000_000


def load_issue(ref: str, repo: Path, settings: Settings, read_stdin: Callable[[], str] = sys.stdin.read) -> Issue:
    """The issue that `ref` names: a number, a URL, a file, or `-`.

    A number is looked for in `.m3/issues/N.md`, then `issues/N.md`, then at the forge of the repository's remote.
    Errors: M3Error with one line that says what was looked for and what to do.
    """
    ref = ref.strip()
    if ref == "-":
        return clean_issue(*_title_and_body(read_stdin()), source="stdin")
    if urlsplit(ref).scheme in ("http", "https"):
        return _from_forge(*issue_at(ref, settings.forges))
    if re.fullmatch(r"#?[0-9]{1,9}", ref):
        number = int(ref.lstrip("#"))
        for folder in (".m3/issues", "issues"):
            file = repo / folder / f"{number}.md"
            if file.is_file() and file.resolve().is_relative_to(repo.resolve()):
                return _from_file(file, f"{folder}/{number}.md")
        try:
            project = project_of_remote(repo, settings.forges)
        except M3Error as error:
            raise M3Error(
                f"there is no issue {number}: neither .m3/issues/{number}.md nor issues/{number}.md exists in {repo}, "
                f"and {error}"
            ) from error
        return _from_forge(project, number)
    for file in (Path(ref).expanduser(), repo / ref):
        if file.is_file():
            return _from_file(file, ref)
    raise M3Error(f"no issue {ref!r}: it is no number, no http address, and no file of that name exists")


def _from_forge(project: Project, number: int) -> Issue:
    found = fetch_issue(project, number)
    return clean_issue(
        found.title,
        found.body,
        found.comments,
        labels=found.labels,
        linked=found.linked,
        source=found.url or f"#{number}",
        notes=found.notes,
    )


def _from_file(file: Path, source: str) -> Issue:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise M3Error(f"{source} is larger than {MAX_FILE_BYTES:,} bytes; an issue is a short text")
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise M3Error(f"{source} cannot be read: {error.strerror or error}") from error
    return clean_issue(*_title_and_body(text), **{"source": source, **read_about(file)})


def _title_and_body(text: str) -> tuple[str, str]:
    """The first line with words, its `#` taken off, is the title."""
    first, _, rest = text.lstrip("\ufeff \t\r\n").partition("\n")
    return re.sub(r"^#+\s*", "", first), rest
