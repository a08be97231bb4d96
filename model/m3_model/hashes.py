"""Whether a checkpoint's files are the published ones: their hashes, where something beside them tells what they are.

A `NAME.sha256` beside the file tells it, or what huggingface_hub leaves behind: the name of the blob that a link in its
cache leads to, or the metadata that it writes into a folder. Its hashes are SHA-256 for large files, and git's for
small ones.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

CHUNK_BYTES = 8 << 20


def files_with_hashes(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """The files of a checkpoint in the order of their names, each with its published hash or None."""
    for path in sorted(folder.iterdir()):
        if path.suffix in (".safetensors", ".json", ".jinja", ".txt") and path.is_file():
            yield path, published_hash(path)


def published_hash(path: Path) -> str | None:
    """Lower-case hexadecimal digits, 64 of SHA-256 or 40 of git's SHA-1. Errors: ValueError for a broken .sha256."""
    beside = path.with_name(path.name + ".sha256")
    if beside.is_file():
        found = re.match(r"([0-9a-f]{64})\b", beside.read_text(encoding="utf-8", errors="replace").lower())
        if not found:
            raise ValueError(f"{beside} does not begin with a SHA-256 of 64 digits")
        return found[1]
    metadata = path.parent / ".cache" / "huggingface" / "download" / f"{path.name}.metadata"
    if metadata.is_file():
        lines = metadata.read_text(encoding="utf-8", errors="replace").splitlines()
        candidate = lines[1].strip() if len(lines) > 1 else ""
    elif path.is_symlink() and path.resolve().parent.name == "blobs":
        candidate = path.resolve().name
    else:
        return None
    return candidate if re.fullmatch(r"[0-9a-f]{64}|[0-9a-f]{40}", candidate) else None


def matches(path: Path, published: str) -> bool:
    """Read the whole file and compare. Errors: OSError."""
    if len(published) == 64:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest() == published
