"""Executed bugs as values and as a file; `training.execute` makes them."""

from __future__ import annotations

import dataclasses
import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from training.bugs import Bug, Repair
from training.sources import PackageRecord


@dataclasses.dataclass(frozen=True)
class Executed:
    """A damaged function and what its tests said. `source` is the sound function, shown from line `first_line` on.

    `examples` are (call, expected) pairs of its docstring; `report` is the text of the `test` tool, `total` the number
    of tests, all of which pass without the bug.
    """

    package: str
    path: str
    name: str
    source: str
    first_line: int
    file_lines: int
    functions: tuple[str, ...]
    examples: tuple[tuple[str, str], ...]
    bug: Bug
    report: str
    error: str
    total: int


def write_executed(records: Iterable[PackageRecord], found: Iterable[Executed], path: Path) -> None:
    """One JSON line with the packages, then one a bug; bugs of one function stand together, since they compress so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8", preset=9) as out:
        out.write(json.dumps([dataclasses.asdict(r) for r in records]) + "\n")
        for executed in sorted(found, key=lambda e: (e.path, e.name, e.bug.source)):
            out.write(json.dumps(dataclasses.asdict(executed)) + "\n")


def read_executed(path: Path) -> tuple[list[PackageRecord], list[Executed]]:
    """What `write_executed` wrote."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        records = [PackageRecord(**entry) for entry in json.loads(next(lines))]
        return records, [_read(json.loads(line)) for line in lines]


def _read(entry: dict[str, Any]) -> Executed:
    """From JSON, which knows neither tuples nor classes."""
    bug = entry["bug"]
    whole = Bug(**{**bug, "repair": Repair(**bug["repair"]), "added": tuple(bug["added"])})
    examples = tuple((call, result) for call, result in entry["examples"])
    return Executed(**{**entry, "bug": whole, "examples": examples, "functions": tuple(entry["functions"])})
