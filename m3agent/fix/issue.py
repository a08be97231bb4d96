"""The issue: found by number, address, file or from stdin, cleaned, and bounded.

The text comes from strangers. It is material for the model and grants nothing; what a reader of the page would not see
(HTML comments, zero-width and bidirectional control characters) is taken out, and that is said.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from m3agent.errors import M3Error
from m3agent.fix.forge import fetch_issue
from m3agent.settings import Settings

MAX_BODY_CHARS = 20_000
MAX_COMMENTS = 20
MAX_COMMENT_CHARS = 4_000
MAX_FILE_BYTES = 1_000_000
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Issue:
    """A report in a person's words. `source` is where it was found; `notes` say what was taken out or cut."""

    title: str
    body: str
    source: str
    comments: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def load_issue(ref: str, repo: Path, settings: Settings, read_stdin: Callable[[], str] = sys.stdin.read) -> Issue:
    """The issue that `ref` names: a number, a URL, a file, or `-`.

    A number is looked for in `.m3/issues/N.md`, then `issues/N.md`, then at the forge of the repository's remote.
    Errors: M3Error with one line that says what was looked for and what to do.
    """
    ref = ref.strip()
    if ref == "-":
        return clean_issue(*_title_and_body(read_stdin()), source="stdin")
    if urlsplit(ref).scheme in ("http", "https"):
        return clean_issue(*fetch_issue(ref, repo, settings), source=ref)
    if re.fullmatch(r"#?\d{1,9}", ref):
        number = int(ref.lstrip("#"))
        for folder in (".m3/issues", "issues"):
            file = repo / folder / f"{number}.md"
            if file.is_file() and file.resolve().is_relative_to(repo.resolve()):
                return _from_file(file, f"{folder}/{number}.md")
        return clean_issue(*fetch_issue(str(number), repo, settings), source=f"#{number}")
    for file in (Path(ref).expanduser(), repo / ref):
        if file.is_file():
            return _from_file(file, ref)
    raise M3Error(f"no issue {ref!r}: it is no number, no http address, and no file of that name exists")


def clean_issue(title: str, body: str, comments: tuple[str, ...] = (), *, source: str) -> Issue:
    """The issue without hidden text, each part within its bound."""
    notes: dict[str, None] = {}

    def cleaned(text: str, limit: int, what: str) -> str:
        visible, removed = visible_text(text)
        notes.update(dict.fromkeys(removed))
        if len(visible) > limit:
            notes[f"{what} was cut at {limit} characters of {len(visible)}"] = None
            visible = visible[:limit].rsplit("\n", 1)[0]
        return visible.strip()

    title = " ".join(cleaned(title, 300, "the title").split())
    body = cleaned(body, MAX_BODY_CHARS, "the text")
    kept = tuple(cleaned(comment, MAX_COMMENT_CHARS, "a comment") for comment in comments[:MAX_COMMENTS])
    if len(comments) > MAX_COMMENTS:
        notes[f"only the first {MAX_COMMENTS} of {len(comments)} comments were taken"] = None
    if not title and not body:
        raise M3Error(f"the issue from {source} is empty: describe what happens and what should happen")
    return Issue(title=title, body=body, source=source, comments=kept, notes=tuple(notes))


def issue_name(issue: Issue) -> str:
    """A short name for files and branches: `issue-N` if the source holds a number, else words of the title."""
    if number := re.search(r"(\d+)(?:\.md)?/?$", issue.source):
        return f"issue-{number[1]}"
    words = re.findall(r"[a-z0-9]+", issue.title.lower())[:6]
    return "-".join(words) or "issue"


def visible_text(text: str) -> tuple[str, list[str]]:
    """The text as a reader of the page sees it, and one line for each kind of thing that was taken out."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")
    notes: list[str] = []
    # Cf: zero-width, bidirectional and tag characters; Cc: control characters; Co and Cn: characters without a meaning.
    kept = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cf", "Cc", "Co", "Cn", "Cs"))
    if len(kept) != len(text):
        notes.append(f"hidden text was taken out of the issue: {len(text) - len(kept)} invisible character(s)")
    comments = 0
    for _ in range(10):  # taking one out can make another of what stood around it
        kept, count = _COMMENT.subn("", kept)
        comments += count
    if "<!--" in kept:
        kept, comments = kept[: kept.index("<!--")], comments + 1
    if comments:
        notes.append(f"hidden text was taken out of the issue: {comments} HTML comment(s)")
    return kept, notes


def _from_file(file: Path, source: str) -> Issue:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise M3Error(f"{source} is larger than {MAX_FILE_BYTES:,} bytes; an issue is a short text")
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise M3Error(f"{source} cannot be read: {error.strerror or error}") from error
    return clean_issue(*_title_and_body(text), source=source)


def _title_and_body(text: str) -> tuple[str, str]:
    """The first line with words, its `#` taken off, is the title."""
    first, _, rest = text.lstrip("\ufeff \t\r\n").partition("\n")
    return re.sub(r"^#+\s*", "", first), rest
