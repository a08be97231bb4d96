"""Each example repository fails in the tests that its issue speaks of, and one changed line mends it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclasses.dataclass(frozen=True)
class Repair:
    """The reference repair of one issue: in `path`, `wrong` stands exactly once and should read `right`."""

    example: str
    issue: int
    path: str
    wrong: str
    right: str
    failing: frozenset[str]


REPAIRS = [
    Repair(
        "inventory",
        1,
        "inventory/stock.py",
        "self.level(sku) < item.reorder_level",
        "self.level(sku) <= item.reorder_level",
        frozenset({"test_exactly_at_the_level", "test_purchase_list_holds_an_item_at_its_level"}),
    ),
    Repair(
        "date_parser",
        1,
        "date_parser/calendar_math.py",
        "max(day.day, days_in_month(year, month))",
        "min(day.day, days_in_month(year, month))",
        frozenset(
            {
                "test_a_month_later_is_the_same_day",
                "test_a_shorter_month_ends_sooner",
                "test_one_month_ago",
                "test_in_two_years",
            }
        ),
    ),
    Repair(
        "text_wrapper",
        1,
        "text_wrapper/wrap.py",
        "len(line) + len(piece) <= width",
        "len(line) + len(piece) < width",
        frozenset({"test_the_space_counts_too", "test_no_line_is_wider_than_asked"}),
    ),
    Repair(
        "text_wrapper",
        2,
        "text_wrapper/layout.py",
        'return " " * width + line',
        'return " " * gap + line',
        frozenset({"test_right", "test_right_in_a_full_line"}),
    ),
    Repair(
        "http_client",
        1,
        "http_client/client.py",
        "status not in BUSY",
        "status in BUSY",
        frozenset(
            {
                "test_a_busy_server_is_asked_again",
                "test_a_server_that_stays_busy",
                "test_a_missing_page_is_asked_for_once",
            }
        ),
    ),
    Repair(
        "disk_usage",
        1,
        "disk_usage/disk.py",
        "max(100, round(100 * self.used / self.size))",
        "min(100, round(100 * self.used / self.size))",
        frozenset(
            {
                "test_percent[0-0]",
                "test_percent[250-25]",
                "test_an_overdrawn_disk_is_full",
                "test_a_bar_is_as_long_as_the_disk_is_full",
            }
        ),
    ),
    Repair(
        "room_booking",
        1,
        "room_booking/span.py",
        "other.end < self.end",
        "other.start < self.end",
        frozenset(
            {
                "test_overlap[11:00-13:00-True]",
                "test_overlap[10:00-12:00-True]",
                "test_free_rooms",
                "test_a_booking_that_begins_during_another_is_refused",
            }
        ),
    ),
]
NAMES = sorted({repair.example for repair in REPAIRS})


def outcomes(repository: Path) -> tuple[set[str], set[str]]:
    """The names of the tests that pass and of those that fail, from pytest's own report."""
    report = repository / "report.xml"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHONPATH"))}
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    subprocess.run(command, cwd=repository, env=environment, capture_output=True, timeout=60, check=False)
    passed: set[str] = set()
    failed: set[str] = set()
    for case in ElementTree.parse(report).iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        (failed if bad else passed).add(str(case.get("name")))
    return passed, failed


def copy_of(example: str, folder: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES / example, folder / example, ignore=shutil.ignore_patterns("__pycache__")))


def mend(repository: Path, repair: Repair) -> None:
    file = repository / repair.path
    text = file.read_text()
    assert text.count(repair.wrong) == 1
    file.write_text(text.replace(repair.wrong, repair.right))


def test_every_example_repository_is_known_here() -> None:
    assert sorted(path.parent.name for path in EXAMPLES.glob("*/issues")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_intended_tests_fail(name: str, tmp_path: Path) -> None:
    passed, failed = outcomes(copy_of(name, tmp_path))
    assert failed == frozenset().union(*(repair.failing for repair in REPAIRS if repair.example == name))
    assert len(passed) > len(failed)


@pytest.mark.parametrize("repair", REPAIRS, ids=lambda repair: f"{repair.example}-{repair.issue}")
def test_a_reference_repair_mends_the_tests_of_its_issue(repair: Repair, tmp_path: Path) -> None:
    repository = copy_of(repair.example, tmp_path)
    mend(repository, repair)
    others = frozenset().union(
        *(other.failing for other in REPAIRS if other.example == repair.example and other.issue != repair.issue)
    )
    assert outcomes(repository)[1] == others


@pytest.mark.parametrize("name", NAMES)
def test_all_reference_repairs_together_pass_everything(name: str, tmp_path: Path) -> None:
    repository = copy_of(name, tmp_path)
    for repair in REPAIRS:
        if repair.example == name:
            mend(repository, repair)
    assert outcomes(repository)[1] == set()


@pytest.mark.parametrize("repair", REPAIRS, ids=lambda repair: f"{repair.example}-{repair.issue}")
def test_an_issue_has_a_title_and_names_no_line(repair: Repair) -> None:
    title, _, body = (EXAMPLES / repair.example / "issues" / f"{repair.issue}.md").read_text().partition("\n")
    assert title.startswith("# ")
    assert len(body.split()) > 15
    assert repair.wrong not in body
    assert repair.right not in body
    assert repair.path.rpartition("/")[2] not in body
