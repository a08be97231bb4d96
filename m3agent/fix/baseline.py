"""The tests before the first edit: what fails, which of it the issue means, what the failing tests ran.

Every later claim is measured against this. A repository may have more failures than the issue speaks of; then the
failing tests are grouped by the code that they fail in, and the group that the issue's words point to is the target.
There may be none at all: then whoever repairs the issue has to write the test that shows it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from m3_tools.report import TestFailure, TestReport
from m3agent.fix.issue import Issue
from m3agent.fix.outcome import Ended
from m3agent.fix.suite import Suite

MAX_GROUPS = 8
"""With failures in more files than this, all of them are one group: they hardly have a cause each."""
FUNCTION_WEIGHT = 3
"""An issue that names a function points harder than one that shares a word with a test's name."""
IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baseline:
    """`report` is the whole run; its failures begin with the targets and its trace is that of the targets.

    `targets` are the failing tests that the issue means, `others` the rest that failed before, `flaky` those whose
    outcome changed between two runs of the same code: they prove nothing. No targets: nothing shows the problem.
    `pointed` says that the issue's words point to the targets; else they may fail for a reason of their own.
    `limit_s` stops a run of the whole suite, `short_limit_s` one of the targets.
    """

    report: TestReport
    targets: tuple[str, ...]
    others: tuple[str, ...]
    flaky: tuple[str, ...]
    pointed: bool
    limit_s: float
    short_limit_s: float

    @property
    def is_empty(self) -> bool:
        """Whether there was no test at all; then a test of the change is the only one that can prove it."""
        return self.report.no_tests

    def not_reproduced(self) -> Ended:
        """How a run ends that needs a failing test where there is none."""
        if self.is_empty:
            tried = f" ({self.report.command})" if self.report.command else ""
            told = "nothing could verify a repair; --test CMD gives the command that runs them"
            return Ended("unverified", f"no tests were found{tried}: {told}")
        if self.flaky:
            names = ", ".join(self.flaky[:3])
            why = f"the failures do not come back when the tests run again (flaky): {names}"
        else:
            why = f"all {self.report.counts.passed} tests pass: nothing here shows the problem; add a test that fails"
        return Ended("not_reproduced", why)


async def take_baseline(suite: Suite, issue: Issue) -> Baseline:
    """Run the tests of the untouched code.

    Errors: Ended when the tests cannot start or hang.
    """
    whole = await suite.run("baseline")
    _require_start(whole)
    if whole.no_tests:
        return Baseline(
            report=whole,
            targets=(),
            others=(),
            flaky=(),
            pointed=False,
            limit_s=suite.first_limit_s,
            short_limit_s=suite.first_limit_s,
        )
    _require_packages(whole, suite)
    groups, flaky = await _groups(suite, whole)
    chosen, pointed = choose(groups, issue)
    targets = tuple(test_id for group in chosen for test_id in group.failing)
    others = tuple(i for i in whole.failed_ids if i not in targets and i not in flaky)
    first = [f for f in whole.failures if f.test_id in targets]
    rest = [f for f in whole.failures if f.test_id not in targets]
    report = dataclasses.replace(
        whole,
        failures=tuple(_with_frames(first, chosen) + rest),
        **_merged_trace([group.report for group in chosen]),
    )
    return Baseline(
        report=report,
        targets=targets,
        others=others,
        flaky=flaky,
        pointed=pointed,
        limit_s=max(20.0, 10 * whole.duration_s),
        short_limit_s=max(5.0, 8 * whole.duration_s),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Failing tests of one file, and the traced run of that file's tests."""

    failing: tuple[str, ...]
    report: TestReport

    def prime_suspects(self) -> frozenset[tuple[str, str]]:
        """(path, function) of what the failing tests run most particularly."""
        scored = {(path, name): s for path, names in self.report.scores.items() for name, s in names.items()}
        best = max(scored.values(), default=0.0)
        return frozenset(place for place, score in scored.items() if score >= 0.95 * best)

    def failed_imports(self) -> frozenset[str]:
        """The messages of imports that failed in the failing tests; each names what could not be had."""
        failures = [f for f in self.report.failures if f.test_id in self.failing]
        return frozenset(f.message for f in failures if f.error_type in IMPORT_ERRORS)

    @property
    def is_unreadable(self) -> bool:
        """Whether the file itself could not be imported, so that none of its tests ran."""
        return set(self.failing) <= {error.test_id for error in self.report.collection_errors}


def choose(groups: Sequence[Group], issue: Issue) -> tuple[list[Group], bool]:
    """The groups that the issue means: those of one cause whose names share most with its words, else all.

    Returns them, and whether they share any. A file that cannot be imported is meant only if the words point to it,
    or if nothing else fails.
    """
    causes = _by_cause(groups)
    words = _words(f"{issue.title} {issue.body}")
    names = [[(_words(i), 1) for g in cause for i in g.failing] for cause in causes]
    for cause, found in zip(causes, names, strict=True):
        found += [(_words(function), FUNCTION_WEIGHT) for g in cause for _, function in g.prime_suspects()]
    points: list[float] = []
    for found in names:
        weights: dict[str, int] = {}
        for shared, weight in ((names_of & words, weight) for names_of, weight in found):
            weights.update({word: max(weight, weights.get(word, 0)) for word in shared})
        points.append(sum(weights.values()))
    best = max(points, default=0.0)
    if points.count(best) == 1:
        return causes[points.index(best)], best > 0
    return [g for g in groups if not g.is_unreadable] or list(groups), best > 0


def _by_cause(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups that share a prime suspect, or an import that failed, belong together."""
    causes: list[tuple[list[Group], frozenset[object]]] = []
    for group in groups:
        members: list[Group] = [group]
        places: frozenset[object] = group.prime_suspects() | group.failed_imports()
        for cause in [c for c in causes if c[1] & places]:
            causes.remove(cause)
            members, places = cause[0] + members, cause[1] | places
        causes.append((members, places))
    return [members for members, _ in causes]


async def _groups(suite: Suite, whole: TestReport) -> tuple[list[Group], tuple[str, ...]]:
    """The failing tests by file, each with a traced second run; and the tests whose outcome changed."""
    by_file: dict[str, list[str]] = {}
    for test_id in whole.failed_ids:
        by_file.setdefault(file_of(test_id), []).append(test_id)
    if len(by_file) > MAX_GROUPS or "" in by_file:
        by_file = {"": list(whole.failed_ids)}
    groups: list[Group] = []
    flaky: list[str] = []
    for file, failing in by_file.items():
        ids = tuple(i for i in whole.outcomes if file_of(i) == file) if file else ()
        report = await suite.run("trace", ids, trace=True)
        changed = [i for i, o in report.outcomes.items() if i in whole.outcomes and whole.outcomes[i] != o]
        flaky += changed
        if lasting := tuple(i for i in failing if i not in changed):
            groups.append(Group(failing=lasting, report=report))
    return groups, tuple(flaky)


def file_of(test_id: str) -> str:
    """The part of a test's id that names its file: of `tests/test_a.py::test_b` or `tests.test_a.TestC.test_b`.

    A file that cannot be imported is its own id.
    """
    file, separator, _ = test_id.partition("::")
    return file if separator or file.endswith(".py") else ".".join(test_id.split(".")[:-2])


def _require_start(whole: TestReport) -> None:
    if not whole.could_start:
        raise Ended("broken_environment", f"the tests cannot start: {whole.reason} (command: {whole.command})")
    if whole.timed_out:
        raise Ended(
            "broken_environment", f"the tests did not end within {whole.duration_s:.0f} s (command: {whole.command})"
        )


def _require_packages(whole: TestReport, suite: Suite) -> None:
    """End where not one test could be imported because of a package that is not there: that is no bug of the code."""
    errors = {error.test_id: error for error in whole.collection_errors}
    if not errors or set(whole.outcomes) != set(errors):
        return
    names = [_missing_package(error) for error in errors.values()]
    if not all(names) or any(_is_in_repository(name, suite.root) for name in names):
        return
    first = next(iter(errors.values()))
    raise Ended(
        "broken_environment",
        f"the tests cannot start: {', '.join(sorted(set(names)))} cannot be imported ({first.test_id}); "
        f"install what the tests need for {suite.python}, or give their command with --test (command: {whole.command})",
    )


def _missing_package(error: TestFailure) -> str:
    """The package that an import did not find, or nothing for any other failure."""
    found = re.search(r"No module named '?([\w.]+)", error.message or error.text)
    return found[1].partition(".")[0] if found else ""


def _is_in_repository(package: str, root: Path) -> bool:
    folders = (root, *(child for child in root.iterdir() if child.is_dir()))
    return any((folder / package).is_dir() or (folder / f"{package}.py").is_file() for folder in folders)


def _with_frames(failures: Sequence[TestFailure], groups: Sequence[Group]) -> list[TestFailure]:
    """The failures as the second run saw them, where it saw them."""
    again = {f.test_id: f for group in groups for f in group.report.failures}
    return [again.get(f.test_id, f) for f in failures]


def _merged_trace(reports: Sequence[TestReport]) -> dict[str, Any]:
    """`executed` and the mean of `scores` over several runs, the most particular functions and files first."""
    lines: dict[tuple[str, str], tuple[int, ...]] = {}
    mean: dict[tuple[str, str], float] = {}
    for report in reports:
        for path, functions in report.executed.items():
            for name, ran in functions.items():
                place = (path, name)
                lines[place] = tuple(sorted({*lines.get(place, ()), *ran}))
                mean[place] = mean.get(place, 0.0) + report.scores.get(path, {}).get(name, 0.0) / len(reports)
    executed: dict[str, dict[str, tuple[int, ...]]] = {}
    scores: dict[str, dict[str, float]] = {}
    for path, name in sorted(lines, key=lambda place: -mean[place]):
        executed.setdefault(path, {})[name] = lines[path, name]
        scores.setdefault(path, {})[name] = round(mean[path, name], 4)
    return {"executed": executed, "scores": scores}


def _words(text: str) -> set[str]:
    """Words of at least four letters, in lower case, identifiers taken apart and plurals brought to one form."""
    pieces = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)
    return {piece.lower().removesuffix("s") for piece in pieces if len(piece) >= 4 and piece.lower() not in _COMMON}


_COMMON = frozenset({"test", "tests", "that", "this", "with", "when", "than", "from", "have", "does", "should", "same"})
