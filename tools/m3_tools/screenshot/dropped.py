"""A path as people paste and drop it: quoted, escaped for a shell, as a file: address, or below their home."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit


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
