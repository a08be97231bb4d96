"""Pull requests at a forge: opened as drafts, from a branch that was pushed before."""

from __future__ import annotations

from typing import Any

from m3agent.errors import M3Error
from m3agent.forge.client import ForgeClient
from m3agent.forge.place import Project

MAX_TITLE_CHARS, MAX_BODY_CHARS = 200, 60_000
"""Within the bounds of all forges."""
_DRAFT_TITLES = {"github": "", "gitlab": "Draft: ", "gitea": "WIP: "}
"""GitLab and Gitea know a draft by its title."""


def default_branch(project: Project) -> str:
    """The branch that takes changes unless something else is said. Errors: M3Error with one line."""
    with ForgeClient(project.forge) as client:
        about = client.get(project.api_path, f"project {project.path}")
    name = about.get("default_branch") if isinstance(about, dict) else None
    if not isinstance(name, str) or not name:
        raise M3Error(f"{project.forge.host} names no default branch for {project.path}")
    return name


def open_draft(project: Project, *, head: str, base: str, title: str, body: str) -> str:
    """Open a draft pull request of branch `head` into `base`; returns its address. Errors: M3Error with one line."""
    title, body = f"{_DRAFT_TITLES[project.forge.kind]}{title}"[:MAX_TITLE_CHARS], body[:MAX_BODY_CHARS]
    value: dict[str, Any]
    if project.forge.kind == "gitlab":
        path = f"{project.api_path}/merge_requests"
        value = {"source_branch": head, "target_branch": base, "title": title, "description": body}
    else:
        path = f"{project.api_path}/pulls"
        value = {"head": head, "base": base, "title": title, "body": body}
        if project.forge.kind == "github":
            value["draft"] = True
    with ForgeClient(project.forge) as client:
        opened = client.post(path, value, f"a pull request from {head}")
    address = (
        opened.get("web_url" if project.forge.kind == "gitlab" else "html_url") if isinstance(opened, dict) else ""
    )
    return address if isinstance(address, str) and address else f"a pull request of {head} at {project.forge.host}"
