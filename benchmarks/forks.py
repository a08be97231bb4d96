"""What 50 candidates on one prompt cost, beside one candidate's prompt and the writing of 50 edits alone.

    python -m benchmarks.forks [--repeats 5]

nano reads a prompt of 2,000 tokens once and goes on in 50 ways of 24 tokens each, a typical edit. The result is one
JSON file under benchmarks/results/, in seconds of processor time on one thread, so that other work on the machine does
not count; a figure is the median over the repeats, which measure everything in turn.

- prompt: one candidate's prompt, read to its first token
- decode: 50 requests of their own with that prompt write their edits together, timed once all of them have read it
- forks: the prompt is read once, 50 sampled answers go on from it (Engine.fork)
- search: the 50 best answers by beam search (Engine.search), which is what `m3 fix` asks for
- one: one edit alone behind that prompt, of which 50 would follow one another
- bare: 50 requests without a prompt to speak of (8 tokens) write as many tokens together: no edit sees the code

`ratio` is forks or search over prompt + decode, and must stay below 1.3. `ratio_one_by_one` is over prompt + 50 times
one; `ratio_bare`, over prompt + bare, also counts what reading along the prompt costs each row.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.heldout import machine
from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.loading import load_decoder
from m3_runtime.config import PAGE_TOKENS, EngineConfig
from m3_runtime.engine import Engine
from m3_runtime.loading import nano_folder
from m3_runtime.request import Request, SamplingParams, TokenOutput

PROMPT_TOKENS, EDIT_TOKENS, CANDIDATES = 2000, 24, 50
BOUND = 1.3
VOCABULARY = 9000
PAGES = 16 + 3 * CANDIDATES


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    nano = load_decoder(nano_folder())
    runs: dict[str, Callable[[], float]] = {
        "prompt": lambda: prompt_s(nano),
        "decode": lambda: decode_s(nano),
        "one": lambda: one_s(nano),
        "bare": lambda: bare_s(nano),
        "forks": lambda: forks_s(nano),
        "search": lambda: search_s(nano),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(-1, options.repeats):  # the first round warms all up
        for name, run in runs.items():
            spent = run()
            if repeat >= 0:
                seconds[name].append(spent)
    result = {
        "benchmark": "forks", "model": "nano, float32", "machine": machine(), "torch": torch.__version__,
        "threads": 1, "repeats": options.repeats, "prompt_tokens": PROMPT_TOKENS, "edit_tokens": EDIT_TOKENS,
        "candidates": CANDIDATES, **ratios({name: statistics.median(s) for name, s in seconds.items()}),
    }  # fmt: skip
    out = Path(__file__).parent / "results" / f"forks-{result['machine']['date']}.json"
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def ratios(median_s: dict[str, float]) -> dict[str, Any]:
    """The seconds, and what forking costs as a multiple of one prompt and the edits alone."""
    alone = {
        "ratio": median_s["prompt"] + median_s["decode"],
        "ratio_one_by_one": median_s["prompt"] + CANDIDATES * median_s["one"],
        "ratio_bare": median_s["prompt"] + median_s["bare"],
    }
    return {
        "seconds": {name: round(value, 3) for name, value in median_s.items()},
        **{name: {way: round(median_s[way] / s, 3) for way in ("forks", "search")} for name, s in alone.items()},
        "bound": BOUND,
        "holds": all(median_s[way] < BOUND * alone["ratio"] for way in ("forks", "search")),
    }


def prompt_s(nano: Decoder) -> float:
    engine = _engine(nano)
    started = time.process_time()
    list(engine.stream(_request(PROMPT_TOKENS, 1)))
    return time.process_time() - started


def decode_s(nano: Decoder) -> float:
    """Their prompts come from the cache but for the last page, and are read in one step."""
    engine = _engine(nano, prefix_cache=True, prefill_chunk=CANDIDATES * PAGE_TOKENS)
    list(engine.stream(_request(PROMPT_TOKENS, 1)))
    waiting = {engine.add(_request(PROMPT_TOKENS, EDIT_TOKENS)) for _ in range(CANDIDATES)}
    steps = 0
    while waiting:
        waiting -= {output.request_id for output in engine.step() if isinstance(output, TokenOutput)}
        steps += 1
    assert steps == 1, "some began before the others had read"
    return _rest_s(engine)


def one_s(nano: Decoder) -> float:
    engine = _engine(nano)
    _first_token(engine, _request(PROMPT_TOKENS, EDIT_TOKENS))
    return _rest_s(engine)


def bare_s(nano: Decoder) -> float:
    engine = _engine(nano)
    started = time.process_time()
    for seed in range(CANDIDATES):
        engine.add(_request(8, EDIT_TOKENS, seed))
    return _rest_s(engine, started)


def forks_s(nano: Decoder) -> float:
    engine = _engine(nano)
    started = time.process_time()
    first = _first_token(engine, _request(PROMPT_TOKENS, EDIT_TOKENS))
    for seed in range(1, CANDIDATES):
        engine.fork(first, SamplingParams(temperature=1, seed=seed, max_tokens=EDIT_TOKENS))
    return _rest_s(engine, started)


def search_s(nano: Decoder) -> float:
    engine = _engine(nano)
    started = time.process_time()
    found = engine.search(_request(PROMPT_TOKENS, EDIT_TOKENS), CANDIDATES, EDIT_TOKENS)
    assert len(found) == CANDIDATES
    return time.process_time() - started


def _engine(nano: Decoder, *, prefix_cache: bool = False, prefill_chunk: int = 512) -> Engine:
    """An engine that has seen nothing and guesses nothing: every token costs a row."""
    config = EngineConfig(
        num_pages=PAGES, max_context=2048, vocab_size=VOCABULARY, draft_tokens=0,
        prefix_cache=prefix_cache, prefill_chunk=prefill_chunk,
    )  # fmt: skip
    return Engine(nano, KVCache.zeros(nano.config, PAGES), config)


def _request(length: int, max_tokens: int, seed: int = 0) -> Request:
    numbers = random.Random(f"{length}/{seed}")
    prompt = [numbers.randrange(VOCABULARY) for _ in range(length)]
    return Request(prompt=prompt, sampling=SamplingParams(temperature=1, seed=seed, max_tokens=max_tokens))


def _first_token(engine: Engine, request: Request) -> int:
    number = engine.add(request)
    while not any(isinstance(output, TokenOutput) for output in engine.step()):
        pass
    return number


def _rest_s(engine: Engine, started: float | None = None) -> float:
    started = time.process_time() if started is None else started
    while engine.has_work:
        engine.step()
    return time.process_time() - started


if __name__ == "__main__":
    main()
