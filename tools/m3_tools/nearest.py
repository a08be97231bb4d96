"""Names that exist, near to one that does not."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Iterable, Sequence

from m3_tools.base import ToolContext, ToolError
from m3_tools.paths import printable
from m3_tools.ripgrep import list_names

MAX_NEAREST = 3
_MAX_COMPARED = 20_000
_CUTOFF = 0.6


async def nearest_paths(context: ToolContext, name: str) -> list[str]:
    """At most three files or folders of the repository whose paths are most like `name`; ignored ones do not count."""
    try:
        files = [printable(name) for name in await list_names(context, context.root)]
    except ToolError:
        return []
    folders = {parent + "/" for file in files for parent in _parents(file)}
    return nearest(name.rstrip("/"), [*files, *sorted(folders)])


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """The names in `known` most like `name`, best first: by their last part, then by the whole."""
    wanted = posixpath.basename(name).lower()
    by_last: dict[str, list[str]] = {}
    for other in known:
        by_last.setdefault(posixpath.basename(other.rstrip("/")).lower(), []).append(other)
    found = _best(name, by_last.get(wanted, []))
    found += [o for last in _close(wanted, by_last) if last != wanted for o in _best(name, by_last[last])]
    if len(found) < MAX_NEAREST:  # the slow way comes last
        found += [other for other in _close(name, known) if other not in found]
    return found[:MAX_NEAREST]


def _close(name: str, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(known)[:_MAX_COMPARED], n=MAX_NEAREST, cutoff=_CUTOFF)


def _best(name: str, known: Sequence[str]) -> list[str]:
    """The known paths in the order of their likeness to `name`."""
    return sorted(known, key=lambda other: -difflib.SequenceMatcher(None, name, other).ratio())[:MAX_NEAREST]


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]
