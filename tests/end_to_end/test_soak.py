"""1,000 requests to one `m3 serve`, good, bad and abandoned: `make soak` (minutes)."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.end_to_end.served import Served

NUM_REQUESTS, PER_ROUND, NUM_CLIENTS = 1000, 100, 16
MAX_GROWTH_BYTES = 16 * 2**20
"""From the middle to the end. Before, every page of the cache is touched once and every store of answers fills up."""
WORDS = ["the", "test", "fails", "because", "value", "returns", "left", "right", "count", "path", "line", "first"]
PICK: dict[str, Any] = {
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "pick",
                "parameters": {
                    "type": "object",
                    "properties": {"colour": {"enum": ["red", "blue"]}},
                    "required": ["colour"],
                },
            },
        }
    ],
    "tool_choice": "required",
    "max_tokens": 60,
    "extra_body": {"chat_template_kwargs": {"thinking_mode": "disabled"}},
}


def _ask(client: openai.OpenAI, number: int) -> str:
    """One request of one of six kinds; what became of it."""
    rng = random.Random(number)
    content = " ".join(rng.choices(WORDS, k=rng.choice([5, 60, 150, 250])))
    body: dict[str, Any] = {
        "model": "m3-nano",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 8,
        "seed": number,
    }
    match number % 10:
        case 0 | 1:
            client.chat.completions.create(**{**body, **PICK})
            return "called"
        case 2:
            client.chat.completions.create(**body, n=3)
        case 3:
            try:
                client.chat.completions.create(**body, temperature=-1)
            except openai.BadRequestError:
                return "refused"
        case 4 | 5:
            # Hot, so that the answer does not end before its client leaves.
            with client.chat.completions.create(
                **{**body, "max_tokens": 200}, temperature=5, stream=True, extra_body=PICK["extra_body"]
            ) as stream:
                for _, _ in zip(range(3), stream, strict=False):
                    pass
            return "left"
        case 6 | 7:
            for _ in client.chat.completions.create(**body, stream=True):
                pass
        case _:
            client.chat.completions.create(**body, stop=["e"])
    return "answered"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_is_flat_and_no_page_is_lost(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("M3_")}
    served = Served({**kept, "M3_HOME": str(tmp_path)})
    try:
        with (
            openai.OpenAI(base_url=served.url, api_key="none", max_retries=0, timeout=300) as client,
            ThreadPoolExecutor(NUM_CLIENTS) as pool,
        ):
            resident = []
            print("\nrequests  resident MB  free  used  cached pages")
            for done in range(PER_ROUND, NUM_REQUESTS + 1, PER_ROUND):
                outcomes = list(pool.map(lambda i: _ask(client, i), range(done - PER_ROUND, done)))
                assert {kind: outcomes.count(kind) for kind in set(outcomes)} == {
                    "called": 20,
                    "refused": 10,
                    "left": 20,
                    "answered": 50,
                }
                metrics = served.wait_until_idle()
                resident.append(served.resident_bytes)
                pages = [metrics[f"m3_cache_pages{{{state}}}"] for state in ("free", "used", "cached")]
                print(f"{done:8} {resident[-1] / 2**20:12.1f} {pages[0]:5.0f} {pages[1]:5.0f} {pages[2]:7.0f}")
                assert pages[1] == 0
                assert pages[0] + pages[2] == 272
        ended = {kind: metrics[f"m3_requests_total{{{kind}}}"] for kind in ("answered", "refused", "failed", "left")}
        print(ended)
        assert sum(ended.values()) == NUM_REQUESTS
        assert (ended["refused"], ended["failed"]) == (NUM_REQUESTS // 10, 0)
        # Some answers that were to be abandoned end by themselves before.
        assert NUM_REQUESTS // 10 < ended["left"] <= NUM_REQUESTS // 5
        assert metrics["process_open_fds"] < 64
        assert max(resident[5:]) - resident[4] < MAX_GROWTH_BYTES
    finally:
        served.close()
