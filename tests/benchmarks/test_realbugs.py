"""The benchmark of real bugs goes on where it stopped, and says what has run and which claims are wrong."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import realbugs
from benchmarks.realbugs import Result, summary
from benchmarks.realbugs_make import RealBug


def bug(number: int, package: str = "p") -> RealBug:
    return RealBug(
        id=f"{package}-{number:02d}", package=package, version="1", held_out=False, path="a.py", function="f", kind="k",
        lines=1, failing=1, issue="# t",
    )  # fmt: skip


def result(which: RealBug, **changed: Any) -> Result:
    fields: dict[str, Any] = {
        "id": which.id, "package": which.package, "held_out": False, "kind": "k", "exit_code": 0, "outcome": "fixed",
        "summary": "fixed", "tried": 1, "duration_s": 2.0, "claimed": True, "confirmed": True, "intact": True,
        "commit": "c",
    }  # fmt: skip
    return Result(**{**fields, **changed})


def test_a_claim_that_the_check_does_not_confirm_is_wrong_and_no_repair() -> None:
    done = [result(bug(1)), result(bug(2), confirmed=False), result(bug(3), exit_code=1, claimed=False, intact=False)]
    found = summary(done)
    assert (found["fixed_and_verified"], found["wrong_claims"], found["not_intact"]) == (0.3333, 1, 1)
    assert found["by_package"] == {"p": [1, 3]}


def test_it_goes_on_where_it_stopped_and_says_how_many_have_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bugs = [bug(1, "a"), bug(2, "a"), bug(1, "b")]
    ran: list[str] = []

    def run_bug(which: RealBug, cache: Path, options: argparse.Namespace) -> Result:
        ran.append(which.id)
        return result(which)

    monkeypatch.setattr(realbugs, "make_bugs", lambda cache, seed: bugs)
    monkeypatch.setattr(realbugs, "run_bug", run_bug)
    monkeypatch.setattr(realbugs, "__file__", str(tmp_path / "realbugs.py"))
    (tmp_path / "results").mkdir()

    def written() -> dict[str, Any]:
        (file,) = (tmp_path / "results").glob("realbugs-nano-*.json")
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    realbugs.main(["--cache", str(tmp_path / "cache"), "--limit", "2"])
    assert ran == ["a-01", "b-01"]  # the first of each package, then the second
    assert (written()["bugs"], written()["bugs_made"], written()["complete"]) == (2, 3, False)
    realbugs.main(["--cache", str(tmp_path / "cache"), "--limit", "0"])
    assert len(ran) == 2
    realbugs.main(["--cache", str(tmp_path / "cache")])
    assert ran == ["a-01", "b-01", "a-02"]
    assert written()["complete"] is True
