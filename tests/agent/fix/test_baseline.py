"""Which of several failing tests an issue means."""

from __future__ import annotations

from m3_tools.report import TestFailure, TestReport
from m3agent.fix.baseline import Group, choose, file_of
from m3agent.fix.issue import Issue

IMPORT = ("ModuleNotFoundError", "No module named 'text_tables'")


def group(
    *ids: str,
    ran: dict[str, float] | None = None,
    error: tuple[str, str] = ("AssertionError", ""),
    unread: bool = False,
) -> Group:
    failures = tuple(TestFailure(test_id=i, error_type=error[0], message=error[1]) for i in ids)
    report = TestReport(
        command="pytest",
        outcomes=dict.fromkeys(ids, "failed"),
        failures=failures,
        exit_code=1,
        duration_s=0.1,
        collection_errors=failures if unread else (),
        scores={"shop.py": ran} if ran else {},
    )
    return Group(failing=ids, report=report)


def issue(text: str) -> Issue:
    return Issue(title=text, body="", source="1.md")


def test_a_file_that_cannot_be_imported_is_not_meant_beside_tests_that_ran_and_failed() -> None:
    boundary = group("tests/test_search.py::test_at_least", ran={"compare": 1.0})
    unreadable = group("tests/test_other.py", error=IMPORT, unread=True)
    assert choose([boundary, unreadable], issue("Ages are wrong")) == ([boundary], False)
    assert choose([unreadable], issue("Ages are wrong")) == ([unreadable], False)


def test_a_file_that_cannot_be_imported_is_meant_where_the_words_point_to_it() -> None:
    boundary = group("tests/test_search.py::test_at_least", ran={"compare": 1.0})
    unreadable = group("tests/test_compliance.py", error=IMPORT, unread=True)
    assert choose([boundary, unreadable], issue("The compliance suite cannot be imported")) == ([unreadable], True)


def test_failures_of_one_missing_import_belong_together() -> None:
    first = group("tests/test_release.py::test_bytes", ran={"slugify": 1.0}, error=IMPORT)
    second = group("tests/test_legacy.py::test_accents", ran={"legacy": 1.0}, error=IMPORT)
    chosen, pointed = choose([first, second], issue("test_bytes of the release fails"))
    assert chosen == [first, second]
    assert pointed


def test_a_single_failure_that_shares_no_word_with_the_issue_is_chosen_and_not_pointed_to() -> None:
    version = group("tests/test_core.py::test_package_version")
    assert choose([version], issue("wcswidth crashes when n is larger than the string")) == ([version], False)
    assert choose([version], issue("the package tells a wrong version")) == ([version], True)


def test_an_id_names_its_file() -> None:
    assert file_of("tests/test_a.py::TestC::test_b") == "tests/test_a.py"
    assert file_of("tests.test_a.TestC.test_b") == "tests.test_a"
    assert file_of("tests/test_a.py") == "tests/test_a.py"  # as a file that cannot be imported is named
