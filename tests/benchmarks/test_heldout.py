"""The benchmark's own parts, on a package written here; the real ones are downloaded when the benchmark runs."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.heldout import Result, check, summary
from benchmarks.heldout_bugs import HeldOutBug, _damage, _Module, _passing
from training.doctests import function_tests

MODULE = '''"""Small sums."""


def window_sums(numbers, size):
    """Sums of neighbours.

    >>> window_sums([1, 2, 3, 4], 2)
    [3, 5, 7]
    >>> window_sums([], 2)
    []
    >>> window_sums([1], 0)
    Traceback (most recent call last):
    ValueError: too small
    """
    if size < 1:
        raise ValueError("too small")
    return [sum(numbers[i : i + size]) for i in range(len(numbers) - size + 1)]


class Counter:
    def __init__(self):
        self.seen = {}

    def add(self, key):
        """
        >>> counter = Counter()
        >>> counter.add("a")
        1
        >>> counter.add("a")
        2
        """
        self.seen[key] = self.seen.get(key, 0) + 1
        return self.seen[key]


def shout(text):
    """
    >>> print(shout("hey"))  # printed, not returned
    HEY!
    """
    return text.upper() + "!"


def wrong():
    """
    >>> wrong()
    2
    """
    return 1
'''


@pytest.fixture
def module(tmp_path: Path) -> _Module:
    tree = tmp_path / "sources" / "sums-1.0"
    (tree / "sums").mkdir(parents=True)
    (tree / "sums" / "__init__.py").write_text("")
    (tree / "sums" / "core.py").write_text(MODULE)
    return _Module("sums", "1.0", tree, "sums/core.py", MODULE, list(function_tests(MODULE, "sums.core")))


def test_examples_become_tests_that_pass_where_the_examples_are_right(module: _Module) -> None:
    assert [t.qualname for t in module.tests] == ["window_sums", "Counter.add", "shout", "wrong"]
    assert [t.qualname for t in _passing(module)] == ["window_sums", "Counter.add", "shout"]
    assert module.tests[0].examples[0] == ("window_sums([1, 2, 3, 4], 2)", "[3, 5, 7]")


def test_a_bug_fails_its_own_test_and_its_repair_is_confirmed(module: _Module, tmp_path: Path) -> None:

    module = dataclasses.replace(module, tests=_passing(module))
    bug = _damage(module, module.tests[0], random.Random(1), tmp_path / "bugs", 1)
    assert bug is not None
    repo = tmp_path / "bugs" / bug.id
    ran = subprocess.run([sys.executable, "-m", "pytest", "-q", bug.test], cwd=repo, capture_output=True)
    assert ran.returncode == 1
    assert (repo / "issues" / "1.md").read_text().startswith("# ")
    right = subprocess.run(
        ["git", "diff", "--no-index", "sums/core.py", str(module.tree / "sums/core.py")],
        cwd=repo,
        capture_output=True,
        text=True,
    ).stdout.replace(str(module.tree)[1:] + "/", "")
    assert check(bug, repo, right.replace("b/sums", "b/sums")) == (True, True)
    assert check(bug, repo, "") == (False, False)
    assert HeldOutBug(**json.loads(json.dumps(dataclasses.asdict(bug)))) == bug


def test_a_claim_that_is_not_confirmed_is_a_wrong_claim_and_no_repair() -> None:
    def result(name: str, tried: int, claimed: bool, confirmed: bool) -> Result:
        return Result(
            id=name,
            package="p",
            kind="constant",
            exit_code=0 if claimed else 1,
            outcome="",
            tried=tried,
            duration_s=2.0,
            claimed=claimed,
            confirmed=confirmed,
            same_as_original=confirmed,
        )

    results = [
        result("a", 1, True, True),
        result("b", 7, True, True),
        result("c", 3, True, False),
        result("d", 50, False, False),
    ]
    found = summary(results, 50)
    assert found["wrong_claims"] == 1
    assert found["fixed_at"] == {"1": 0.25, "5": 0.25, "10": 0.5, "20": 0.5, "50": 0.5}
    assert found["exit_codes"] == {"0": 3, "1": 1}
