"""Tests that a change brings along: which of them fail without the rest of it, and so show the problem."""

from __future__ import annotations

from collections.abc import Sequence

from m3_tools.report import BAD, GOOD, TestReport
from m3agent.fix.baseline import IMPORT_ERRORS, file_of
from m3agent.fix.suite import Suite
from m3agent.fix.worktree import WorkTree

NOTHING_SHOWN = "no test fails without the change and passes with it, so nothing shows the problem; add one"


async def run_own_tests(
    worktree: WorkTree,
    suite: Suite,
    changed: Sequence[str],
    test_code: Sequence[str],
    delivered: TestReport,
    *,
    limit_s: float,
) -> tuple[tuple[str, ...], str]:
    """The tests in the touched test code that pass with the change and fail without its other files.

    `delivered` is a run of all tests with the whole change. Returns the tests and, where there is none, why. A failure
    on an import shows no symptom and does not count.
    """
    rest = tuple(path for path in changed if path not in test_code)
    if not rest:
        return (), "only test code was changed"
    ids = tests_in(test_code, delivered)
    if not ids and all(path.endswith(".py") for path in test_code):
        return (), NOTHING_SHOWN  # settings and helpers alone
    with worktree.without(rest):
        undone = await suite.run("own tests, undone", ids, limit_s=limit_s)
    failing = [i for i, o in undone.outcomes.items() if o in BAD and delivered.outcomes.get(i) in GOOD]
    on_import = {f.test_id for f in undone.failures if f.error_type in IMPORT_ERRORS}
    if shown := tuple(i for i in failing if i not in on_import):
        return shown, ""
    if failing or undone.collection_errors:
        name = (*failing, *(e.test_id for e in undone.collection_errors))[0]
        return (), f"without the change {name} fails on an import; let it fail on the reported symptom"
    return (), NOTHING_SHOWN


def tests_in(paths: Sequence[str], report: TestReport) -> tuple[str, ...]:
    """The tests of a run that stand in these files."""
    return tuple(i for i in report.outcomes if any(_is_in(i, path) for path in paths))


def _is_in(test_id: str, path: str) -> bool:
    """Whether the id, of pytest or unittest, names a test in the file."""
    file = file_of(test_id)
    return bool(file) and (file == path or f".{path.removesuffix('.py').replace('/', '.')}".endswith(f".{file}"))
