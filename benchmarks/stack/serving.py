"""The engine on the reduced model: its decoding step by step, and a prompt that comes back from disk."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_runtime.config import PAGE_TOKENS, SCRATCH_PAGES, EngineConfig, pages_for
from m3_runtime.disk_cache import DiskCache
from m3_runtime.engine import Engine
from m3_runtime.page_file import next_name
from m3_runtime.pages import PageTable
from m3_runtime.request import Request, SamplingParams, TokenOutput
from m3_runtime.restoring import PageReader
from m3_runtime.sequence import Sequence as Running


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def engine_of(
    decoder: Decoder,
    cache: KVCache,
    *,
    context: int,
    chunk: int,
    graphs: bool = True,
    prefixes: bool = False,
    disk: DiskCache | None = None,
) -> Engine:
    config = EngineConfig(
        num_pages=pages_for(context),
        max_context=context,
        vocab_size=decoder.config.vocab_size,
        prefill_chunk=chunk,
        draft_tokens=0,
        cuda_graphs=graphs,
        prefix_cache=prefixes,
    )
    return Engine(decoder, cache, config, disk)


def decoding_rows(decoder: Decoder, cache: KVCache, lengths: Sequence[int], steps: int) -> Iterator[dict[str, Any]]:
    """Tokens per second of one greedy sequence through the engine, and how much of the time the GPU is busy.

    The prompt's keys are whatever is in the cache: that it was computed makes no difference to the time of a step.
    """
    context = (cache.num_pages - SCRATCH_PAGES) * PAGE_TOKENS
    for length, graphs in itertools.product(lengths, (True, False)):
        engine = engine_of(decoder, cache, context=context, chunk=512, graphs=graphs)
        # From here on as if the prompt had just been read, but for its last token.
        start = min(length, context - 4 * steps)
        _add_as_read(engine, start)
        _run(engine, 5)
        synchronize()
        begin = time.perf_counter()
        _run(engine, steps)
        synchronize()
        step_ms = 1e3 * (time.perf_counter() - begin) / steps
        row = {
            "what": "engine decodes",
            "context": length,
            "graphs": graphs and engine.runner.graphs is not None,
            "step_ms": round(step_ms, 3),
            "tokens_per_s": round(1e3 / step_ms, 1),
        }
        if torch.cuda.is_available():
            busy_ms = _busy_ms(engine, steps // 2)
            row |= {"gpu_ms": round(busy_ms, 3), "gpu_busy": round(busy_ms / step_ms, 3)}
        yield row


def _add_as_read(engine: Engine, length: int) -> None:
    numbers = random.Random(0)
    prompt = [numbers.randrange(engine.config.vocab_size) for _ in range(length)]
    request = Request(prompt=prompt, sampling=SamplingParams(temperature=0, max_tokens=engine.config.max_context))
    sequence = Running(0, request, PageTable(engine.pool))
    sequence.table.reserve(length - 1)
    sequence.table.num_tokens = length - 1
    sequence.cached_tokens = length - 1
    engine._sequences[0] = sequence
    engine._scheduler.running.append(sequence)


def _run(engine: Engine, steps: int) -> list[int]:
    found: list[int] = []
    for _ in range(steps):
        found += [token for output in engine.step() if isinstance(output, TokenOutput) for token in output.token_ids]
    return found


def _busy_ms(engine: Engine, steps: int) -> float:
    """Milliseconds of a step in which the GPU computes or copies, by its profiler, which does not slow those down."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        _run(engine, steps)
        synchronize()
    on_gpu = [e.time_range for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    total_us, until = 0.0, 0.0
    for span in sorted(on_gpu, key=lambda span: span.start):
        total_us += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total_us / 1e3 / steps


def restore_rows(decoder: Decoder, cache: KVCache, length: int, chunk: int) -> Iterator[dict[str, Any]]:
    """Seconds until the first token of a prompt that is computed, and of the same one restored from disk.

    It ends 10 tokens behind its last whole page. The pages come from memory of the system, and once more from the disk
    itself where the system can be told to forget them. `never_left_s` is what the same prompt takes when its pages are
    in the cache already.
    """
    numbers = random.Random(1)
    prompt = [numbers.randrange(decoder.config.vocab_size) for _ in range(length + 10)]
    request = Request(prompt=prompt, sampling=SamplingParams(temperature=0, max_tokens=9))
    context = length + 2 * PAGE_TOKENS
    with tempfile.TemporaryDirectory() as folder:

        def engine(*, with_disk: bool) -> Engine:
            disk = None
            if with_disk:
                page_bytes = cache.bytes_per_page
                disk = DiskCache(Path(folder), "stack", b"stack", page_bytes=page_bytes, max_bytes=10**12)
            return engine_of(decoder, cache, context=context, chunk=chunk, prefixes=True, disk=disk)

        first = engine(with_disk=True)
        _answer(first, request)  # compiles what there is to compile
        _answer(first, request)  # a page is saved when it is asked for again
        begin = time.perf_counter()
        assert first.prefix_cache is not None
        first.prefix_cache.save(time.monotonic() + 60)
        first.close()
        saved_s = time.perf_counter() - begin
        files = list(Path(folder).rglob("*.page"))
        num_bytes = sum(file.stat().st_size for file in files)
        _forget(cache)
        computed_s, expected = _answer(engine(with_disk=False), request)
        base = {
            "what": "prompt comes back",
            "tokens": length,
            "pages": len(files),
            "bytes": num_bytes,
            "saved_s": round(saved_s, 2),
            "computed_s": round(computed_s, 3),
        }
        for place in ("memory of the system", "disk"):
            if place == "disk":
                _forget_files(files)
            _forget(cache)
            again = engine(with_disk=True)
            begin = time.perf_counter()
            restored_s, found = _answer(again, request)
            kept_s, _ = _answer(again, request)
            again.close()
            yield base | {
                "from": place,
                "restored_s": round(restored_s, 3),
                "of_computed": round(restored_s / computed_s, 4),
                "gb_per_s": round(num_bytes / restored_s / 1e9, 2),
                "never_left_s": round(kept_s, 3),
                "identical": found == expected,
            }
        yield from _reading_rows(Path(folder), cache, prompt[:length])


def _reading_rows(folder: Path, cache: KVCache, tokens: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Seconds to read and check the pages of a prompt from memory of the system, by several numbers of threads."""
    for readers in (1, 2, 4, 8, 16, 32):
        disk = DiskCache(
            folder, "stack", b"stack", page_bytes=cache.bytes_per_page, max_bytes=10**12, num_readers=readers
        )
        reader = PageReader(cache, disk)
        keys = [tokens[i : i + PAGE_TOKENS] for i in range(0, len(tokens), PAGE_TOKENS)]
        names = list(itertools.accumulate(keys, next_name, initial=disk.first_name))[1:]
        begin = time.perf_counter()
        num_pages = sum(len(batch) for batch in reader.read(names))
        read_s = time.perf_counter() - begin
        disk.close()
        yield {
            "what": "pages are read",
            "readers": readers,
            "pages": num_pages,
            "read_s": round(read_s, 3),
            "gb_per_s": round(num_pages * cache.bytes_per_page / read_s / 1e9, 2),
        }


def _answer(engine: Engine, request: Request) -> tuple[float, list[int]]:
    """Seconds until the first token, and all tokens."""
    synchronize()
    begin = time.perf_counter()
    first_s, found = 0.0, list[int]()
    for output in engine.stream(request):
        if isinstance(output, TokenOutput):
            first_s = first_s or time.perf_counter() - begin
            found += output.token_ids
    return first_s, found


def _forget(cache: KVCache) -> None:
    for part in (cache.k_LPSGD, cache.v_LPSGD, cache.index_k_LPSD):
        part.zero_()
    synchronize()


def _forget_files(files: Sequence[Path]) -> None:
    """Write them out and ask the system to drop them from memory."""
    os.sync()
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
