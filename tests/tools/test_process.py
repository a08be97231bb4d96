"""A command returns in time, leaves nothing running, and cannot flood the memory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from m3_tools.base import ToolContext, ToolError, ToolResult
from m3_tools.output import Output, clean
from m3_tools.process import TOKEN, ProcessResult, child_environment, kill_tree, run_process
from m3_tools.shell import ShellTool

Call = Callable[..., ToolResult]


def run(command: str, tmp_path: Path, timeout_s: float = 10) -> ProcessResult:
    return asyncio.run(
        run_process(
            ["bash", "-c", command],
            cwd=tmp_path,
            environment=child_environment({}),
            timeout_s=timeout_s,
            spill_dir=tmp_path / "spill",
        )
    )


def sleepers(marker: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if marker in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


NASTY = {
    "plain": "sleep {0}",
    "background": "sleep {0} &",
    "ignores TERM": "trap '' TERM; sleep {0}; sleep {0}",
    "own session": "setsid sleep {0} & sleep {0}",
    "own session, orphaned": "(setsid sleep {0} &) ; sleep 0.1",
    "own session, ignores TERM": "setsid bash -c 'trap \"\" TERM; sleep {0}; sleep {0}' & sleep {0}",
    "daemon": (
        "python3 -c 'import os\nif os.fork()==0:\n os.setsid()\n"
        " if os.fork()==0: os.execvp(\"sleep\",[\"sleep\",\"{0}\"])\n"
        " os._exit(0)'; sleep 0.2"
    ),
    "nohup and disown": "nohup sleep {0} >/dev/null 2>&1 & disown; sleep 0.05",
    "closed its output": "(exec >&- 2>&-; setsid sleep {0}) & sleep 0.05",
    "stopped": "sleep {0} & kill -STOP $!; sleep {0}",
    "forks on": "f() {{ sleep {0} & sleep 0.01; f; }}; f",
    "reads a terminal": "read x < /dev/tty || read x; sleep {0}",
}  # fmt: skip


@pytest.mark.parametrize("name", NASTY)
def test_nothing_is_left_running(tmp_path: Path, name: str) -> None:
    marker = f"{1000 + os.getpid()}.{list(NASTY).index(name)}"
    started = time.monotonic()
    run(NASTY[name].format(marker), tmp_path, timeout_s=0.5)
    assert time.monotonic() - started < 0.5 + 3
    assert sleepers(marker) == []


@pytest.mark.parametrize("forks", [30, 100, 300])
def test_a_chain_of_forks_is_followed_to_its_end(tmp_path: Path, forks: int) -> None:
    """Each process lives for a moment only, so that a look at all processes can meet none of them."""
    code = f"import os\nfor _ in range({forks}):\n if os.fork(): os._exit(0)\n os.setsid()\n"
    marker = f"{7000 + forks}.{os.getpid()}"
    code += f'os.execvp("sleep", ["sleep", "{marker}"])'
    for _ in range(3):
        run(f"python3 -c '{code}'", tmp_path)
        assert sleepers(marker) == []


def test_a_process_in_the_middle_of_an_exec_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows no environment then, belongs to no session of the command, and its parent may be gone."""
    read = psutil.Process.environ
    looks = [0]

    def at_first_none(process: psutil.Process) -> dict[str, str]:
        if process.pid != orphan:
            return read(process)
        looks[0] += 1
        return {} if looks[0] < 4 else read(process)

    token = "of-a-test"
    code = "import os\nif os.fork(): os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\n"
    code += f'os.execvp("sleep", ["sleep", "7002.{os.getpid()}"])'
    environment = {**os.environ, TOKEN: token}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        orphan = int(started.stdout.readline())
        monkeypatch.setattr(psutil.Process, "environ", at_first_none)
        kill_tree(-1, token)
    assert looks[0] > 3
    assert sleepers(f"7002.{os.getpid()}") == []


def test_it_returns_when_the_shell_exits_though_a_child_holds_the_pipe(tmp_path: Path) -> None:
    result = run("echo begun; setsid sleep 71.5 & exit 3", tmp_path)
    assert (result.exit_code, result.timed_out, result.text) == (3, False, "begun\n")
    assert result.duration_s < 2
    assert any("sleep 71.5" in line for line in result.stopped)


def test_the_deadline_is_kept_and_what_was_printed_is_not_lost(tmp_path: Path) -> None:
    result = run("echo first; sleep 60", tmp_path, timeout_s=0.4)
    assert result.timed_out
    assert result.exit_code is None
    assert result.text == "first\n"
    assert result.duration_s < 2


def test_cancelling_leaves_nothing_running(tmp_path: Path) -> None:
    async def cancel() -> None:
        task = asyncio.ensure_future(
            run_process(
                ["bash", "-c", "setsid sleep 72.5 & trap '' TERM; sleep 72.5"],
                cwd=tmp_path, environment=child_environment({}), timeout_s=60,
            )
        )  # fmt: skip
        while len(sleepers("72.5")) < 2:
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sleepers("72.5") == []

    asyncio.run(asyncio.wait_for(cancel(), 10))


def test_much_output_stays_in_bounded_memory_and_lies_on_disk(tmp_path: Path) -> None:
    before = psutil.Process().memory_info().rss
    result = run("printf start; head -c 100000000 /dev/zero | tr '\\0' x; printf end", tmp_path, timeout_s=30)
    assert result.output_bytes == 100_000_008
    assert len(result.text) < 40_000
    assert result.text.startswith("startxxx")
    assert result.text.endswith("xxxend")
    assert "bytes left out" in result.text
    assert result.output_path is not None
    assert result.output_path.stat().st_size == 100_000_008
    assert result.output_path.stat().st_mode & 0o077 == 0
    assert psutil.Process().memory_info().rss - before < 50e6


def test_what_fits_leaves_no_file(tmp_path: Path) -> None:
    assert run("seq 100", tmp_path).output_path is None
    assert not (tmp_path / "spill").exists()


@pytest.mark.parametrize(
    ("printed", "read"),
    [
        (b"a\xffb\n", "a\ufffdb\n"),
        (b"a\x00b\n", "a␀b\n"),
        (b"10%\r50%\r100%\ndone\r\n", "100%\ndone\n"),
        (b"\x1b[31mred\x1b[0m \x1b]0;title\x07x\n", "red x\n"),
        (b"\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\\n", "link\n"),
        ("ü →\n".encode(), "ü →\n"),
    ],
)
def test_any_bytes_become_plain_text(tmp_path: Path, printed: bytes, read: str) -> None:
    (tmp_path / "x").write_bytes(printed)
    assert run("cat x", tmp_path).text == read


def test_cleaned_text_cannot_drive_a_terminal() -> None:
    text = clean("".join(map(chr, range(0x110))) + "\x1b[2J\x1b]52;c;x\x07\x9b31m")
    assert not any((c < " " and c not in "\n\t") or "\x7f" <= c <= "\x9f" for c in text)


def test_head_and_tail_meet_without_a_gap_or_a_repeat() -> None:
    for total in range(0, 30):
        output = Output(None, 10, 10)
        data = bytes(65 + i % 26 for i in range(total))
        for i in range(0, total, 3):
            output.add(data[i : i + 3])
        if total <= 20:
            assert output.text() == data.decode()
        else:
            assert output.num_omitted_bytes == total - 20
            assert output.text().startswith(data[:10].decode())
            assert output.text().endswith(data[-10:].decode())


def test_nothing_waits_for_a_person(tmp_path: Path) -> None:
    result = run(
        "cat; git config --help | cat >/dev/null; test -t 0 || echo no terminal; echo $GIT_TERMINAL_PROMPT", tmp_path
    )
    assert result.text.endswith("no terminal\n0\n")
    repo = "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one"
    edited = run(
        f"{repo} && git -c user.name=a -c user.email=a@b commit -q --amend --allow-empty && git log --format=%s",
        tmp_path,
    )
    assert edited.exit_code == 0
    assert edited.text == "one\n"


def test_credentials_are_not_handed_on_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GH_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "DB_PASSWORD"):
        monkeypatch.setenv(name, "s")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    inherited = child_environment({})
    assert not {"GH_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "DB_PASSWORD"} & set(inherited)
    assert inherited["TOKENIZERS_PARALLELISM"] == "false"
    assert child_environment({"GH_TOKEN": "x"})["GH_TOKEN"] == "x"


def test_a_command_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no-such-program could not be started: No such file"):
        asyncio.run(run_process(["no-such-program"], cwd=tmp_path, environment={}, timeout_s=1))


def test_no_descriptors_are_left_open(tmp_path: Path) -> None:
    run("true", tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run("sleep 60 & yes | head -c 100000", tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


class TestShellTool:
    def test_exit_code_and_output(self, call: Call) -> None:
        result = call(ShellTool(), command="echo out; echo err >&2; exit 3")
        assert result.is_error
        assert result.text == "exit code 3\nout\nerr"

    def test_no_output_is_said(self, call: Call) -> None:
        result = call(ShellTool(), command="true")
        assert not result.is_error
        assert result.text == "exit code 0\n(no output)"

    def test_workdir_is_inside_the_repository(self, call: Call, context: ToolContext) -> None:
        (context.root / "sub").mkdir()
        assert call(ShellTool(), command="pwd", workdir="sub").text.endswith("/repo/sub")
        assert "outside" in call(ShellTool(), command="pwd", workdir="..").text

    def test_output_is_streamed(self, call: Call, context: ToolContext) -> None:
        pieces: list[str] = []
        context.on_output = pieces.append
        call(ShellTool(), command="echo a; sleep 0.2; echo b")
        assert "".join(pieces) == "a\nb\n"
        assert len(pieces) == 2

    def test_what_was_stopped_is_told(self, call: Call) -> None:
        assert "and stopped: " in call(ShellTool(), command="sleep 73 & echo x").text

    def test_the_deadline_is_told(self, call: Call) -> None:
        result = call(ShellTool(), command="echo x; sleep 60", timeout_s=0.3)
        assert result.text == (
            "stopped at the deadline of 0.3 s (exit code unknown); "
            "give a longer timeout_s (at most 3600) or a narrower command\nx"
        )
