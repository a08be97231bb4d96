"""Ids of tests that do not exist, and the ids that were probably meant."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from m3_tools.base import ToolContext, ToolError
from m3_tools.files import read_bytes
from m3_tools.nearest import nearest
from m3_tools.report import is_test_file
from m3_tools.ripgrep import list_names
from m3_tools.symbols import definitions
from m3_tools.text import shown

MAX_TOLD = 5
_MAX_FILES = 1000
_MAX_FILE_BYTES = 2**20
_PARAMETERS = re.compile(r"\[.*\]$", re.DOTALL)


async def unknown_ids(
    context: ToolContext, wanted: Sequence[str], ran: Collection[str], *, is_dotted: bool
) -> dict[str, list[str]]:
    """The ids in `wanted` that name no test, each with the nearest that do.

    `ran` holds the ids of tests that ran, now or before; `is_dotted` says that ids look as unittest writes them.
    """
    pending = [i for i in wanted if not any(selects(i, other) for other in ran)]
    if not pending:
        return {}
    known = list(dict.fromkeys([*ran, *await _written_ids(context, is_dotted=is_dotted)]))
    unknown = [i for i in pending if not any(selects(_PARAMETERS.sub("", i), other) for other in known)]
    # A test that exists with other parameters; where another id stopped the run it may be right.
    unknown = unknown or [i for i in pending if i.endswith("]")]
    names = {_as_path(i): i for i in known}
    return {i: [names[n] for n in nearest(_as_path(i), list(names))] for i in unknown if not _is_there(context, i)}


def selects(wanted: str, test_id: str) -> bool:
    """Whether the id `wanted` (of a test, class, file or folder) stands for the test `test_id`."""
    wanted = wanted.rstrip("/")
    return test_id == wanted or (test_id.startswith(wanted) and test_id[len(wanted)] in "/:.[")


def describe_unknown(unknown: Mapping[str, Sequence[str]]) -> str:
    """A line an id, for the model."""
    rows = [
        f"there is no test {shown(i)}" + (f"; nearest: {', '.join(map(shown, near))}" if near else "")
        for i, near in list(unknown.items())[:MAX_TOLD]
    ]
    return "\n".join([*rows, *([f"and {len(unknown) - MAX_TOLD} more"] if len(unknown) > MAX_TOLD else [])])


def _is_there(context: ToolContext, test_id: str) -> bool:
    """Whether the id is a file or folder: it exists, even if no test was found in it."""
    return "::" not in test_id and (context.root / test_id).exists()


def _as_path(test_id: str) -> str:
    """The id in the form that `nearest` compares: parts between slashes."""
    path, colons, name = test_id.partition("::")
    if colons:
        return f"{path}/{re.sub('::|[.]', '/', name)}"
    return test_id if "/" in test_id or test_id.endswith(".py") else test_id.replace(".", "/")


async def _written_ids(context: ToolContext, *, is_dotted: bool) -> Iterable[str]:
    """The ids of Python tests as the files have them, without parameters, in the form of pytest or of unittest."""
    found: list[str] = []
    names = [n for n in await list_names(context, context.root) if n.endswith(".py") and is_test_file(n)]
    for name in names[:_MAX_FILES]:
        try:
            inside = definitions(name, read_bytes(context.root / name, name, limit=_MAX_FILE_BYTES))
        except ToolError:
            continue
        if not is_dotted:
            found.append(name)
        tests = [d.name for d in inside if d.name.rpartition(".")[2].startswith("test")]
        prefix = f"{PurePosixPath(name).stem}." if is_dotted else f"{name}::"
        found += [prefix + (t if is_dotted else t.replace(".", "::")) for t in tests]
    return found
