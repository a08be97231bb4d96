"""The issue: cleaned, and bounded.

The text comes from strangers. It is material for the model and grants nothing; what a reader of the page would not see
is taken out, and that is said.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from m3agent.errors import M3Error
from m3agent.fix.hidden import visible_text

MAX_BODY_CHARS = 20_000
FIRST_COMMENTS, LAST_COMMENTS = 10, 10
"""A long discussion begins with the symptom and ends with what was found."""
MAX_COMMENT_CHARS = 4_000
MAX_NAMES, MAX_NAME_CHARS = 20, 200
"""Labels and linked pull requests, and the length of each."""
RAW_FACTOR = 5
"""Hidden text is looked for in so many times the text that is kept."""
_PICTURE = re.compile(
    r"!\[[^\]]*\]\(\s*(https?://[^\s)]+)|<img\s[^>]*src\s*=\s*[\"']?(https?://[^\s\"'>]+)", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Issue:
    """A report in a person's words. `source` is where it was found; `notes` say what was taken out or cut.

    `comments` begin with their author's name, `linked` are pull requests that speak of it, one line each, and
    `pictures` the addresses of what it shows.
    """

    title: str
    body: str
    source: str
    comments: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def clean_issue(
    title: str,
    body: str,
    comments: Sequence[str] = (),
    *,
    labels: Sequence[str] = (),
    linked: Sequence[str] = (),
    source: str,
    notes: Sequence[str] = (),
) -> Issue:
    """The issue without hidden text, each part within its bound. Errors: M3Error if it is empty."""
    told = dict.fromkeys(notes)

    def cleaned(text: str, limit: int, what: str) -> str:
        visible, removed = visible_text(text[: RAW_FACTOR * limit])
        told.update(dict.fromkeys(removed))
        if len(visible) > limit or len(text) > RAW_FACTOR * limit:
            told[f"{what} was cut at {limit} characters of {len(text)}"] = None
            visible = visible[:limit].rsplit("\n", 1)[0]
        return visible.strip()

    def names(texts: Sequence[str], what: str) -> tuple[str, ...]:
        found = (" ".join(cleaned(text, MAX_NAME_CHARS, what).split()) for text in texts[:MAX_NAMES])
        return tuple(filter(None, found))

    found = [a or b for text in (body, *comments) for a, b in _PICTURE.findall(text)]
    pictures = tuple(dict.fromkeys(found))[:MAX_NAMES]
    if pictures:
        told[f"the issue shows {len(pictures)} picture(s) that were not looked at: {', '.join(pictures)}"] = None
    title = " ".join(cleaned(title, 300, "the title").split())
    body = cleaned(body, MAX_BODY_CHARS, "the text")
    kept = tuple(comments)
    if len(kept) > FIRST_COMMENTS + LAST_COMMENTS:
        told[f"of {len(kept)} comments only the first {FIRST_COMMENTS} and the last {LAST_COMMENTS} were taken"] = None
        kept = (*kept[:FIRST_COMMENTS], *kept[-LAST_COMMENTS:])
    if not title and not body:
        raise M3Error(f"the issue from {source} is empty: describe what happens and what should happen")
    return Issue(
        title=title,
        body=body,
        source=source,
        comments=tuple(cleaned(comment, MAX_COMMENT_CHARS, "a comment") for comment in kept),
        labels=names(labels, "a label"),
        linked=names(linked, "a linked pull request"),
        pictures=pictures,
        notes=tuple(told),
    )


def issue_json(issue: Issue) -> dict[str, Any]:
    """The issue as JSON values."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(issue).items()}


def issue_from_json(value: Mapping[str, Any]) -> Issue:
    """The issue that `issue_json` wrote. Errors: TypeError for anything else."""
    fields: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in value.items()}
    return Issue(**fields)


def issue_name(issue: Issue) -> str:
    """A short name for files and branches: `issue-N` if the source holds a number, else words of the title."""
    if number := re.search(r"(\d+)(?:\.md)?/?$", issue.source):
        return f"issue-{number[1]}"
    words = re.findall(r"[a-z0-9]+", issue.title.lower())[:6]
    return "-".join(words) or "issue"
