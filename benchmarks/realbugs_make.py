"""Make the real bugs: packages of PyPI with the tests that they ship, each with one or two damaged lines.

Sources are downloaded when the benchmark runs, at fixed versions; none are kept here. A bug is kept if the package's
own tests, all of which pass before, then fail in at least one and at most MAX_FAILING places, and can be collected.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path

from training.bugs import inject
from training.sources import HELD_OUT

PACKAGES = (
    ("boltons", "26.2.0", "boltons", 14), ("cachetools", "8.0.2", "src/cachetools", 10),
    ("humanize", "4.17.0", "src/humanize", 12), ("inflection", "0.5.1", "inflection", 10),
    ("isodate", "0.7.2", "src/isodate", 20), ("more-itertools", "11.2.1", "more_itertools", 4),
    ("parse", "1.22.4", "parse", 10), ("python-slugify", "9.2.0", "slugify", 10),
    ("sqlparse", "0.6.1", "sqlparse", 10), ("toolz", "1.2.0", "toolz", 12),
    ("voluptuous", "0.16.0", "voluptuous", 12), ("xmltodict", "1.0.4", "xmltodict.py", 12),
)  # fmt: skip
"""Distribution, version, where its code lies, and how many bugs it gives. All are under the MIT or a BSD licence."""
NEEDED = (
    "pytest", "hypothesis", "freezegun", "pytest-benchmark", "pytest-cov", "text-unidecode", "python-dateutil",
)  # fmt: skip
"""What their tests import."""
TEST_LIMIT_S = 90
MAX_FAILING = 40
TRIES = 40
"""Damages that are tried for each bug that is wanted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RealBug:
    """One case. `failing` is the number of its own tests that fail; `held_out` says that nano never saw the package."""

    id: str
    package: str
    version: str
    held_out: bool
    path: str
    function: str
    kind: str
    lines: int
    failing: int
    issue: str


def make_bugs(cache: Path, *, seed: int, packages: tuple[tuple[str, str, str, int], ...] = PACKAGES) -> list[RealBug]:
    """All bugs under `cache`; a package whose bugs are there is read back. Repositories lie in `cache/repos/ID`."""
    bugs: list[RealBug] = []
    for name, version, code, count in packages:
        listing = cache / f"bugs-{name}-{seed}.json"
        if not listing.exists():
            made = list(_of_package(cache, name, version, code, count, seed))
            listing.write_text(json.dumps([dataclasses.asdict(bug) for bug in made], indent=1))
            print(f"{name} {version}: {len(made)} bugs", file=sys.stderr)
        bugs += [RealBug(**entry) for entry in json.loads(listing.read_text())]
    return bugs


def test_python(cache: Path) -> Path:
    """The interpreter of an environment with what the packages' tests import, made at the first call."""
    folder = cache / "environment"
    python = folder / "bin" / "python"
    ready, wanted = folder / "ready", " ".join(NEEDED)
    if not ready.exists() or ready.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *NEEDED], check=True)
        ready.write_text(wanted)
    return python


def run_tests(cache: Path, folder: Path) -> tuple[int, int, str]:
    """Run the tests by plain pytest: exit code (124 for too long), number of failures, and the first failing line."""
    source = folder / "src"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))},
        "PYTHONPATH": str(source) if source.is_dir() else "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    options = ["-q", "-p", "no:cacheprovider", "--color=no", "-rfE", "--tb=line"]
    command = [str(test_python(cache)), "-m", "pytest", *options]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TEST_LIMIT_S, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return 124, 0, ""
    failed = re.findall(r"(?m)^(?:FAILED|ERROR) (.*)", done.stdout)
    collected = not re.search(r"(?m)^ERROR [^:\n]+(?: - .*)?$", done.stdout)
    return (done.returncode if collected else 2), len(failed), failed[0] if failed else ""


def _of_package(cache: Path, name: str, version: str, code: str, count: int, seed: int) -> Iterator[RealBug]:
    original = _unpacked(cache, name, version)
    for _ in range(2):
        exit_code, _, first = run_tests(cache, original)
        if exit_code != 0:
            print(f"{name} {version}: its own tests do not pass here: {first}", file=sys.stderr)
            return
    rng = random.Random(f"{seed}/{name}")
    places = list(_functions(original, code))
    scratch = cache / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(original, scratch)
    made = 0
    for _ in range(TRIES * count):
        if made == count or not places:
            break
        path, function, first, last = rng.choice(places)
        lines = (original / path).read_text(encoding="utf-8").split("\n")
        bug = inject("\n".join(lines[first:last]), rng, two_edits=0.3)
        if bug is None or max(bug.removed, len(bug.added)) > 2:
            continue
        (scratch / path).write_text("\n".join([*lines[:first], bug.source, *lines[last:]]), encoding="utf-8")
        exit_code, failing, shown = run_tests(cache, scratch)
        if exit_code == 1 and 1 <= failing <= MAX_FAILING:
            made += 1
            places.remove((path, function, first, last))
            ident = f"{name}-{made:02d}"
            _keep(scratch, cache / "repos" / ident)
            yield RealBug(
                id=ident,
                package=name,
                version=version,
                held_out=name in HELD_OUT,
                path=path,
                function=function,
                kind=bug.kind,
                lines=max(bug.removed, len(bug.added), 1),
                failing=failing,
                issue=f"# {function} gives a wrong result\n\nSince the last change this fails:\n\n    {shown}\n",
            )
        shutil.copy2(original / path, scratch / path)


def _unpacked(cache: Path, name: str, version: str) -> Path:
    """The source distribution, downloaded and unpacked at the first call."""
    folder = cache / "sources" / f"{name}-{version}"
    if folder.exists():
        return folder
    downloads = cache / "downloads" / name
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--dest", str(downloads), f"{name}=={version}"], check=True)
    (archive,) = downloads.glob(f"*{version}.tar.gz")
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(part, filter="data")
    (only,) = part.iterdir()
    only.rename(folder)
    shutil.rmtree(part)
    return folder


def _functions(root: Path, code: str) -> Iterator[tuple[str, str, int, int]]:
    """(path, name, first line, end) of the outermost functions and methods of the package's code, lines from 0."""
    place = root / code
    for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
        path = file.relative_to(root).as_posix()
        if "test" in path:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        owners = [("", tree), *((f"{n.name}.", n) for n in tree.body if isinstance(n, ast.ClassDef))]
        for prefix, owner in owners:
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and not prefix.startswith("_") and node.end_lineno:
                    yield path, f"{prefix}{node.name}", node.lineno - 1, node.end_lineno


def _keep(scratch: Path, repo: Path) -> None:
    """The damaged package as a git repository with one commit: its history does not hold the repair."""
    shutil.rmtree(repo, ignore_errors=True)
    shutil.copytree(scratch, repo, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis", ".pytest_cache"))
    identity = ["-c", "user.name=m3", "-c", "user.email=m3@localhost"]
    for arguments in (
        ["init", "-q", "-b", "main"],
        ["add", "-A", "-f"],
        [*identity, "commit", "-q", "-m", "as released"],
    ):
        subprocess.run(["git", *arguments], cwd=repo, check=True, capture_output=True)
