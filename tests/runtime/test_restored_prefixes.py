"""A prompt whose beginning comes from disk is answered as if it had been computed, by nano itself."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch

from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.loading import load_decoder
from m3_runtime.chat.events import Finish
from m3_runtime.chat.session import ChatEngine
from m3_runtime.config import DiskConfig, EngineConfig
from m3_runtime.disk_cache import DiskCache
from m3_runtime.engine import Engine
from m3_runtime.fingerprint import fingerprint
from m3_runtime.loading import nano_folder
from m3_runtime.page_file import HEAD_BYTES
from m3_runtime.request import PrefillProgress, Request, SamplingParams, TokenOutput

PAGES = 8
PROMPT = [random.Random(1).randrange(1000) for _ in range(300)]
REQUEST = Request(prompt=PROMPT, sampling=SamplingParams(temperature=0, max_tokens=8))


@pytest.fixture(scope="module")
def nano() -> Decoder:
    return load_decoder(nano_folder())


def _engine(nano: Decoder, folder: Path | None) -> Engine:
    cache = KVCache.zeros(nano.config, PAGES)
    disk = None
    if folder is not None:
        disk = DiskCache(
            folder, "nano", fingerprint(nano_folder(), dtype="float32", device="cpu"),
            page_bytes=cache.bytes_per_page, max_bytes=10**9,
        )  # fmt: skip
    return Engine(nano, cache, EngineConfig(num_pages=PAGES, max_context=512, vocab_size=1000), disk)


def _answer(engine: Engine) -> tuple[list[int], int]:
    """The tokens of the answer, and how many tokens of the prompt were not computed."""
    outputs = list(engine.stream(REQUEST))
    (cached,) = {output.cached_tokens for output in outputs if isinstance(output, PrefillProgress)}
    return [i for output in outputs if isinstance(output, TokenOutput) for i in output.token_ids], cached


@pytest.fixture(scope="module")
def kept(nano: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the two whole pages of the prompt, which a first process was asked for twice."""
    folder = tmp_path_factory.mktemp("kept")
    engine = _engine(nano, folder)
    _answer(engine)
    engine.close()
    assert list(folder.rglob("*.page")) == []  # once is not worth the writing
    _answer(engine)
    engine.close()
    assert len(list(folder.rglob("*.page"))) == 2
    return folder


@pytest.fixture(scope="module")
def expected(nano: Decoder) -> list[int]:
    return _answer(_engine(nano, None))[0]


def test_the_next_process_computes_only_the_rest_and_says_the_same(
    nano: Decoder, kept: Path, expected: list[int]
) -> None:
    engine = _engine(nano, kept)
    assert _answer(engine) == (expected, 256)
    assert _answer(engine) == (expected, 256)
    fresh, again = _engine(nano, None), _engine(nano, kept)
    assert again.score(PROMPT, [[5, 6]]) == pytest.approx(fresh.score(PROMPT, [[5, 6]]), abs=1e-4)
    found = again.search(REQUEST, 3, max_tokens=4)
    assert [h.token_ids for h in found] == [h.token_ids for h in fresh.search(REQUEST, 3, max_tokens=4)]
    (one, mine), (two, restored) = _pages(fresh), _pages(again)
    assert one == two == 2
    torch.testing.assert_close(mine, restored, rtol=0, atol=1e-4)


def _pages(engine: Engine) -> tuple[int, torch.Tensor]:
    """How many pages of the prompt are known, and all that they hold."""
    assert engine.prefix_cache is not None
    pages = engine.prefix_cache.acquire(PROMPT)
    content = b"".join(engine.pool.cache.read_page(page) for page in pages)
    engine.pool.release(pages)
    return len(pages), torch.frombuffer(bytearray(content), dtype=torch.float32)


@pytest.mark.parametrize(("damaged", "left"), [(0, 0), (1, 128)])
def test_a_damaged_page_costs_time_and_changes_no_token(
    nano: Decoder, kept: Path, expected: list[int], tmp_path: Path, damaged: int, left: int
) -> None:
    shutil.copytree(kept, tmp_path / "copy")
    path = sorted((tmp_path / "copy").rglob("*.page"), key=lambda path: -path.stat().st_mtime_ns)[damaged]
    data = bytearray(path.read_bytes())
    data[HEAD_BYTES + 777] ^= 0x10
    path.write_bytes(data)
    engine = _engine(nano, tmp_path / "copy")
    assert _answer(engine) == (expected, left)
    assert _answer(engine) == (expected, 256)
    engine.close()
    assert _answer(_engine(nano, tmp_path / "copy")) == (expected, 256)  # saved anew


def test_a_pool_that_is_full_takes_what_fits_and_computes_the_rest(nano: Decoder, kept: Path) -> None:
    engine = _engine(nano, kept)
    held = engine.pool.allocate(PAGES - 1)
    assert engine.prefix_cache is not None
    pages = engine.prefix_cache.acquire(PROMPT)
    assert len(pages) == 1
    engine.pool.release([*held, *pages])
    assert engine.pool.num_free + engine.pool.num_cached == PAGES


def test_the_fingerprint_changes_with_the_weights_and_the_arithmetic(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    first = fingerprint(copy, dtype="float32", device="cpu")
    assert first == fingerprint(folder, dtype="float32", device="cpu")
    assert first != fingerprint(copy, dtype="bfloat16", device="cpu")
    assert first != fingerprint(copy, dtype="float32", device="cuda")
    (weights,) = copy.glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert first != fingerprint(copy, dtype="float32", device="cpu")


def test_a_chat_finds_its_system_prompt_in_the_next_process(folder: Path, tmp_path: Path) -> None:
    disk = DiskConfig(folder=tmp_path / "new", max_bytes=10**8)
    messages = [{"role": "system", "content": "Be brief. " * 60}, {"role": "user", "content": "Hi"}]
    used = []
    for _ in range(3):
        chat = ChatEngine.load(str(folder), max_context=1024, disk=disk)
        for _ in range(2):
            *_, end = chat.stream(messages)
            assert isinstance(end, Finish)
            used.append(end.usage.cached_tokens)
        chat.close()
    assert used[0] == 0
    assert set(used[1:]) == {used[1]}
    assert used[1] >= 128
