"""What a reader of an issue's page would not see, taken out of its text and told.

HTML comments, hidden elements, descriptions of pictures, titles of link definitions, and characters without a shape.
Code is shown as it is written on the page, so markup in it stays. This is not the wall: whatever remains is still the
text of a stranger, who may grant nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from markdown_it import MarkdownIt

MAX_SHOWN, MAX_SHOWN_CHARS = 3, 100
_IGNORABLE = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
"""Letters and marks that are drawn as nothing, apart from those whose category says it."""
_PIECE = re.compile(
    r"(?P<code>(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)(?P=ticks)(?!`))"
    r"|(?P<comment><!--.*?(?:-->|\Z))"
    r"|(?P<image>!\[(?P<alt>[^\]]*)\]\(\s*(?P<src>[^\s)]*)[^)]*\))"
    r"|(?P<definition>^[ ]{0,3}\[[^\]\n]+\]:[ \t]*\S+\s+(?:\"[^\"]*\"|'[^']*'|\([^)]*\))[ \t]*$)"
    r"|(?P<tag></?(?P<name>[A-Za-z][\w-]*)(?:[^<>\"']|\"[^\"]*\"|'[^']*')*>)",
    re.DOTALL | re.MULTILINE,
)
_NEVER_SHOWN = frozenset({"script", "style", "template", "title", "noscript", "head", "picture"})
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_HIDDEN = re.compile(
    r"\shidden(?=[\s=/>])|aria-hidden\s*=\s*[\"']?true"
    r"|style\s*=.*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|(?:opacity|font-size|(?:max-)?height|width)\s*:\s*0(?![.\d]*[1-9]))",
    re.IGNORECASE | re.DOTALL,
)
_DESCRIPTION = re.compile(
    r"\s(?:alt|title|aria-label|placeholder|data-[\w-]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')", re.IGNORECASE
)
_ANY_MARKUP = re.compile(r"<(?=[!/A-Za-z])|\](?=[(:])")
_MODEL_MARK = re.compile(r"\](?=<\]|~!b\[|~b\])|\[(?=>\[|e~\[)|<(?=/?mm:think>)")
"""How the marks of M3's conversations begin."""


def visible_text(text: str) -> tuple[str, list[str]]:
    """The text as a reader of the page sees it, and one line for each kind of thing that was taken out."""
    removed: dict[str, list[str]] = {}
    text = _without_invisible(text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff"), removed)
    marks = 0
    for _ in range(10):  # taking one out, or a mark apart, can make another of what stood around it
        apart, found = _MODEL_MARK.subn(r"\g<0> ", text)
        marks += found
        kept = _without_markup(apart, removed)
        if kept == text and not found:
            break
        text = kept
    else:  # built to go on for ever: then nothing of it is markup any more
        text, found = _MODEL_MARK.subn(r"\g<0> ", _ANY_MARKUP.sub(r"\g<0> ", text))
        marks += found
    notes = [f"hidden text was taken out of the issue: {len(v)} {what}(s): {_shown(v)}" for what, v in removed.items()]
    if marks:
        notes.append(f"marks of the model's own format were taken apart in the issue: {marks}")
    return text, notes


def _without_invisible(text: str, removed: dict[str, list[str]]) -> str:
    """Without zero-width, bidirectional, tag and control characters, and characters without a meaning."""
    kept = []
    for char in text:
        invisible = unicodedata.category(char) in ("Cf", "Cc", "Co", "Cn", "Cs") and char not in "\n\t"
        if not invisible and char not in _IGNORABLE:
            kept.append(char)
        elif char not in "\ufe0f\u200d":  # parts of ordinary emoji: not worth a word
            tag = 0xE0020 <= ord(char) <= 0xE007E
            removed.setdefault("invisible character", []).append(
                chr(ord(char) - 0xE0000) if tag else f"U+{ord(char):04X}"
            )
    return "".join(kept)


def _without_markup(text: str, removed: dict[str, list[str]]) -> str:
    kept: list[str] = []
    hidden = ""  # the name of the element that hides what comes, and how deep it stands in others of its name
    depth = 0
    swallowed = ""

    def put(piece: str) -> None:
        nonlocal swallowed
        if hidden:
            swallowed += piece
        else:
            kept.append(piece)

    for what, piece, match in _pieces(text):
        name = match["name"].lower() if match and what == "tag" else ""
        if hidden:
            put(piece)
            if name == hidden:
                depth += -1 if piece.startswith("</") else 1
            if depth == 0:
                removed.setdefault("hidden element", []).append(swallowed)
                hidden = swallowed = ""
        elif match is None or what == "code":
            put(piece)
        elif what == "tag" and not piece.startswith("</") and _hides(name, piece):
            if name in _VOID:
                removed.setdefault("hidden element", []).append(piece)
            else:
                hidden, depth, swallowed = name, 1, piece
        elif what == "tag":
            for a, b in _DESCRIPTION.findall(piece):
                _note_description(a or b, removed)
            put(_DESCRIPTION.sub("", piece))
        elif what == "image":
            _note_description(match["alt"], removed)
            put(f"![]({match['src']})")
        elif what == "definition":
            removed.setdefault("link definition", []).append(piece)
        else:
            removed.setdefault("HTML comment", []).append(piece.removeprefix("<!--").removesuffix("-->"))
    if hidden:  # never closed: a browser hides all that follows
        removed.setdefault("hidden element", []).append(swallowed)
    return "".join(kept)


def _pieces(text: str) -> Iterator[tuple[str, str, re.Match[str] | None]]:
    """The text in pieces: (kind, text, match), where plain text and blocks of code have no match."""
    markdown = MarkdownIt("commonmark")
    markdown.core.ruler.disable("inline")
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    blocks = [t.map for t in markdown.parse(text) if t.type in ("fence", "code_block") and t.map is not None]
    at = 0
    for start, end in [*blocks, [len(lines), len(lines)]]:
        part = "".join(lines[at:start])
        place = 0
        for match in _PIECE.finditer(part):
            if match.start() > place:
                yield "text", part[place : match.start()], None
            kind = next(k for k in ("code", "comment", "image", "definition", "tag") if match[k] is not None)
            yield kind, match[0], match
            place = match.end()
        if place < len(part):
            yield "text", part[place:], None
        if block := "".join(lines[start:end]):
            yield "text", block, None
        at = max(at, end)


def _hides(name: str, tag: str) -> bool:
    return name in _NEVER_SHOWN or _HIDDEN.search(tag) is not None


def _note_description(text: str, removed: dict[str, list[str]]) -> None:
    if len(text) > 30:  # `image` and file names are not worth a word
        removed.setdefault("description", []).append(text)


def _shown(removed: list[str]) -> str:
    """What was taken out, short, for the person alone."""
    if all(text.startswith("U+") or len(text) == 1 for text in removed):
        spelt = "".join(text for text in removed if len(text) == 1)
        names = ", ".join(dict.fromkeys(text for text in removed if len(text) > 1))
        return ", ".join(filter(None, [names[:MAX_SHOWN_CHARS], spelt and f"spelling {spelt[:MAX_SHOWN_CHARS]!r}"]))
    short = [" ".join(text.split())[:MAX_SHOWN_CHARS] for text in removed[:MAX_SHOWN]]
    return " · ".join(short) + (" · …" if len(removed) > MAX_SHOWN else "")
