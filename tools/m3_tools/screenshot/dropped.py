"""A path as people paste and drop it: quoted, escaped for a shell, as a file: address, or below their home."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
MAX_CHARACTERS = 8_000
"""A longer text is no path."""


def dropped_pictures(text: str) -> list[Path]:
    """The paths of pictures that the text consists of, by their names alone; none for any other text."""
    if len(text) > MAX_CHARACTERS or "\n" in text.strip() or "\0" in text:
        return []
    try:  # several at first: two paths also look like one with spaces in it
        parts = [dropped_path(shlex.quote(part)) for part in shlex.split(text)]
    except ValueError:
        parts = []
    if len(parts) < 2 or not all(map(_is_picture, parts)):
        parts = [dropped_path(text)]
    return [path for path in parts if _is_picture(path)]


def _is_picture(path: Path) -> bool:
    return path.is_absolute() and path.suffix.lower() in SUFFIXES


def dropped_path(text: str) -> Path:
    """The path that the text means; nothing is looked up but the home folder."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    elif not text.lower().startswith("file:"):
        text = re.sub(r"\\(.)", r"\1", text)  # a terminal escapes spaces and more where a file is dropped
    if text.lower().startswith("file:"):
        text = unquote(urlsplit(text).path)
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:  # no such user
        return path
