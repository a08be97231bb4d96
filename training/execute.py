"""Executed bugs: functions with examples in their docstring are damaged, their tests run, and the true report kept.

    python -m training.execute --out .data/executed.json.xz --minutes 10

Reads the installed packages named below, for instance after `pip install networkx sympy`. The examples become pytest
tests (`training.doctests`); each bug runs in a forked process with limits, under the recorder and the report of
`m3_tools`, so that counts, errors, values, frames and the list of functions are what `m3 fix` shows. A bug after
which every test passes is dropped. The file is carried to the training machine, which runs nothing.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib.metadata
import multiprocessing
import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from training.bugs import Bug, inject
from training.doctests import function_tests
from training.executed import Executed, write_executed
from training.isolation import Outcome, Place, TestModule, run_module
from training.quality import is_test_path, worth_reading
from training.sources import PackageRecord, installed_files
from training.units import MAX_CHARS, docstring_lines, outline

PACKAGES = ("networkx", "sympy", "mpmath", "scipy", "scikit-image", "statsmodels", "pandas", "numpy", "python-dateutil")
"""Distributions rich in examples whose import has no effects."""
BUGS_PER_FUNCTION = 16
OTHER_TESTS = 6
"""At most so many other tests of the module run with the damaged function's, for the counts and the suspects."""
DROP_DOCSTRING = 0.7


@dataclasses.dataclass(frozen=True)
class _Job:
    """One module of a package that lies as a copy under `root`."""

    root: Path
    package: str
    path: str
    text: str
    seed: int


def job_of(root: Path, package: str, path: str, *, seed: int) -> _Job:
    """The module at `path` of a package that lies under `root`."""
    return _Job(root, package, path, (root / path).read_text(encoding="utf-8"), seed)


def executed_bugs(job: _Job) -> list[Executed]:
    """All bugs of one module that some test notices; none for a module that cannot be imported."""
    rng = random.Random(f"{job.seed}/{job.path}")
    try:
        cut = outline(0, job.package, job.path, job.text)
        dotted = job.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        tests = {t.qualname: t for t in function_tests(job.text, dotted)}
    except (SyntaxError, ValueError, RecursionError):
        return []
    lines = job.text.split("\n")
    definitions = {n.lineno: n for n in ast.walk(ast.parse(job.text)) if isinstance(n, ast.FunctionDef)}
    places: list[Place] = []
    for test in tests.values():
        shown = lines[test.first : test.last + 1]
        documented = next((d for n in range(test.first, test.last) if (d := definitions.get(n + 1))), None)
        docstring = docstring_lines(documented) if documented else None
        if docstring is not None and (len("\n".join(shown)) > MAX_CHARS or rng.random() < DROP_DOCSTRING):
            del shown[docstring[0] - test.first : docstring[1] - test.first + 1]
        source = "\n".join(shown)
        if len(source) <= MAX_CHARS:
            places.append(Place(test.qualname, test.test_name, source, test.first + 1, tuple(_bugs(source, rng))))
    if not places:
        return []
    text = "\n\n".join(t.source for t in tests.values()) + "\n"
    if rng.random() < 0.5:
        text = with_imports_on_top(text, dotted)
    module = TestModule(job.root, job.path, text, tuple(places))
    results = run_module(module, other_tests=OTHER_TESTS, seed=rng.randrange(2**32))
    total = job.text.count("\n") + 1
    return [_executed(job, cut.functions, tests[r.place.name].examples, total, r) for r in results]


def with_imports_on_top(tests: str, dotted: str) -> str:
    """The tests with their imports of the module before them: pytest then explains a call by the function's name."""
    pattern = re.compile(rf"^    from {re.escape(dotted)} import (.+)\n\n?", re.MULTILINE)
    names = {name for found in pattern.findall(tests) for name in found.split(", ")}
    head = f"from {dotted} import {', '.join(sorted(names))}\n\n\n" if names else ""
    return head + pattern.sub("", tests)


def _executed(
    job: _Job, functions: Iterable[str], examples: tuple[tuple[str, str], ...], file_lines: int, outcome: Outcome
) -> Executed:
    place = outcome.place
    return Executed(
        package=job.package,
        path=job.path,
        name=place.name,
        source=place.source,
        first_line=place.first_line,
        file_lines=file_lines,
        functions=tuple(functions)[:30],
        examples=examples,
        bug=outcome.bug,
        report=outcome.report,
        error=outcome.error,
        total=outcome.total,
    )


def _bugs(source: str, rng: random.Random) -> Iterator[Bug]:
    seen: set[str] = set()
    for _ in range(BUGS_PER_FUNCTION):
        try:
            bug = inject(source, rng)
        except (SyntaxError, ValueError, RecursionError):
            return
        if bug is not None and bug.source not in seen:
            seen.add(bug.source)
            yield bug


def make(*, minutes: float, processes: int, seed: int, scratch: Path) -> tuple[list[PackageRecord], list[Executed]]:
    """Bugs of all installed `PACKAGES`, module after module in a random order, until the time is used up."""
    jobs, records = [], {}
    for record, path, data in installed_files():
        if record.package not in PACKAGES or is_test_path(path):
            continue
        copy = scratch / record.package / path
        if record.package not in records:
            records[record.package] = record
            _copy_package(record.package, scratch / record.package)
        text = data.decode("utf-8", "replace")
        if copy.is_file() and len(text) < 100 * MAX_CHARS and ">>> " in text and worth_reading(text):
            jobs.append(_Job(scratch / record.package, record.package, path, text, seed))
    random.Random(seed).shuffle(jobs)
    found: list[Executed] = []
    deadline = time.monotonic() + 60 * minutes
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        results = pool.imap_unordered(executed_bugs, jobs)
        for done in range(len(jobs)):
            try:
                found += results.next(timeout=max(0.0, deadline - time.monotonic()))
            except multiprocessing.TimeoutError:
                print(f"the time is over after {done} of {len(jobs)} modules", flush=True)
                break
        pool.terminate()
    used = {e.package for e in found}
    return [r for name, r in sorted(records.items()) if name in used], found


def _copy_package(name: str, target: Path) -> None:
    """The package's files outside of site-packages, so that the recorder takes them for the repository's own."""
    for entry in importlib.metadata.files(name) or []:
        if entry.parts[0] == ".." or "tests" in entry.parts or ".dist-info" in entry.parts[0]:
            continue
        place = target / entry.as_posix()
        place.parent.mkdir(parents=True, exist_ok=True)
        located = Path(str(entry.locate()))
        if located.is_file():
            shutil.copy(located, place)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(".data/executed.json.xz"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="executed-") as folder:
        records, found = make(
            minutes=options.minutes, processes=options.processes, seed=options.seed, scratch=Path(folder).resolve()
        )
    write_executed(records, found, options.out)
    print(f"{len(found)} bugs of {len(records)} packages, {options.out.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
