"""How a fix ends when it cannot succeed: the exit code, the sentence, and a tree that is as it was."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from m3agent.events import RunEnded, event_from_json
from m3agent.exits import Exit
from m3agent.llm.protocol import Unavailable
from m3agent.llm.scripted import ScriptedModel

Run = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[3]
RIGHT = {"needs_reorder": [("replace", "L2|", "    return level <= limit", -1.0)]}
READ = [("shop/stock.py", "needs_reorder", -0.5)]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--issue", "7"], Exit.USAGE, "issues/7.md"),
        (["--issue", "nowhere.md"], Exit.USAGE, "nowhere.md"),
        (["--issue", "1", "--model", "nonsense"], Exit.USAGE, "there is no model 'nonsense'"),
        (["--issue", "1", "--model", "some/model"], Exit.USAGE, "m3 models pull some/model"),
        (["--issue", "1", "--model", "."], Exit.MODEL_UNAVAILABLE, "config.json"),
        (["--issue", "1", "--candidates", "0"], Exit.USAGE, "--candidates"),
    ],
)
@pytest.mark.parametrize("output", ["text", "json"])
def test_wrong_usage_is_one_line_and_leaves_nothing(
    shop: Path, tmp_path: Path, options: list[str], code: Exit, words: str, output: str
) -> None:
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools"))
    environment = {**os.environ, "PYTHONPATH": paths, "M3_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "m3agent", "fix", "--repo", str(shop), *options, "--output", output]
    done = subprocess.run(
        command, env=environment, cwd=shop, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("m3: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert not list((tmp_path / "home").glob("sessions/*"))


def test_no_such_folder(tmp_path: Path, fix: Run, shop: Path) -> None:
    result = asyncio.run(fix(tmp_path / "nowhere", None, str(shop / "issues/1.md")))
    assert result.code == Exit.USAGE
    assert "no folder" in result.summary


def test_nothing_fails(shop: Path, fix: Run, commit: Any) -> None:
    (shop / "shop/stock.py").write_text((shop / "shop/stock.py").read_text().replace("<", "<="))
    commit(shop)
    result = asyncio.run(fix(shop, None))
    assert (result.code, result.outcome) == (Exit.NOT_REPRODUCED, "not_reproduced")
    assert "all 4 tests pass" in result.summary


def test_no_tests(shop: Path, fix: Run, proposing: Any, commit: Any) -> None:
    shutil.rmtree(shop / "tests")
    commit(shop)
    result = asyncio.run(fix(shop, proposing(READ, RIGHT), test_command=""))
    assert (result.code, result.outcome) == (Exit.UNVERIFIED, "unverified")
    assert "no tests were found" in result.summary


@pytest.mark.parametrize("command", ["no-such-command --all", "/nowhere/python -m pytest"])
def test_tests_that_cannot_start(shop: Path, fix: Run, command: str) -> None:
    result = asyncio.run(fix(shop, None, test_command=command))
    assert (result.code, result.outcome) == (Exit.BROKEN_ENVIRONMENT, "broken_environment")
    assert command.split()[0] in result.summary


def test_the_step_budget(shop: Path, fix: Run, proposing: Any) -> None:
    result = asyncio.run(fix(shop, proposing(READ, RIGHT), max_steps=2))
    assert (result.code, result.outcome) == (Exit.BUDGET, "budget")
    assert "--max-steps" in result.summary


def test_the_time_budget_holds_while_a_candidate_hangs(shop: Path, fix: Run, proposing: Any) -> None:
    model = proposing(READ, {"needs_reorder": [("replace", "L2|", "    while True: level = 0", -1.0)]})
    start = time.monotonic()
    result = asyncio.run(fix(shop, model, time_limit_s=4.0))
    assert (result.code, result.outcome) == (Exit.BUDGET, "budget")
    assert "(--time-limit), in the phase candidates" in result.summary
    assert time.monotonic() - start < 8
    assert model.closed == 1


def test_a_model_that_is_not_there(shop: Path, fix: Run) -> None:
    result = asyncio.run(
        fix(shop, ScriptedModel([[Unavailable("the server at x is down; start it")]]), strategy="search")
    )
    assert result.code == Exit.MODEL_UNAVAILABLE
    assert "start it" in result.summary


def test_flaky_failures_are_no_reproduction(shop: Path, fix: Run, commit: Any) -> None:
    test = (
        "import pathlib, unittest\n\n\nclass FlakyTest(unittest.TestCase):\n    def test_it(self):\n"
        "        marker = pathlib.Path(__file__).parent / 'ran-before'\n"
        "        ran = marker.exists()\n        marker.touch()\n        self.assertTrue(ran)\n"
    )
    (shop / "tests/test_stock.py").write_text(test)
    commit(shop)
    result = asyncio.run(fix(shop, None))
    assert result.code == Exit.NOT_REPRODUCED
    assert "flaky" in result.summary


def start_process(shop: Path, tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(str(ROOT / name) for name in (".", "runtime", "kernels", "model", "tools"))
    temporary = tmp_path / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "M3_"))},
        "PYTHONPATH": path,
        "M3_HOME": str(tmp_path / "home"),
        "TMPDIR": str(temporary),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "m3agent", "fix", "--repo", str(shop), "--issue", "1", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_no_work_tree_no_process_and_a_valid_session(
    number: signal.Signals, code: int, shop: Path, tmp_path: Path
) -> None:
    command = "touch started; setsid sleep 300 & sleep 300"  # in the work tree, which the sandbox shows
    process = start_process(shop, tmp_path, "--test", command, "--output", "stream-json")
    deadline = time.monotonic() + 30
    while not list((tmp_path / "tmp").glob("m3-fix-*/shop/started")) and time.monotonic() < deadline:
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    assert [child for child in children if child.name() == "sleep"]
    assert list((tmp_path / "tmp").glob("m3-fix-*/shop/started"))
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert list((tmp_path / "tmp").iterdir()) == []
    assert psutil.wait_procs(children, timeout=5)[1] == []
    last = event_from_json(json.loads(output.splitlines()[-1]))
    assert isinstance(last, RunEnded)
    assert (last.exit_code, last.outcome) == (code, "interrupted")
    (session,) = (tmp_path / "home" / "sessions").glob("*.jsonl")
    lines = session.read_text().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert subprocess.run(["git", "status", "--porcelain"], cwd=shop, capture_output=True, text=True).stdout == ""


def test_json_output_is_one_object_on_stdout(shop: Path, tmp_path: Path) -> None:
    process = start_process(shop, tmp_path, "--test", "no-such-command", "--output", "json")
    output, errors = process.communicate(timeout=60)
    result = json.loads(output)
    assert process.returncode == result["exit_code"] == Exit.BROKEN_ENVIRONMENT
    assert result["outcome"] == "broken_environment"
    assert "no-such-command" in result["summary"]
    assert "baseline" in errors
