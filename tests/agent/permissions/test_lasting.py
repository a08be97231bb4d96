"""What a person may allow for a session with one word: the call and its like, never what is dangerous."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from m3_tools.edit import EditTool
from m3_tools.shell import ShellTool
from m3agent.approval import decide
from m3agent.errors import M3Error
from m3agent.permissions.lasting import rule_of, rules_like


def shell(command: str) -> dict[str, Any]:
    return {"command": command}


@pytest.mark.parametrize(
    ("approved", "then", "runs"),
    [
        ("pytest -q tests", "pytest -q tests", True),
        ("pytest -q tests", "pytest -q tests -x", True),
        ("pytest -q tests", "pytest -q other", False),
        ("git status && ls", "ls", True),
        ("git status && ls", "git status | ls; ls", True),
        ("git status && ls", "git stash", False),
        ("python x.py", "python -c 'print(1)'", False),
        ("ls", "ls > sums.py", False),
        ("git reset --hard", "git reset --hard", False),
        ("echo $(cat name)", "echo $(cat name)", False),
        ("echo 'a b'", "echo 'a b'", True),
        ("echo 'a b'", "echo a b", False),
        ("echo ok #\rrm -rf ~", "echo ok", False),
    ],
)
def test_a_command_lets_its_like_run_and_nothing_else(approved: str, then: str, runs: bool, tmp_path: Path) -> None:
    rules = rules_like("shell", shell(approved))
    decision = decide("ask", ShellTool(), shell(then), root=tmp_path, rules=rules)
    assert (decision.verdict == "allow") == runs


@pytest.mark.parametrize(
    ("approved", "then", "runs"),
    [
        ("sums.py", "sums.py", True),
        ("./sums.py", "sums.py", True),
        ("sums.py", "deep/sums.py", False),
        ("deep/sums.py", "deep/sums.py", True),
        ("deep/*.py", "deep/sums.py", False),
        ("../sums.py", "sums.py", False),
    ],
)
def test_an_edit_lets_the_same_file_change_and_no_other(approved: str, then: str, runs: bool, tmp_path: Path) -> None:
    rules = rules_like("edit", {"path": approved})
    decision = decide("ask", EditTool(), {"path": then}, root=tmp_path, rules=rules)
    assert (decision.verdict == "allow") == runs


def test_a_rule_of_ones_own_is_read_or_refused() -> None:
    assert str(rule_of("shell", "git diff")) == "allow shell: git diff"
    for wrong in ("", "'open"):
        with pytest.raises(M3Error):
            rule_of("shell", wrong)
