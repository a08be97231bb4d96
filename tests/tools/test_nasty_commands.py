"""Commands that would wait, stay, or flood: the shell tool returns in time, leaves nothing, and keeps its memory."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import m3_tools
from m3_tools.base import ToolContext, ToolResult, call_tool
from m3_tools.output import MAX_SPILL_BYTES
from m3_tools.process import child_environment
from m3_tools.sandbox import detect
from m3_tools.shell import ShellTool
from tests.tools.nasty.children import CHILDREN, IN_SANDBOX

Call = Callable[..., ToolResult]
WORKER = Path(__file__).parent / "nasty" / "worker.py"
NUM_WORKERS = 3
DEADLINE_S = 0.6
MAX_BYTES = 200 * 10**6
"""Of the whole process that runs the commands, Python and the tools included."""


class Peak:
    """The highest resident memory of this process while it is watched, above that at the start."""

    def __enter__(self) -> Peak:
        self._process, self._stop = psutil.Process(), threading.Event()
        self._before = self.most = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.most = max(self.most, self._process.memory_info().rss)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def grown_bytes(self) -> int:
        return self.most - self._before


@pytest.fixture
def nothing_left() -> Iterator[str]:
    """A number that commands sleep for; afterwards no process may have it among its arguments."""
    marker = f"{5000 + os.getpid() % 1000}.{time.monotonic_ns() % 1_000_000}"
    yield marker
    left = [p for p in psutil.process_iter(["cmdline"]) if marker in " ".join(p.info["cmdline"] or ())]
    assert [p.info["cmdline"] for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


@pytest.fixture(scope="module")
def results() -> Mapping[str, Mapping[str, Any]]:
    """What became of each nasty child. Several programs run them, each one after another."""
    commands = [(name, command, name in IN_SANDBOX) for name, command in CHILDREN.items()]
    with ThreadPoolExecutor(NUM_WORKERS) as pool:
        rows = pool.map(_worked, [commands[number::NUM_WORKERS] for number in range(NUM_WORKERS)])
        return {row["name"]: row for some in rows for row in some}


def _worked(commands: Sequence[tuple[str, str, bool]]) -> list[dict[str, Any]]:
    tools = Path(m3_tools.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(WORKER)], input=json.dumps([DEADLINE_S, commands]), capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tools)}, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", CHILDREN)
def test_it_returns_at_the_deadline_and_nothing_is_left(results: Mapping[str, Mapping[str, Any]], name: str) -> None:
    if name in IN_SANDBOX and detect().backend is None:
        pytest.skip("no sandbox works here")
    result = results[name]
    assert result["left"] == []
    assert result["took_s"] < DEADLINE_S + 3, result
    assert result["chars"] < 16_000
    assert result["peak_bytes"] < MAX_BYTES


def test_there_are_fifty_different_ones() -> None:
    assert len(set(CHILDREN.values())) >= 50


def test_an_interrupt_leaves_nothing_either(context: ToolContext, nothing_left: str) -> None:
    async def interrupted() -> None:
        command = CHILDREN["a daemon that ignores TERM"].format(s=nothing_left)
        task = asyncio.ensure_future(call_tool(ShellTool(), {"command": command}, context))
        await asyncio.sleep(0.4)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < 3

    asyncio.run(interrupted())


def test_a_gigabyte_of_output_in_bounded_memory(call: Call, context: ToolContext) -> None:
    with Peak() as peak:
        result = call(ShellTool(), command="echo first; head -c 1073741824 /dev/zero; echo; echo last", timeout_s=120)
    assert result.text.startswith("exit code 0")
    assert "\nfirst\n" in result.text
    assert result.text.endswith("\nlast")
    assert len(result.text) < 16_000
    assert f"; the first {MAX_SPILL_BYTES // 2**20} MiB of it: $M3_OUTPUT/" in result.text
    (file,) = context.spill_dir.iterdir()
    assert file.stat().st_size == MAX_SPILL_BYTES
    assert peak.grown_bytes < 40e6


def test_endless_output_is_cut_off_at_the_deadline(call: Call) -> None:
    started = time.monotonic()
    with Peak() as peak:
        result = call(ShellTool(), command="yes", timeout_s=1)
    assert time.monotonic() - started < 1 + 3
    assert result.text.startswith("stopped at the deadline of 1 s")
    assert peak.grown_bytes < 40e6


def test_an_endless_line_on_a_screen_that_watches(context: ToolContext) -> None:
    pieces = [0, 0]

    def note(text: str) -> None:
        pieces[0] += 1
        pieces[1] = max(pieces[1], len(text))

    context.on_output = note
    with Peak() as peak:
        asyncio.run(call_tool(ShellTool(), {"command": "head -c 30000000 /dev/zero | tr '\\0' x"}, context))
    assert pieces[0] > 10
    assert pieces[1] <= 1 << 16
    assert peak.grown_bytes < 40e6


WAITING = {
    "standard input": "cat; python3 -c 'input()'; read x",
    "a password": "python3 -c 'import getpass; getpass.getpass()'",
    "the terminal": "read x < /dev/tty; python3 -c 'open(\"/dev/tty\").read()'",
    "an editor for a message": "git commit --allow-empty; git commit --amend --allow-empty; git tag -a v1",
    "an editor that is configured": "git -c core.editor='sleep 60' commit --allow-empty",
    "an editor for a list": "git rebase -i HEAD~1; git -c sequence.editor='sleep 60' rebase -i HEAD~1",
    "a pager": "git log; git -p log; git -c core.pager='sleep 60' -p log; git -c pager.log='sleep 60' log",
    "a pager for branches and help": "git branch -a; git diff HEAD~1; git config --list; git help -a",
    "credentials": "printf 'protocol=https\\nhost=h.invalid\\n\\n' | git credential fill",
    "credentials from a window": (
        "printf 'protocol=https\\nhost=h.invalid\\n\\n' > q;"
        "SSH_ASKPASS='sleep' git -c core.askPass='sleep 60' credential fill < q"
    ),
    "a question about overwriting": "touch a b; chmod 444 b; mv -i a b; cp -i b a; rm -i b",
    "a choice": "git add -p; git clean -i; git checkout -p",
}  # fmt: skip


@pytest.mark.parametrize("name", WAITING)
def test_nothing_waits_for_a_person(call: Call, context: ToolContext, name: str) -> None:
    made = (
        "git init -q; git config user.name a; git config user.email a@b; echo 1 > f; git add f; git commit -qm 1;"
        "echo 2 > f; git commit -qam 2; echo 3 > f"
    )
    subprocess.run(["bash", "-c", made], cwd=context.root, check=True)
    result = call(ShellTool(), command=WAITING[name], timeout_s=8)
    assert "deadline" not in result.text, result.text


def test_the_environment_asks_nobody_and_colours_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "GIT_ASKPASS", "SSH_ASKPASS", "PAGER", "EDITOR", "TERM"):
        monkeypatch.setenv(name, "mine")
    environment = child_environment({})
    expected = {
        "PAGER": "cat", "GIT_PAGER": "cat", "GH_PAGER": "cat", "MANPAGER": "cat", "AWS_PAGER": "",
        "EDITOR": "true", "VISUAL": "true", "GIT_EDITOR": "true", "GIT_SEQUENCE_EDITOR": "true",
        "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS_REQUIRE": "never", "PIP_NO_INPUT": "1",
        "DEBIAN_FRONTEND": "noninteractive", "GH_PROMPT_DISABLED": "1", "NPM_CONFIG_YES": "true",
        "CI": "1", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    assert {name: environment.get(name) for name in expected} == expected
    assert not {"FORCE_COLOR", "CLICOLOR_FORCE"} & set(environment)
    assert child_environment({"A": "b"})["PAGER"] == "cat"  # a given environment is made quiet too
    assert child_environment({}, {"CI": "0"})["CI"] == "0"


def test_what_python_prints_comes_at_once(call: Call, context: ToolContext) -> None:
    seen: list[tuple[float, str]] = []
    context.on_output = lambda text: seen.append((time.monotonic(), text))
    call(ShellTool(), command="python3 -c \"import time; print('one'); time.sleep(0.5); print('two')\"")
    assert "".join(text for _, text in seen) == "one\ntwo\n"
    assert seen[-1][0] - seen[0][0] > 0.3
