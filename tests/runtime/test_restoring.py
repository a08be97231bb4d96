"""Pages come back in batches that are read ahead, whole and in order, up to the first that is bad."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from m3_model.cache import KVCache
from m3_runtime import restoring
from m3_runtime.disk_cache import DiskCache
from m3_runtime.page_file import next_name
from m3_runtime.restoring import PageReader
from tests.runtime.conftest import small_cache

PAGES = 23


@pytest.mark.parametrize("batch_pages", [1, 3, 4, 64])
@pytest.mark.parametrize("bad", [None, 0, 3, 11, PAGES - 1])
def test_pages_are_read_ahead_in_order_up_to_a_bad_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_pages: int, bad: int | None
) -> None:
    cache = small_cache(PAGES)
    names, contents = _kept(tmp_path, cache)
    if bad is not None:
        (path,) = tmp_path.rglob(f"{names[bad].hex()}.page")
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    monkeypatch.setattr(restoring, "_CPU_BATCH", (batch_pages, 10**9))
    disk = _disk(tmp_path, cache)
    found = [bytes(row.numpy()) for batch in PageReader(cache, disk).read(names) for row in batch]
    disk.close()
    assert found == contents[:bad]


def test_a_reader_that_is_left_waits_for_what_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = small_cache(PAGES)
    names, contents = _kept(tmp_path, cache)
    monkeypatch.setattr(restoring, "_CPU_BATCH", (2, 10**9))
    disk = _disk(tmp_path, cache)
    reader = PageReader(cache, disk)
    for _ in range(20):
        batches = reader.read(names)
        first = next(batches)
        batches.close()
        assert [bytes(row.numpy()) for row in first] == contents[:2]
    disk.close()


def _disk(folder: Path, cache: KVCache) -> DiskCache:
    return DiskCache(folder, "tiny", b"tiny", page_bytes=cache.bytes_per_page, max_bytes=10**9)


def _kept(folder: Path, cache: KVCache) -> tuple[list[bytes], list[bytes]]:
    """Names and contents of pages that are in the folder."""
    disk = _disk(folder, cache)
    names, contents, name = [], [], disk.first_name
    for number in range(PAGES):
        name = next_name(name, [number])
        names.append(name)
        contents.append(random.Random(number).randbytes(cache.bytes_per_page))
        disk.save(name, bytearray(contents[-1]), 0)
    disk.close()
    return names, contents
