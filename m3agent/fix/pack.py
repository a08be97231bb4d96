"""An issue kept as files of the repository's `.m3` folder, which git does not see: to work on it without the network.

`N.md` is what a person reads and may edit: the title and the text. `N.json` beside it holds the rest.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

from m3agent.errors import M3Error
from m3agent.fix.issue import Issue, issue_name

LISTS = ("comments", "labels", "linked", "notes")


def own_folder(repo: Path, name: str) -> Path:
    """The folder `.m3/NAME` of the repository, made if needed; `.m3` holds a `.gitignore` that hides all of it.

    Errors: OSError if it cannot be made.
    """
    home = repo / ".m3"
    folder = home / name
    if home.is_symlink() or folder.is_symlink():  # a repository may bring one that leads anywhere
        raise OSError(errno.ELOOP, "it is a symbolic link", str(home))
    folder.mkdir(parents=True, exist_ok=True)
    ignore = home / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return folder


def write_pack(issue: Issue, repo: Path) -> Path:
    """Write the issue where `m3 fix --issue N` looks first; returns the file that a person reads."""
    about = {"source": issue.source, **{name: list(getattr(issue, name)) for name in LISTS}}
    try:
        file = own_folder(repo, "issues") / f"{issue_name(issue).removeprefix('issue-')}.md"
        file.write_text(f"# {issue.title}\n\n{issue.body}\n", encoding="utf-8")
        file.with_suffix(".json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise M3Error(f"the issue cannot be written into {repo}: {error.strerror or error}") from error
    return file


def read_about(file: Path) -> dict[str, Any]:
    """What stands beside a packed issue, as far as it can be read; nothing for any other file."""
    beside = file.with_suffix(".json")
    if file.absolute().parts[-3:-1] != (".m3", "issues") or beside.is_symlink():
        return {}
    try:
        about = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(about, dict) or not isinstance(about.get("source"), str):
        return {}
    lists = {name: [str(text) for text in about[name]] for name in LISTS if isinstance(about.get(name), list)}
    return {"source": about["source"], **lists}
