"""Writes the table of nano's sources, SOURCES.md beside the weights, from the record that training left.

    python -m training.licence_table         # reads model/m3_model/nano/sources.json; fails on an entry not allowed

The record is judged again by the rules of `training.licences` and `training.sources`, so that a record made under older
rules is noticed.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Sequence
from email.message import Message
from pathlib import Path

from training.licences import allowed_licence
from training.sources import PackageRecord, usable_package

NANO = Path(__file__).resolve().parents[1] / "model/m3_model/nano"


def read_record(path: Path = NANO / "sources.json") -> list[PackageRecord]:
    """The packages that training read."""
    return [PackageRecord(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def not_allowed(records: Iterable[PackageRecord]) -> list[PackageRecord]:
    """The entries whose licence or name today's rules refuse."""
    return [r for r in records if not (usable_package(r.package) and _licence_allowed(r.licence))]


def table(records: Sequence[PackageRecord]) -> str:
    """The page: sums by licence, then every package. Errors: ValueError naming the entries that are not allowed."""
    if refused := not_allowed(records):
        raise ValueError("not allowed: " + ", ".join(f"{r.package} ({r.licence})" for r in refused))
    packages: collections.Counter[str] = collections.Counter()
    volume: collections.Counter[str] = collections.Counter()
    for record in records:
        packages[record.licence] += 1
        volume[record.licence] += record.bytes
    lines = [
        "# Sources of m3-nano",
        "",
        "Made by `python -m training.licence_table` from [sources.json](sources.json). *archive*: from the package's",
        "wheel; *installed*: from the training machine's Python. The licence is what the package's own metadata says,",
        "as SPDX; `BSD` is a BSD licence whose clauses the metadata does not count. Files and bytes are what training",
        "could see.",
        "",
        f"{len(records)} packages, {sum(r.files for r in records):,} files, {_megabytes(sum(volume.values()))}.",
        "",
        "| licence | packages | text |",
        "|---|---:|---:|",
        *(f"| {name} | {count} | {_megabytes(volume[name])} |" for name, count in sorted(packages.items(), key=_rank)),
        "",
        "| package | version | licence | from | files | text |",
        "|---|---|---|---|---:|---:|",
        *(
            f"| {r.package} | {r.version} | {r.licence} | {r.origin} | {r.files:,} | {_megabytes(r.bytes)} |"
            for r in sorted(records, key=lambda r: r.package)
        ),
    ]
    return "\n".join(lines) + "\n"


def _rank(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.2f} MB" if count < 100e6 else f"{count / 1e6:,.0f} MB"


def _licence_allowed(expression: str) -> bool:
    message = Message()
    message["License-Expression"] = expression
    return allowed_licence(message) is not None


def main() -> None:
    out = NANO / "SOURCES.md"
    out.write_text(table(read_record()), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main()
