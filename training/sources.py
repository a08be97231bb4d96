"""Python source that may train m3-nano: installed packages, the standard library, and the carried archive.

Only packages whose own metadata names an allowed licence are read (`training.licences`); vendored copies of other
projects inside them are skipped, since their licence is another's. Held-out packages, on which the model is judged, are
never read, neither as a package nor as a vendored folder. What was read is recorded for the model card.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import lzma
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from training.licences import allowed_licence

HELD_OUT = frozenset(
    {"toolz", "cytoolz", "sortedcontainers", "more-itertools", "boltons", "humanize", "tabulate", "inflection", "attrs"}
    | {"python-slugify", "parse", "textdistance", "click", "requests", "einops", "werkzeug", "typer", "markdown"}
    | {
        "multipledispatch",
        "pyparsing",
        "rich",
        "seaborn",
        "xarray",
        "patsy",
        "formulaic",
        "optax",
        "numpyro",
        "botorch",
    }
    | {"linear-operator"}
)
"""Distributions on which the model is judged; training never reads them."""

HELD_OUT_FOLDERS = frozenset(
    {"toolz", "cytoolz", "tlz", "sortedcontainers", "more_itertools", "boltons", "humanize", "tabulate", "inflection"}
    | {"slugify", "textdistance", "click", "requests", "einops", "werkzeug", "typer", "multipledispatch", "pyparsing"}
    | {"rich", "seaborn", "xarray", "patsy", "formulaic", "optax", "numpyro", "botorch", "linear_operator", "attr"}
    | {"attrs", "markdown"}
)
"""Import names of the same, refused as a folder or module at any depth: other packages vendor some of them."""

REFUSED = frozenset({"hypothesis", "tqdm", "pathspec", "certifi", "numba-cuda", "docutils"})
"""Packages whose metadata alone does not tell their mixed or weak-copyleft licence."""
REFUSED_PREFIXES = ("nvidia-", "cuda-")

VENDORED = frozenset(
    {
        "_vendor",
        "_vendored",
        "vendor",
        "vendored",
        "extern",
        "_extern",
        "externals",
        "_externals",
        "external",
        "_external",
    }
    | {"third_party", "thirdparty", "3rdparty", "thirdparty_files", "bundled", "node_modules", "site-packages"}
    | {"dist-packages", "lib2to3", "enterprise"}
)

MAX_FILE_BYTES = 400_000
SYSTEM_PACKAGES = "/usr/lib/python3/dist-packages"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One module: the distribution it belongs to, its path inside it (posix) and its text."""

    package: str
    path: str
    text: str


@dataclasses.dataclass(kw_only=True)
class PackageRecord:
    """What the model card says of one package; `bytes` counts the text that training could see."""

    package: str
    version: str
    licence: str
    origin: str
    files: int = 0
    bytes: int = 0


def normalised(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return name.lower().replace("_", "-").replace(".", "-")


def usable_package(name: str, *, held_out: bool = False) -> bool:
    """Whether a distribution may be read for training, or, with `held_out`, is one to judge on."""
    name = normalised(name)
    if held_out:
        return name in HELD_OUT
    return name not in HELD_OUT and name not in REFUSED and not name.startswith(REFUSED_PREFIXES)


def usable_path(path: str, *, held_out: bool = False) -> bool:
    """Whether a module's path inside a package is neither vendored nor held out; `path` is posix and relative."""
    parts = PurePosixPath(path).parts
    if not parts or not parts[-1].endswith(".py"):
        return False
    folders = {part.lower() for part in parts[:-1]}
    if folders & VENDORED:
        return False
    return held_out or not (folders & HELD_OUT_FOLDERS or parts[-1][:-3].lower() in HELD_OUT_FOLDERS)


def read_sources(
    archive: Path | None = None, *, installed: bool = True, held_out: bool = False
) -> tuple[list[SourceFile], list[PackageRecord]]:
    """Every usable module of this machine's Python and of the archive, and the record of its packages.

    A package that is in both is read once, from the archive. `held_out=True` reads the installed held-out packages, and
    nothing else. Text that is not UTF-8 or is larger than 400 kB is left out.
    """
    files: list[SourceFile] = []
    records: dict[str, PackageRecord] = {}
    streams = [archive_files(archive)] if archive and not held_out else []
    if held_out:
        streams.append(installed_files(held_out=True))
    elif installed:
        streams += [installed_files(), standard_library_files()]
    for stream in streams:
        seen = set(records)
        for record, path, data in stream:
            if record.package in seen or len(data) > MAX_FILE_BYTES:
                continue
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:
                continue
            kept = records.setdefault(record.package, record)
            kept.files += 1
            kept.bytes += len(data)
            files.append(SourceFile(package=record.package, path=path, text=text.replace("\r\n", "\n")))
    return files, sorted(records.values(), key=lambda r: r.package)


def installed_files(*, held_out: bool = False) -> Iterator[tuple[PackageRecord, str, bytes]]:
    """Modules of the installed distributions that are allowed, with their record, path and bytes."""
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        name = normalised(distribution.metadata["Name"] or "")
        licence = allowed_licence(distribution.metadata)  # type: ignore[arg-type]
        if not name or name in seen or licence is None or not usable_package(name, held_out=held_out):
            continue
        seen.add(name)
        record = PackageRecord(package=name, version=distribution.version, licence=licence, origin="installed")
        for entry in distribution.files or []:
            path = entry.as_posix()
            if path.startswith("..") or not usable_path(path, held_out=held_out):
                continue
            located = Path(str(entry.locate()))
            if not str(located).startswith(SYSTEM_PACKAGES) and located.is_file():
                yield record, path, located.read_bytes()


def standard_library_files() -> Iterator[tuple[PackageRecord, str, bytes]]:
    """Modules of the running Python's own library (Python Software Foundation licence)."""
    root = Path(sysconfig.get_paths()["stdlib"])
    version = ".".join(map(str, sys.version_info[:3]))
    record = PackageRecord(package="python-stdlib", version=version, licence="PSF-2.0", origin="installed")
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        if usable_path(relative) and path.is_file():
            yield record, relative, path.read_bytes()


def archive_files(archive: Path) -> Iterator[tuple[PackageRecord, str, bytes]]:
    """Modules of the archive that `training.archive` built; its first member is `packages.json`."""
    with lzma.open(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        records: dict[str, PackageRecord] = {}
        for member in tar:
            handle = tar.extractfile(member)
            if handle is None:
                continue
            if member.name == "packages.json":
                for entry in json.load(handle):
                    records[entry["package"]] = PackageRecord(**{**entry, "origin": "archive", "files": 0, "bytes": 0})
                continue
            package, _, path = member.name.partition("/")
            if usable_package(package) and usable_path(path):
                yield records[package], path, handle.read()


def merged_records(*lists: Iterable[PackageRecord]) -> list[PackageRecord]:
    """The records by name; of two of one package and version the one that read more stays."""
    found: dict[tuple[str, str], PackageRecord] = {}
    for record in (r for records in lists for r in records):
        known = found.get((record.package, record.version))
        if known is None or known.bytes < record.bytes:
            found[record.package, record.version] = record
    return [found[key] for key in sorted(found)]


def write_record(records: Iterable[PackageRecord], path: Path) -> None:
    """Write the packages that were read, one object each, for the model card."""
    path.write_text(json.dumps([dataclasses.asdict(r) for r in records], indent=1) + "\n", encoding="utf-8")
