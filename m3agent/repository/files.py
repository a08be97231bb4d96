"""Which files of a folder are its source: ignored, binary, secret and huge ones are left out, and counted."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from m3_tools.secret import Secrets

MAX_FILE_BYTES = 256_000
NEVER_COMMITTED = 1 << 62
"""Later than any commit: what was changed or added since then stands last."""
GENERATED_NAMES = (
    "*.lock",
    "package-lock.json",
    "pnpm-lock.yaml",
    "*.min.js",
    "*.min.css",
    "*.map",
    "*.svg",
    "*.ipynb",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One readable text file. `path` is relative with forward slashes; `changed` orders files by last change."""

    path: str
    text: str
    changed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """The source of a repository, least recently changed first; `left_out` counts the rest by reason."""

    files: tuple[SourceFile, ...]
    left_out: Counter[str]


def source_files(root: Path, secrets: Secrets = Secrets()) -> SourceFiles:
    """Read the source files below `root`; those that `secrets` guards are left out, the texts are redacted.

    The order is stable: by the time of the last commit that touched a file, then by path; files that were changed or
    added since come last, because they are the ones that change again. Without git everything counts as changed.
    """
    paths = git_files(root)
    times: dict[str, int] = commit_times(root) if paths is not None else {}
    found: list[SourceFile] = []
    left_out: Counter[str] = Counter()
    for path in sorted(set(_walk(root) if paths is None else paths)):
        text, reason = (None, "secret") if secrets.guards(path) else read_source(root / path)
        if text is None:
            left_out[reason] += 1
        else:
            found.append(SourceFile(path=path, text=secrets.redact(text), changed=times.get(path, NEVER_COMMITTED)))
    found.sort(key=lambda file: (file.changed, file.path))
    return SourceFiles(files=tuple(found), left_out=left_out)


def file_names(root: Path, secrets: Secrets = Secrets()) -> list[str]:
    """All files below `root` that git does not ignore, sorted; without git those that its .gitignore leaves.

    Those that `secrets` guards are left out.
    """
    paths = git_files(root)
    return sorted({path for path in (_walk(root) if paths is None else paths) if not secrets.guards(path)})


def read_source(path: Path) -> tuple[str | None, str]:
    """The text of a file, or None and why it is left out."""
    name = path.name.lower()
    if any(fnmatch(name, pattern) for pattern in GENERATED_NAMES):
        return None, "generated"
    try:
        if path.is_symlink() or not path.is_file():
            return None, "no regular file"
        if path.stat().st_size > MAX_FILE_BYTES:
            return None, "large"
        data = path.read_bytes()
    except OSError:
        return None, "unreadable"
    if b"\0" in data:
        return None, "binary"
    try:
        return data.decode("utf-8"), ""
    except UnicodeDecodeError:
        return None, "binary"


def git_files(root: Path) -> list[str] | None:
    """Tracked and untracked files that git does not ignore, or None where there is no git repository."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return None if listed is None else [os.fsdecode(name) for name in listed.split(b"\0") if name]


def commit_times(root: Path) -> dict[str, int]:
    """Seconds of the last commit that touched each file; files with uncommitted changes are left out."""
    log = _git(root, "log", "-n", "20000", "--format=format:%x01%ct", "--name-only", "-z", "--relative", "--no-renames")
    times: dict[str, int] = {}
    now = 0
    for field in (log or b"").replace(b"\n", b"\0").split(b"\0"):
        if field.startswith(b"\1"):
            now = int(field[1:])
        elif field:
            times.setdefault(os.fsdecode(field), now)
    for name in (_git(root, "diff", "--name-only", "-z", "--relative", "HEAD") or b"").split(b"\0"):
        times.pop(os.fsdecode(name), None)
    return times


def _git(root: Path, *arguments: str) -> bytes | None:
    """git's output, or None when it fails. Settings of the repository that run programs are switched off."""
    command = [
        "git",
        "-c",
        "core.fsmonitor=",
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "core.quotePath=false",
        *arguments,
    ]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _walk(root: Path) -> Iterable[str]:
    """All files below a folder that is no git repository, honouring its .gitignore; hidden folders are passed over."""
    import pathspec

    ignore = root / ".gitignore"
    lines = ignore.read_text(encoding="utf-8", errors="replace").splitlines() if ignore.is_file() else []
    spec = pathspec.PathSpec.from_lines("gitignore", [*lines, "__pycache__/", "node_modules/"])
    for folder, folders, names in os.walk(root):
        here = Path(folder).relative_to(root)
        folders[:] = sorted(
            d for d in folders if not d.startswith(".") and not spec.match_file(f"{(here / d).as_posix()}/")
        )
        yield from (path for name in names if not spec.match_file(path := (here / name).as_posix()))
