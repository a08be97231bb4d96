"""An issue at a forge, with its comments, labels and linked pull requests, as the REST APIs tell it."""

from __future__ import annotations

import dataclasses
from typing import Any

from m3agent.errors import M3Error
from m3agent.forge.access import with_token
from m3agent.forge.client import MAX_PAGES, ForgeClient
from m3agent.forge.place import Project


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundIssue:
    """What the forge holds, as it is: written by strangers, neither cleaned nor bounded.

    `comments` begin with their author's name; `linked` are pull requests that speak of the issue, one line each;
    `notes` say what could not be read.
    """

    title: str
    body: str
    url: str
    comments: tuple[str, ...]
    labels: tuple[str, ...]
    linked: tuple[str, ...]
    notes: tuple[str, ...]


def fetch_issue(project: Project, number: int) -> FoundIssue:
    """The issue `number` of a project. Errors: M3Error with one line; exit code 75 when the forge cannot be reached."""
    forge = with_token(project.forge)
    what = f"issue {number} of {project.path}"
    path = f"{project.api_path}/issues/{number}"
    on_gitlab = forge.kind == "gitlab"
    notes: list[str] = []
    with ForgeClient(forge) as client:
        issue = client.get(path, what)
        if not isinstance(issue, dict):
            raise M3Error(f"{forge.host} did not answer with an issue for {what}")
        comments: list[Any] = []
        if issue.get("user_notes_count" if on_gitlab else "comments"):
            address = f"{path}/notes?sort=asc&order_by=created_at" if on_gitlab else f"{path}/comments"
            pages = list(client.pages(address, f"comments of {what}"))
            comments = [comment for page in pages for comment in page if isinstance(comment, dict)]
            if len(pages) == MAX_PAGES:
                notes.append(f"of the comments only the first {len(comments)} were fetched")
        try:
            linked = _linked_on_gitlab(client, path) if on_gitlab else _linked(client, path)
        except M3Error as error:
            linked = ()
            notes.append(f"linked pull requests are not known: {error}")
    return FoundIssue(
        title=_text(issue.get("title")),
        body=_text(issue.get("description" if on_gitlab else "body")),
        url=_text(issue.get("web_url" if on_gitlab else "html_url")),
        comments=tuple(_comment(comment) for comment in comments if not comment.get("system")),
        labels=tuple(_label(label) for label in issue.get("labels") or ()),
        linked=linked,
        notes=tuple(notes),
    )


def _linked(client: ForgeClient, path: str) -> tuple[str, ...]:
    """Pull requests in the timeline: GitHub tells them as `cross-referenced`, Gitea as `pull_ref`."""
    found: dict[str, None] = {}
    for page in client.pages(f"{path}/timeline", "the timeline"):
        for event in page:
            kind = event.get("event") or event.get("type")
            other = (event.get("source") or {}).get("issue") if kind == "cross-referenced" else event.get("ref_issue")
            if kind in ("cross-referenced", "pull_ref") and other and other.get("pull_request"):
                found[_pull_request(f"#{other.get('number')}", other)] = None
    return tuple(found)


def _linked_on_gitlab(client: ForgeClient, path: str) -> tuple[str, ...]:
    pages = client.pages(f"{path}/related_merge_requests", "related merge requests")
    return tuple(_pull_request(f"!{request.get('iid')}", request) for page in pages for request in page)


def _pull_request(name: str, value: dict[str, Any]) -> str:
    return f"{name} {_text(value.get('title'))} ({_text(value.get('state'))})"


def _comment(comment: dict[str, Any]) -> str:
    author = comment.get("user") or comment.get("author") or {}
    name = author.get("login") or author.get("username") or "someone"
    return f"{name}: {_text(comment.get('body'))}"


def _label(label: Any) -> str:
    return _text(label.get("name")) if isinstance(label, dict) else _text(label)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
