"""Pages on disk: what is read is what was saved, or nothing, whatever happens to the files."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from m3_runtime import disk_cache
from m3_runtime.disk_cache import DiskCache
from m3_runtime.page_file import FORMAT, HEAD_BYTES, next_name, write_page_file
from m3_runtime.page_folder import clear, stored_models

PAGE = 4096
ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools"))


def _open(folder: Path, *, model: bytes = b"nano", pages: int = 100) -> DiskCache:
    return DiskCache(folder, "a/model", model, page_bytes=PAGE, max_bytes=pages * (PAGE + HEAD_BYTES))


def _names(disk: DiskCache, count: int, branch: int = 0) -> list[bytes]:
    names, name = [], disk.first_name
    for number in range(count):
        name = next_name(name, [branch, number])
        names.append(name)
    return names


def _content(name: bytes) -> bytearray:
    return bytearray(random.Random(name).randbytes(PAGE))


def _save(disk: DiskCache, names: list[bytes], used_ns: int | None = None) -> None:
    now_ns = time.time_ns() if used_ns is None else used_ns
    for depth, name in enumerate(names):
        disk.save(name, _content(name), now_ns - 1000 * depth)
    disk.close()


def _read(disk: DiskCache, names: list[bytes]) -> int:
    """How many of the pages come back; each must be what was saved."""
    found = [bytearray(PAGE) for _ in names]
    count = disk.read(names, [memoryview(page) for page in found])()
    assert found[:count] == [_content(name) for name in names[:count]]
    return count


def _file(folder: Path, name: bytes) -> Path:
    (path,) = folder.glob(f"*/{name.hex()}.page")
    return path


def test_what_was_saved_is_read_by_the_next_process(tmp_path: Path) -> None:
    disk = _open(tmp_path)
    names = _names(disk, 40)
    _save(disk, names)
    again = _open(tmp_path)
    assert _read(again, names) == 40
    assert _read(again, [*names[:3], b"x" * 32, *names[3:]]) == 3
    assert _read(again, _names(again, 3, branch=1)) == 0
    assert {path.stat().st_mode & 0o077 for path in tmp_path.rglob("*")} == {0}


def test_a_folder_is_made_only_when_there_is_something_to_keep(tmp_path: Path) -> None:
    disk = _open(tmp_path / "new")
    assert _read(disk, _names(disk, 3)) == 0
    disk.close()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", [0, 8, 12, 43, 45, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + PAGE - 1])
def test_a_flipped_bit_anywhere_is_noticed_once_and_the_page_can_be_saved_anew(
    tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = _open(tmp_path)
    names = _names(disk, 3)
    _save(disk, names)
    path = _file(tmp_path, names[1])
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert _read(disk, names) == 1
    assert _read(disk, names) == 1
    assert len(caplog.records) == 1
    assert "computed again" in caplog.text
    _save(disk, names[1:2])
    assert _read(disk, names) == 3


def test_a_batch_ends_where_its_first_bad_page_is_whichever_reader_meets_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = _open(tmp_path)
    names = _names(disk, 60)
    for bad in ([59, 0], [17, 16], [33, 41, 9]):
        _save(disk, names)
        for place in bad:
            os.truncate(_file(tmp_path, names[place]), HEAD_BYTES + 1)
        assert _read(disk, names) == min(bad)
        for place in bad:
            disk.remove(names[place])
    assert len(caplog.records) == 1


@pytest.mark.parametrize("length", [0, 10, HEAD_BYTES, HEAD_BYTES + 1, HEAD_BYTES + PAGE - 1])
def test_a_file_that_was_cut_off_is_not_believed(tmp_path: Path, length: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = _open(tmp_path)
    names = _names(disk, 2)
    _save(disk, names)
    os.truncate(_file(tmp_path, names[1]), length)
    assert _read(disk, names) == 1
    assert "it was cut off" in caplog.text


def test_pages_of_another_model_prompt_or_format_are_not_found_and_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = _open(tmp_path), _open(tmp_path, model=b"another")
    names = _names(mine, 2)
    _save(mine, names)
    assert _read(other, _names(other, 2)) == 0
    assert not caplog.records
    # Renamed by hand to what is looked for:
    _file(tmp_path, names[0]).rename(_file(tmp_path, names[0]).with_name(f"{names[1].hex()}.page"))
    assert _read(mine, names[1:]) == 0
    assert "another prompt or model" in caplog.text
    monkeypatch.setattr("m3_runtime.page_file.FORMAT", FORMAT + 1)
    assert _open(tmp_path).first_name != mine.first_name


def test_the_least_recently_used_pages_go_first_and_the_end_of_a_prompt_before_its_beginning(tmp_path: Path) -> None:
    disk = _open(tmp_path, pages=10)
    old, used, new = (_names(disk, 4, branch) for branch in range(3))
    hour_ns = 3600 * 10**9
    _save(disk, old, time.time_ns() - 3 * hour_ns)
    _save(disk, used, time.time_ns() - 4 * hour_ns)
    disk.used({name: time.time_ns() - hour_ns - 1000 * depth for depth, name in enumerate(used)})
    _save(disk, new)
    assert (_read(disk, used), _read(disk, new)) == (4, 4)
    assert _read(disk, old) < 3
    (model,) = stored_models(tmp_path)
    assert model.num_bytes <= 10 * (PAGE + HEAD_BYTES)
    assert model.num_pages == _read(disk, old) + 8
    _save(disk, _names(disk, 9, branch=3))
    assert _read(disk, used) < 4
    assert stored_models(tmp_path)[0].num_pages <= 10


def test_a_page_larger_than_the_limit_is_not_saved_and_nothing_is_removed_for_it(tmp_path: Path) -> None:
    disk = _open(tmp_path)
    names = _names(disk, 2)
    _save(disk, names)
    small = DiskCache(tmp_path, "b", b"b", page_bytes=PAGE, max_bytes=100)
    _save(small, _names(small, 1))
    assert _read(disk, names) == 2


def test_other_peoples_files_stay_and_those_of_a_killed_process_go(tmp_path: Path) -> None:
    disk = _open(tmp_path)
    _save(disk, _names(disk, 1))
    (folder,) = tmp_path.iterdir()
    for name in ("letter.txt", "old.tmp", "new.tmp"):
        (folder / name).write_bytes(b"x")
    os.utime(folder / "old.tmp", (0, 0))
    again = _open(tmp_path)
    _save(again, _names(again, 2))
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".page") == ["letter.txt", "new.tmp"]
    assert clear(tmp_path) > 2 * PAGE
    assert [path.name for path in folder.iterdir()] == ["letter.txt"]
    assert stored_models(tmp_path) == []


def test_clearing_while_a_process_uses_the_folder_disturbs_nobody(tmp_path: Path) -> None:
    disk = _open(tmp_path)
    names = _names(disk, 2)
    _save(disk, names)
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert _read(disk, names) == 0
    _save(disk, names)
    assert _read(disk, names) == 2


def test_a_page_that_is_cleared_while_it_is_written_is_lost_and_the_next_ones_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleared: list[int] = []

    def clear_first(source: str, target: Path) -> None:
        if not cleared:
            cleared.append(clear(tmp_path))
        os.rename(source, target)

    monkeypatch.setattr(os, "replace", clear_first)
    disk = _open(tmp_path)
    names = _names(disk, 3)
    _save(disk, names)
    assert [_read(disk, [name]) for name in names] == [0, 1, 1]
    assert cleared == [PAGE + HEAD_BYTES]
    assert not caplog.records


@pytest.fixture
def readable_folder() -> Iterator[Path]:
    """A folder whose parents everyone may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def as_nobody() -> Iterator[Callable[[], None]]:
    """Root may write everywhere, so a test can become nobody until its end; other users stay who they are."""
    user = os.geteuid()
    yield lambda: os.seteuid(65534) if user == 0 else None
    os.seteuid(user)


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_folder_that_cannot_be_written_or_entered_is_told_once(
    readable_folder: Path, mode: int, as_nobody: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    disk = _open(readable_folder)
    names = _names(disk, 2)
    _save(disk, names)
    folder = _file(readable_folder, names[0]).parent
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(mode)
    as_nobody()
    again = _open(readable_folder)
    again.used(dict.fromkeys(names, 1))
    _save(again, _names(again, 3))
    assert _read(again, names) == (2 if mode else 0)
    told = [record.message for record in caplog.records]
    assert told == [f"m3: computed prompts are not kept in {folder}: {os.strerror(errno.EACCES)}"]


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """No file may grow beyond half a page; the system then answers as it does on a full disk.

    It holds for the whole process, so also for pytest's own output: nothing may be reported inside.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE // 2, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_no_half_page_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = _open(tmp_path)
    names = _names(disk, 3)
    with small_files():
        _save(disk, names)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert _read(disk, names) == 0
    assert len(caplog.records) == 1


def test_the_queue_is_bounded_and_saving_tells_when_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "_QUEUE_BYTES", 3 * PAGE)
    disk = _open(tmp_path)
    names = _names(disk, 50)
    assert disk.has_room
    _save(disk, names)
    assert _read(disk, names) == 50


WRITER = """
import sys, time
from pathlib import Path
from tests.runtime.test_disk_cache import _names, _open, _save
disk = _open(Path(sys.argv[1]))
names = _names(disk, 60)
while True:
    print("again", flush=True)
    _save(disk, names)
"""


def test_two_processes_one_of_them_killed_share_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Readers see whole pages or none while others write the same ones, and a kill leaves nothing that is believed."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [
        subprocess.Popen(command, env={**os.environ, "PYTHONPATH": PATHS}, stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        disk = _open(tmp_path)
        names = _names(disk, 60)
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        deadline = time.monotonic() + 60
        while _read(disk, names) < 60:
            assert time.monotonic() < deadline
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
    assert _read(_open(tmp_path), names) == 60
    assert not caplog.records


def test_a_write_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        write_page_file(tmp_path, b"n" * 32, _content(b"n"), used_ns=0)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(autouse=True)
def _hear_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="m3_runtime")
