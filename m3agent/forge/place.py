"""Where an issue or a project lives at a forge: from an address, or from a repository's remote."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from urllib.parse import quote, urlsplit

from m3agent.errors import M3Error
from m3agent.forge.access import Forge, forge_of
from m3agent.git import GitFailed, git

_REMOTE = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^@/]+@)?|[^@/:]+@)(?P<host>[^/:]+)(?::\d+)?[/:](?P<path>[^/].*?)(?:\.git)?/?"
)
_NAME = r"(?!\.+/)[\w.-]+"
_ISSUE = re.compile(rf"/(?P<project>{_NAME}/{_NAME})/(?:issues|pulls?)/(?P<number>\d{{1,9}})/?", re.ASCII)
_GITLAB_ISSUE = re.compile(
    rf"/(?P<project>{_NAME}(?:/{_NAME})+)/-/(?:issues|work_items)/(?P<number>\d{{1,9}})/?", re.ASCII
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Project:
    """A project at a forge; `path` is `owner/name`, on GitLab with all groups."""

    forge: Forge
    path: str

    @property
    def api_path(self) -> str:
        """Where the project's part of the API begins, below the API's base."""
        if self.forge.kind == "gitlab":
            return f"/projects/{quote(self.path, safe='')}"
        return f"/repos/{quote(self.path)}"


def issue_at(url: str, forges: tuple[Forge, ...]) -> tuple[Project, int]:
    """The project and the number that an issue's address names. Errors: M3Error if it is no such address."""
    parts = urlsplit(url)
    on_gitlab = _GITLAB_ISSUE.fullmatch(parts.path)
    match = on_gitlab or _ISSUE.fullmatch(parts.path)
    if match is None or not parts.hostname:
        raise M3Error(
            f"{url} is no address of an issue; expected https://HOST/OWNER/NAME/issues/NUMBER "
            "(GitHub, Gitea, Forgejo) or https://HOST/GROUP/NAME/-/issues/NUMBER (GitLab)"
        )
    web = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    forge = forge_of(parts.hostname, forges, kind="gitlab" if on_gitlab else None, web=web)
    return Project(forge=forge, path=match["project"]), int(match["number"])


def remote_name(repo: Path) -> str:
    """The remote that issues and pull requests belong to: origin, else the first; empty where there is none."""
    try:
        names = git(repo, "remote").split()
    except GitFailed:
        return ""
    return "origin" if "origin" in names else names[0] if names else ""


def project_of_remote(repo: Path, forges: tuple[Forge, ...]) -> Project:
    """The project of the repository's remote. Errors: M3Error if there is none to ask."""
    name = remote_name(repo)
    try:
        url = git(repo, "remote", "get-url", name) if name else ""
    except GitFailed:
        url = ""
    if not url:
        raise M3Error("the repository has no remote to ask")
    match = _REMOTE.fullmatch(url)
    if match is None:
        raise M3Error(f"its remote {without_credentials(url)!r} is no forge to ask")
    return Project(forge=forge_of(match["host"], forges), path=match["path"])


def without_credentials(url: str) -> str:
    """The address, or a text that holds some, without the name and the password in it."""
    return re.sub(r"//[^@/\s]+@", "//", url)
