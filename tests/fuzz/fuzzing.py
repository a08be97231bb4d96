"""Fuzzing with a corpus that is kept: each line of a file in `corpus/` is one case, in JSON.

Every run replays the corpus. With `M3_FUZZ_S` it goes on with new cases for so many seconds; a case that behaves as
none before it, and one that fails, is added to the corpus. Commit what was added.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SECONDS = float(os.environ.get("M3_FUZZ_S", "0"))
CORPUS = Path(__file__).parent / "corpus"
ROUND = 500
ordinary = settings(
    max_examples=ROUND, deadline=None, database=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)  # fmt: skip


def fuzz(name: str, cases: st.SearchStrategy[Any], behaviour: Callable[[Any], str]) -> None:
    """Run `behaviour` on cases; it raises where one behaves wrongly, and else says in a word how it behaved."""
    path = CORPUS / f"{name}.jsonl"
    lines = path.read_text("ascii").splitlines() if path.exists() else []
    known = {behaviour(json.loads(line)) for line in lines}
    end, count, failing = time.monotonic() + SECONDS, 0, ""

    def keep(line: str) -> None:
        if line not in lines:
            with path.open("a", encoding="ascii") as file:
                file.write(line + "\n")
            lines.append(line)

    def once(case: Any) -> None:
        nonlocal count, failing
        if time.monotonic() > end:
            return
        count += 1
        line = json.dumps(case)
        try:
            found = behaviour(json.loads(line))
        except BaseException:
            failing = line
            raise
        if found not in known:
            known.add(found)
            keep(line)

    while time.monotonic() < end:
        seed = random.randrange(2**32)
        try:
            hypothesis.seed(seed)(ordinary(given(cases)(once)))()
        except BaseException:
            keep(failing)
            raise
    print(f"\n{name}: {len(lines)} kept cases, {count:,} new ones in {SECONDS:g} s, {len(known)} behaviours")
