"""What a kept prompt saves: nano reads prompts of some lengths by computing, and by restoring their pages from disk.

usage: python -m benchmarks.prefixes        prints one JSON object; keep it under benchmarks/results/

Processor milliseconds until the first token on one thread, the median of some runs, from files that the system has in
memory. A restored prompt still computes its last, partial page.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.heldout import machine
from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.loading import load_decoder
from m3_runtime.config import EngineConfig
from m3_runtime.disk_cache import DiskCache
from m3_runtime.engine import Engine
from m3_runtime.fingerprint import fingerprint
from m3_runtime.loading import nano_folder
from m3_runtime.request import Request, SamplingParams

LENGTHS = (300, 1000, 2000)
REPEATS = 5
PAGES = 40


def main() -> None:
    torch.set_num_threads(1)
    nano = load_decoder(nano_folder())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for length in LENGTHS:
            request = _request(length)
            _save(nano, Path(folder), request)
            computed = statistics.median(_first_token_s(_engine(nano, None), request) for _ in range(REPEATS))
            restored = statistics.median(_first_token_s(_engine(nano, Path(folder)), request) for _ in range(REPEATS))
            rows.append({"tokens": length, "computed_ms": round(1e3 * computed), "restored_ms": round(1e3 * restored)})
    page_bytes = KVCache.zeros(nano.config, 1).bytes_per_page
    result = {"benchmark": "prefixes", "machine": machine(), "torch": torch.__version__, "page_bytes": page_bytes}
    print(json.dumps({**result, "prompts": rows}, indent=1))


def _request(length: int) -> Request:
    numbers = random.Random(length)
    prompt = [numbers.randrange(9000) for _ in range(length)]
    return Request(prompt=prompt, sampling=SamplingParams(temperature=0, max_tokens=1))


def _engine(nano: Decoder, folder: Path | None) -> Engine:
    cache = KVCache.zeros(nano.config, PAGES)
    disk = None
    if folder is not None:
        known_as = fingerprint(nano_folder(), dtype="float32", device="cpu")
        disk = DiskCache(folder, "nano", known_as, page_bytes=cache.bytes_per_page, max_bytes=10**9)
    return Engine(nano, cache, EngineConfig(num_pages=PAGES, max_context=2048, vocab_size=9000), disk)


def _save(nano: Decoder, folder: Path, request: Request) -> None:
    engine = _engine(nano, folder)
    for _ in range(2):  # a page is saved when it is asked for again
        _first_token_s(engine, request)
    engine.close()


def _first_token_s(engine: Engine, request: Request) -> float:
    started = time.process_time()
    list(engine.stream(request))
    return time.process_time() - started


if __name__ == "__main__":
    main()
