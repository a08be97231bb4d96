"""Which paths a tool may touch: names are resolved first and judged afterwards.

Not covered: a folder that another process swaps for a symlink between the judgement and the use. The sandbox is the
boundary; this keeps an honest program and a mistaken model inside the work tree.
"""

from __future__ import annotations

import os
from pathlib import Path

from m3_tools.base import MissingPath, ToolContext, ToolError
from m3_tools.output import SPILL_PREFIX

PROTECTED = frozenset({".git", ".m3"})


def resolve_inside(root: Path, path: str) -> Path:
    """The real path that `path` names, every symlink followed; it need not exist.

    `path` is relative to `root` or absolute. Raises ToolError if it is empty, holds a NUL, or leads out of `root`.
    """
    if not path.strip():
        raise ToolError("The path is empty. Give a path relative to the repository, for instance src/app.py.")
    if "\0" in path:
        raise ToolError("The path holds a NUL character; no file can have that name.")
    try:
        real_root = os.path.realpath(root)
        real = os.path.realpath(os.path.join(real_root, path))
    except (OSError, UnicodeEncodeError, ValueError) as error:
        raise ToolError(f"{printable(path)} is not a usable path: {error}") from error
    if real != real_root and os.path.commonpath([real_root, real]) != real_root:
        raise ToolError(f"{printable(path)} leads outside the repository. Only files inside it can be used.")
    return Path(real)


def resolve_for_reading(context: ToolContext, path: str) -> Path:
    """Like `resolve_inside`, but also takes what commands printed at length: a path in `spill_dir`, by its short name
    or absolute. A file of secrets is refused.
    """
    spill = _spill_dir(context)
    if path == SPILL_PREFIX[:-1] or path.startswith(SPILL_PREFIX):
        return resolve_inside(spill, path[len(SPILL_PREFIX) :] or ".")
    holds_root = Path(os.path.realpath(context.root)).is_relative_to(spill)
    if os.path.isabs(path) and not holds_root and Path(os.path.normpath(path)).is_relative_to(spill):
        return resolve_inside(spill, path)
    return _unguarded(context, path, resolve_inside(context.root, path))


def _unguarded(context: ToolContext, path: str, real: Path) -> Path:
    """The resolved path. Raises ToolError for a file of secrets, whether it is asked for by name or through a link."""
    top = os.path.realpath(context.root)
    asked = os.path.relpath(os.path.join(top, path), top)
    names = (asked, os.path.relpath(real, top))
    if any(context.secrets.guards(Path(name).as_posix()) for name in names) and not real.is_dir():
        raise ToolError(
            f"{printable(path)} is named like a file of secrets and is not shown. Go on without it; the person can "
            "allow it with not_secret in the config file."
        )
    return real


def resolve_folder(context: ToolContext, path: str) -> Path:
    """The folder of the work tree that `path` names. Raises ToolError if there is none."""
    folder = resolve_inside(context.root, path)
    if not folder.exists():
        raise MissingPath(relative_name(context.root, folder), f"{printable(path)} does not exist.")
    if not folder.is_dir():
        raise ToolError(f"{printable(path)} is not a folder.")
    return folder


def resolve_for_writing(context: ToolContext, path: str) -> Path:
    """Like `resolve_changeable`, but also refuses the output of commands, and a file of secrets that exists."""
    spill = _spill_dir(context)
    in_spill = resolve_inside(context.root, path).is_relative_to(spill)
    holds_root = Path(os.path.realpath(context.root)).is_relative_to(spill)
    if path.startswith(SPILL_PREFIX) or (in_spill and not holds_root):
        raise ToolError(f"{printable(path)} is what a command printed; it can be read and not changed.")
    real = resolve_changeable(context.root, path)
    return _unguarded(context, path, real) if os.path.lexists(real) else real


def resolve_changeable(root: Path, path: str) -> Path:
    """Like `resolve_inside`, but also refuses the root itself and what git and m3 keep for themselves."""
    real = resolve_inside(root, path)
    parts = real.relative_to(os.path.realpath(root)).parts
    if not parts:
        raise ToolError("The path is the repository itself; give the path of a file in it.")
    kept = next((p for p in parts if p.lower() in PROTECTED), None)
    if kept is not None:
        raise ToolError(f"{printable(path)} lies in {kept}, which tools do not write to.")
    return real


def shown_name(context: ToolContext, path: Path) -> str:
    """A path that may be read as the model sees it: relative to the root, or the short name of a command's output."""
    spill = _spill_dir(context)
    if path.is_relative_to(os.path.realpath(context.root)) or not path.is_relative_to(spill):
        return relative_name(context.root, path)
    return SPILL_PREFIX + printable(path.relative_to(spill).as_posix())


def _spill_dir(context: ToolContext) -> Path:
    return Path(os.path.realpath(context.spill_dir))


def relative_name(root: Path, path: Path) -> str:
    """`path` as the model sees it: relative to the root, with forward slashes."""
    return printable(path.relative_to(os.path.realpath(root)).as_posix())


def printable(name: str) -> str:
    """A file name on one line and in valid Unicode; what cannot be shown as itself is escaped."""
    try:
        text = os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # no file can have that name; a model may still ask for it
        text = name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
