"""Programs in a terminal: real ones are started, typed into and looked at; none stays, and none fills the memory."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from m3_tools import pseudo_terminal
from m3_tools.base import CommandBlock, ToolContext, ToolResult, call_tool
from m3_tools.jobs import MAX_JOBS, Jobs
from m3_tools.pseudo_terminal import MAX_SCROLLED_LINES
from m3_tools.sandbox import BACKENDS, Backend, Sandbox, try_backend, work_tree_policy
from m3_tools.shell import ShellTool
from m3_tools.terminal import TerminalTool

Use = Callable[..., Awaitable[ToolResult]]
Scene = Callable[[Callable[[Use], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def play(context: ToolContext) -> Scene:
    """Runs a scene, which gets the tool as a function; afterwards everything is stopped."""

    def run(scene: Callable[[Use], Coroutine[Any, Any, None]]) -> None:
        context.jobs = Jobs()

        async def use(action: str, **arguments: object) -> ToolResult:
            return await call_tool(TerminalTool(), {"action": action, **arguments}, context)

        async def whole() -> None:
            assert context.jobs is not None
            try:
                await scene(use)
            finally:
                await context.jobs.close()

        asyncio.run(whole())

    return run


@pytest.fixture
def marker() -> Iterator[str]:
    """Seconds to sleep for; afterwards nothing may sleep for so long."""
    marker = f"7000.{time.monotonic_ns() % 10**9}"
    yield marker
    assert not [p for p in psutil.process_iter(["cmdline"]) if marker in " ".join(p.info["cmdline"] or ())]


async def see(use: Use, word: str, **arguments: object) -> str:
    """Read until the word is on the screen; gives the answer."""
    for _ in range(30):
        if word in (text := (await use("read", number=1, wait_s=1, **arguments)).text):
            return text
    raise AssertionError(f"{word!r} did not come: {text}")


def test_a_repl_remembers_and_ends(play: Scene) -> None:
    async def scene(use: Use) -> None:
        first = await use("start", command="python3 -q", wait_s=20)
        assert first.text.startswith("terminal 1 (pid ")
        assert ">>>" in first.text
        await use("send", number=1, text="x = 6\n")
        assert "\n42\n>>>" in (await use("send", number=1, text="x * 7", keys=["enter"])).text
        block = (await use("read", number=1, wait_s=0)).display[0]
        assert isinstance(block, CommandBlock)
        assert block.goes_on
        last = await use("send", number=1, keys=["ctrl-d"], wait_s=20)
        assert last.text.startswith("terminal 1 ended with exit code 0\n")
        gone = await use("send", number=1, text="x\n")
        assert gone.is_error
        assert "has ended" in gone.text

    play(scene)


def test_a_debugger(play: Scene, context: ToolContext) -> None:
    (context.root / "a.py").write_text("total = 0\nfor n in range(3):\n    total += n\nprint(total)\n")

    async def scene(use: Use) -> None:
        assert "-> total = 0" in (await use("start", command="python3 -m pdb a.py", wait_s=20)).text
        assert "-> print(total)" in (await use("send", number=1, text="until 4\n", wait_s=20)).text
        assert "\n3\n" in (await use("send", number=1, text="p total\n")).text

    play(scene)


def test_a_program_that_asks_and_control_c(play: Scene) -> None:
    async def scene(use: Use) -> None:
        asked = await use("start", command="read -sp 'name? ' x; echo; echo \"hi $x\"; trap 'exit 7' INT; sleep 60")
        assert asked.text.endswith("\nname?")
        assert (await use("send", number=1, text="ann\n")).text.endswith("\nhi ann")
        assert (await use("send", number=1, keys=["ctrl-c"], wait_s=20)).text.startswith(
            "terminal 1 ended with exit code 7"
        )

    play(scene)


EDITOR = """
import sys
path = sys.argv[1]
lines = open(path).read().splitlines()
print(lines[0])
verb = input("verb? ")
open(path, "w").write("\\n".join([verb + lines[0][4:], *lines[1:]]) + "\\n")
"""


def test_the_list_of_an_interactive_rebase(play: Scene, context: ToolContext) -> None:
    made = (
        "git init -q; git config user.name a; git config user.email a@b; for n in 1 2 3; do echo $n > f$n; git add .;"
        "git commit -qm c$n; done"
    )
    subprocess.run(["bash", "-c", made], cwd=context.root, check=True)
    (context.root / "editor.py").write_text(EDITOR)
    context.environment = {"PATH": "/usr/bin:/bin", "HOME": str(context.root), "EDITOR": "python3 editor.py"}

    async def scene(use: Use) -> None:
        assert "pick" in (await use("start", command="git rebase -i HEAD~2", wait_s=20)).text
        await use("send", number=1, text="drop\n", wait_s=20)

    play(scene)
    log = subprocess.run(["git", "log", "--format=%s"], cwd=context.root, capture_output=True, text=True, check=True)
    assert log.stdout == "c3\nc1\n"


CURSES = """
import curses
def main(window):
    chosen = 0
    while True:
        for n, word in enumerate(("red", "blue")):
            window.addstr(n + 2, 4, ("> " if n == chosen else "  ") + word)
        key = window.getch()
        if key == curses.KEY_DOWN: chosen = 1
        if key == 10: return
curses.wrapper(main)
"""


def test_a_screen_that_is_drawn(play: Scene, context: ToolContext) -> None:
    (context.root / "menu.py").write_text(CURSES)

    async def scene(use: Use) -> None:
        first = await use("start", command="python3 menu.py", wait_s=20)
        assert first.text.endswith("    > red\n      blue")
        assert (await use("send", number=1, keys=["down"])).text.endswith("      red\n    > blue")
        assert "ended with exit code 0" in (await use("send", number=1, keys=["enter"], wait_s=20)).text

    play(scene)


def test_what_left_the_screen_is_told_once(play: Scene) -> None:
    async def scene(use: Use) -> None:
        first = await use("start", command="seq 50; read x; seq 1000; read x", wait_s=20)
        assert "\n1\n2\n3\n" in first.text
        assert first.text.endswith("\n49\n50")
        assert "\n1\n2\n" not in (await use("read", number=1, wait_s=0)).text
        many = (await use("send", number=1, keys=["enter"], wait_s=20)).text
        assert " lines left out …]\n" in many
        assert many.endswith("\n999\n1000")
        assert len(many.splitlines()) < MAX_SCROLLED_LINES + 40

    play(scene)


def test_a_flood_is_held_until_somebody_looks(play: Scene) -> None:
    async def scene(use: Use) -> None:
        process = psutil.Process()
        before = process.memory_info().rss
        flood = await use("start", command="yes", wait_s=30)
        assert "it waits, since it prints without end" in flood.text
        deadline, used = time.monotonic() + 30, 1.0
        while used >= 0.3 and time.monotonic() < deadline:  # what may be read meanwhile is read
            start = process.cpu_times().user
            await asyncio.sleep(0.5)
            used = process.cpu_times().user - start
        assert used < 0.3
        assert len((await use("read", number=1, wait_s=30)).text) < 1_000
        assert process.memory_info().rss - before < 50e6
        assert (await use("stop", number=1)).text.startswith("terminal 1 is stopped")

    play(scene)


@pytest.mark.parametrize("rest", ["sleep {0}", "exit 0", "trap '' HUP TERM INT; sleep {0}; sleep {0}"])
def test_nothing_stays(play: Scene, marker: str, rest: str) -> None:
    line = f"setsid sleep {marker} & (setsid nohup sleep {marker} >/dev/null 2>&1 &); {rest.format(marker)}"

    async def scene(use: Use) -> None:
        await use("start", command=line, wait_s=0.3)
        assert (await use("stop", number=1)).text.startswith("terminal 1 ")

    play(scene)


def test_the_end_of_the_run_stops_all(play: Scene, context: ToolContext, marker: str) -> None:
    async def scene(use: Use) -> None:
        for _ in range(MAX_JOBS):
            await use("start", command=f"sleep {marker}", wait_s=0)
        assert "Too much runs in the background: 1 (sleep " in (await use("start", command="ls")).text
        assert context.jobs is not None
        assert len(await context.jobs.close()) == MAX_JOBS

    play(scene)


def test_an_interrupt_while_it_starts_leaves_nothing(play: Scene, context: ToolContext, marker: str) -> None:
    async def scene(use: Use) -> None:
        for delay in (0, 0.001, 0.005, 0.02):
            task = asyncio.ensure_future(use("start", command=f"sleep {marker}"))
            await asyncio.sleep(delay)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    play(scene)


def test_a_secret_is_redacted_where_a_line_is_wrapped(play: Scene, context: ToolContext) -> None:
    secret = "ghp_" + "a1B2" * 9
    (context.root / "f").write_text(f"{'x ' * 45}{secret}\n")

    async def scene(use: Use) -> None:
        text = (await use("start", command="cat f; read x", wait_s=20)).text.replace("\n", "")
        assert "[secret left out: " in text
        assert secret[:12] not in text
        assert secret[-12:] not in text

    play(scene)


def test_what_a_program_asks_the_terminal_is_answered_and_odd_sequences_do_no_harm(play: Scene) -> None:
    odd = "\\033[>4;2m\\033[?9999h\\033[38;5m\\033]0;title\\007abc"
    ask = f"printf '{odd}\\033[6n'; read -rsd R x; printf %q \"$x\""

    async def scene(use: Use) -> None:
        await use("start", command=f"stty raw -echo; {ask}; sleep 20", wait_s=20)
        assert (await see(use, "[1")).endswith("abc$'\\E[1;4'")

    play(scene)


def test_a_program_that_reads_nothing(play: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pseudo_terminal, "_TYPING_TIMEOUT_S", 0.3)

    async def scene(use: Use) -> None:
        await use("start", command="stty raw -echo; echo ready; sleep 60", wait_s=20)
        result = await use("send", number=1, text="x" * 20_000)
        assert result.is_error
        assert "the program reads nothing" in result.text

    play(scene)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "start"}, "Give the command line"),
        ({"action": "start", "command": "ls", "workdir": "missing"}, "missing"),
        ({"action": "read", "number": 3}, "There is no terminal 3. Running: none."),
        ({"action": "send", "number": 1}, "There is no terminal 1"),
    ],
)
def test_what_is_wrong_is_told(play: Scene, arguments: dict[str, object], words: str) -> None:
    async def scene(use: Use) -> None:
        action = str(arguments["action"])
        result = await use(action, **{k: v for k, v in arguments.items() if k != "action"})
        assert result.is_error
        assert words in result.text

    play(scene)


def test_keys_have_names(play: Scene) -> None:
    async def scene(use: Use) -> None:
        await use("start", command="cat -v; true", wait_s=0)
        wrong = await use("send", number=1, keys=["F13"])
        assert "There is no key 'F13'. Keys: enter, tab, " in wrong.text
        assert "^[[5~" in (await use("send", number=1, keys="page_up", wait_s=20)).text

    play(scene)


def test_a_job_is_no_terminal(play: Scene, context: ToolContext) -> None:
    async def scene(use: Use) -> None:
        patient = dataclasses.replace(context, jobs=context.jobs)
        assert patient.jobs is not None
        patient.jobs.patience_s = 0.1
        await call_tool(ShellTool(), {"command": "sleep 20"}, patient)
        assert "There is no terminal 1. Running: 1 (sleep 20)." in (await use("read", number=1)).text

    play(scene)


@pytest.mark.parametrize(
    "backend",
    [backend for backend in BACKENDS if (backend.name == "seatbelt") == (sys.platform == "darwin")],
    ids=lambda backend: backend.name,
)
def test_inside_the_sandbox_it_has_a_terminal_and_nothing_else(
    play: Scene, context: ToolContext, marker: str, backend: Backend, tmp_path: Path
) -> None:
    if not try_backend(backend).works:
        pytest.skip(f"{backend.name} does not work here")
    policy = work_tree_policy(context.root, readable=(Path(sys.prefix), Path(sys.base_prefix)))
    context.sandbox = Sandbox(backend, policy)
    outside = tmp_path / "outside"
    push = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b'x')"

    async def scene(use: Use) -> None:
        line = f"echo x > {outside}; echo asked > /dev/tty; trap 'echo caught' INT; sleep {marker}"
        await use("start", command=f'{line}; {sys.executable} -c "{push}"', wait_s=0)
        await see(use, "asked")
        text = (await use("send", number=1, keys=["ctrl-c"], wait_s=20)).text
        assert "caught" in text
        if "Operation not permitted" not in text:
            assert "ended" in await see(use, "Operation not permitted")

    play(scene)
    assert not outside.exists()
