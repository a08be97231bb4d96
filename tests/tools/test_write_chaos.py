"""The write path when things go wrong: a kill at any moment, no permission, no space. The old bytes or the new ones."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from m3_tools import atomic
from m3_tools.atomic import give_name, new_file, write_atomic
from m3_tools.base import Tool, ToolContext, ToolError, ToolResult, call_tool
from m3_tools.change import apply_change
from m3_tools.edit import EditTool
from m3_tools.edit_line import EditLineTool
from m3_tools.read import ReadTool
from m3_tools.shell import ShellTool
from m3_tools.write import WriteTool

KILLS = int(os.environ.get("M3_TEST_KILLS", "60"))
NUM_LINES = 4000
OLD = "old line\n" * 200
BIG = "a much longer new line\n" * 20_000


def context_of(root: Path) -> ToolContext:
    return ToolContext(root=root.resolve(), spill_dir=root.resolve().parent / "spill")


def run(tool: Tool[Any], context: ToolContext, **arguments: Any) -> ToolResult:
    return asyncio.run(call_tool(tool, arguments, context))


def in_child(body: Callable[[], None]) -> int:
    """Start `body` in a forked child and return its process id. The child exits with 0 unless `body` raises."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    return child


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def rewrite_for_ever(root: Path, way: str) -> None:
    """Turn every line of `f` from one number into the next, on and on."""
    context, path = context_of(root), root / "f"
    for number in range(1, 10**9):
        if way == "write":
            run(ReadTool(), context, path="f")
            run(WriteTool(), context, path="f", content=f"{number}\n" * NUM_LINES)
        elif way == "edit":
            run(EditTool(), context, path="f", old=f"{number - 1}\n", new=f"{number}\n", replace_all=True)
        else:
            write_atomic(path, f"{number}\n".encode() * NUM_LINES)


@pytest.mark.parametrize("way", ["write", "edit", "write_atomic"])
@pytest.mark.parametrize("memory", [True, False], ids=["tmpfs", "disk"])
def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path: Path, way: str, memory: bool) -> None:
    chooser = random.Random(f"{way} {memory}")
    strays = advanced = 0
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if memory and os.access("/dev/shm", os.W_OK) else tmp_path
    ) as folder:
        root = Path(folder)
        for turn in range(KILLS // 6):
            (root / "f").write_bytes(b"0\n" * NUM_LINES)
            child = in_child(lambda: rewrite_for_ever(root, way))
            while turn % 2 and (root / "f").read_bytes().startswith(b"0"):
                time.sleep(0.001)  # a slow machine may need longer than any wait below until the first write
            time.sleep(chooser.uniform(0.001, 0.15))
            os.kill(child, signal.SIGKILL)
            assert exit_code(child) == -signal.SIGKILL
            lines = (root / "f").read_bytes().split(b"\n")
            assert len(lines) == NUM_LINES + 1
            assert len(set(lines[:-1])) == 1, "a mixture of two versions"
            advanced += lines[0] != b"0"
            strays += len(os.listdir(root)) - 1
            write_atomic(root / "f", b"after\n")
            assert os.listdir(root) == ["f"]  # what a killed writer left is gone with the next write
    assert advanced >= KILLS // 12
    assert strays <= KILLS // 6  # at most the one file of a kill, and hardly ever that


@pytest.mark.parametrize("unnamed", [True, False])
def test_the_file_of_a_living_writer_is_no_leftover(tmp_path: Path, unnamed: bool) -> None:
    with new_file(tmp_path, 0o600, unnamed=unnamed) as (descriptor, temporary):
        if unnamed:
            give_name(descriptor, temporary)
        (tmp_path / ".m3-0123456789abcdef.tmp").touch()  # a killed writer's
        (tmp_path / ".m3-notes.tmp").touch()  # somebody else's
        write_atomic(tmp_path / "f", b"x")
        assert sorted(os.listdir(tmp_path)) == sorted([".m3-notes.tmp", temporary.name, "f"])


def test_many_writers_at_once_leave_one_whole_version(tmp_path: Path) -> None:
    def body(number: int) -> None:
        for _ in range(40):
            write_atomic(tmp_path / "f", f"{number}\n".encode() * NUM_LINES)

    children = [in_child(partial(body, number)) for number in range(4)]
    deadline = time.monotonic() + 60
    while any(_is_running(child) for child in children) and time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            lines = (tmp_path / "f").read_bytes().split(b"\n")
            assert (len(lines), len(set(lines[:-1]))) == (NUM_LINES + 1, 1)
    assert [exit_code(child) for child in children] == [0] * 4
    assert os.listdir(tmp_path) == ["f"]


def _is_running(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


CALLS: dict[str, Callable[[ToolContext], ToolResult]] = {
    "edit": lambda c: run(EditTool(), c, path="f", old=OLD, new=BIG),
    "edit_line": lambda c: run(EditLineTool(), c, path="f", action="replace", line="L1|", text=BIG),
    "write": lambda c: run(WriteTool(), c, path="f", content=BIG),
    "write a new file": lambda c: run(WriteTool(), c, path="new", content=BIG),
    "hard links": lambda c: run(EditTool(), c, path="linked", old=OLD, new=BIG),
}


def check_refused(root: Path, name: str, words: str, *, before: Callable[[], None] = lambda: None) -> None:
    """Run the call after `before`: it must fail with `words`, and the folder must be as it was."""
    (root / "f").write_text(OLD)
    (root / "linked").write_text(OLD)
    os.link(root / "linked", root / "second")
    context = context_of(root)
    run(ReadTool(), context, path="f")
    before()
    result = CALLS[name](context)
    assert result.is_error, result.text
    assert words in result.text, result.text
    assert ".tmp" not in result.text
    assert sorted(os.listdir(root)) == ["f", "linked", "second"]
    assert {(root / n).read_text() == OLD for n in ("f", "linked", "second")} == {True}
    assert (root / "linked").stat().st_nlink == 2


def limit_file_size() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))


@pytest.mark.parametrize("name", CALLS)
def test_a_write_that_the_system_cuts_short(tmp_path: Path, name: str) -> None:
    root = tmp_path / "repo"
    root.mkdir()
    child = in_child(lambda: check_refused(root, name, os.strerror(errno.EFBIG), before=limit_file_size))
    assert exit_code(child) == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("name", CALLS)
def test_a_full_disk(small_disk: Path, name: str) -> None:
    root = small_disk / "repo"
    root.mkdir()
    check_refused(root, name, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", [n for n in CALLS if n != "hard links"])
def test_a_folder_that_may_not_be_written(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "repo"
        root.mkdir()

        def become_nobody() -> None:
            for file in root.iterdir():
                file.chmod(0o666)
            root.chmod(0o555)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)

        child = in_child(lambda: check_refused(root, name, os.strerror(errno.EACCES), before=become_nobody))
        assert exit_code(child) == 0
        root.chmod(0o755)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk that need not be waited for, where there is one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as folder:
        yield Path(folder)


class Faulty:
    """A layer over the system: call number `at` of those that reach the disk fails with EIO, or does not return."""

    CALLS = frozenset(
        {"open", "write", "fsync", "link", "replace", "ftruncate", "posix_fallocate", "fchmod", "fchown", "close",
         "setxattr", "unlink", "lseek"}
    )  # fmt: skip

    def __init__(self, at: int, way: str):
        self.count, self._at, self._way = 0, at, way

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return (lambda *args, **options: self._call(name, real, args, options)) if name in self.CALLS else real

    def _call(self, name: str, real: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self.count += 1
        if self.count != self._at:
            return real(*args, **options)
        if self._way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "write":  # a disk that breaks has taken a part
            real(args[0], args[1][: len(args[1]) // 2])
        if self._way == "interrupt":
            raise KeyboardInterrupt
        if name == "close":
            real(*args)
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("target", ["f", "new", "linked"])
@pytest.mark.parametrize("way", ["EIO", "interrupt", "kill"])
def test_a_fault_at_any_call_leaves_the_old_or_the_new_content(memory: Path, target: str, way: str) -> None:
    """Every call of a write in turn. Only a kill amid the rewriting of a file with several names may tear it."""

    def body(at: int) -> None:
        layer = Faulty(at, way)
        pytest.MonkeyPatch().setattr(atomic, "os", layer)  # for good: this is a child of its own, which ends with it
        with contextlib.suppress(OSError, KeyboardInterrupt):
            write_atomic(root / target, BIG.encode())
        os._exit(3 if layer.count < at else 0)

    for at in range(1, 60):
        root = memory / str(at)
        root.mkdir()
        for name in ("f", "linked"):
            (root / name).write_text(OLD)
        os.link(root / "linked", root / "second")
        code = exit_code(in_child(partial(body, at)))
        found = (root / target).read_text() if (root / target).exists() else None
        if not (way == "kill" and target == "linked"):
            assert found in (None if target == "new" else OLD, BIG), (at, len(found or ""))
        assert (root / "linked").stat().st_nlink == 2
        write_atomic(root / "f", b"after")
        assert {"f", "linked", "second"} <= set(os.listdir(root)) <= {"f", "linked", "second", target}, "a stray file"
        if code == 3:
            break
    assert code == 3, "there were more calls"
    assert at > 5


def test_what_somebody_saves_meanwhile_is_not_lost(tmp_path: Path) -> None:
    context, path = context_of(tmp_path), (tmp_path / "f").resolve()
    path.write_text("theirs\n")
    for before in (b"old\n", None):
        with pytest.raises(ToolError, match="just now; nothing was written"):
            apply_change(context, path, "f", before, b"ours\n", "done")
    assert path.read_text() == "theirs\n"


def test_long_output_on_a_full_disk_loses_its_file_and_not_the_command(small_disk: Path, tmp_path: Path) -> None:
    context = ToolContext(root=tmp_path.resolve(), spill_dir=small_disk / "spill")
    result = run(ShellTool(), context, command="seq 1 99999; exit 3")
    assert result.text.startswith("exit code 3")
    assert result.text.endswith("\n99999")
    assert "bytes left out …" in result.text
    assert os.listdir(context.spill_dir) == []
