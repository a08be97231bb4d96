"""An issue kept as a file of the repository's `.m3` folder, which git does not see."""

from __future__ import annotations

from pathlib import Path

from m3agent.errors import M3Error
from m3agent.fix.issue import Issue, issue_name


def own_folder(repo: Path, name: str) -> Path:
    """The folder `.m3/NAME` of the repository, made if needed; `.m3` holds a `.gitignore` that hides all of it.

    Errors: OSError if it cannot be made.
    """
    home = repo / ".m3"
    folder = home / name
    folder.mkdir(parents=True, exist_ok=True)
    ignore = home / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return folder


def write_pack(issue: Issue, repo: Path) -> Path:
    """Write the issue with its comments where `m3 fix --issue N` looks first; returns the file."""
    text = f"# {issue.title}\n\n{issue.body}\n"
    for comment in issue.comments:
        text += f"\n## Comment\n\n{comment}\n"
    try:
        file = own_folder(repo, "issues") / f"{issue_name(issue).removeprefix('issue-')}.md"
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise M3Error(f"the issue cannot be written into {repo}: {error.strerror or error}") from error
    return file
