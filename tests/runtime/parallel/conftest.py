"""Two ranks, then four: processes that are started once for all tests of a file with a number of ranks."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from m3_runtime.parallel.launch import spawn
from m3_runtime.parallel.leader import Led, lead
from m3_runtime.parallel.member import ModelSpec
from m3_runtime.parallel.ranks import Ranks

RECORDING = functools.partial(spawn, module="tests.runtime.parallel.recording")
NEVER = 1 << 40


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    ranks = Ranks.start(request.param, device="cpu", peers=RECORDING)
    yield ranks
    ranks.close()


def led(ranks: Ranks, folder: Path, *, num_pages: int = 16, **fields: Any) -> Led:
    """A model on all ranks, spread or shared only where a test asks for it."""
    defaults = {
        "name": "tiny",
        "dtype": "float32",
        "encoding_bytes": 2**20,
        "spread_rows": NEVER,
        "shared_blocks": NEVER,
    }
    return lead(ranks, ModelSpec(folder=folder, num_pages=num_pages, **{**defaults, **fields}))


def dumped(ranks: Ranks, folder: Path) -> list[list[Tensor]]:
    """What each of the other ranks chose since it was asked last."""
    paths = [folder / f"rank-{rank}.pt" for rank in range(1, ranks.size)]
    ranks.tell_each("dump", [(path,) for path in paths])
    found = []
    for path in paths:
        deadline_s = time.monotonic() + 20
        while not path.exists():
            ranks.check()
            assert time.monotonic() < deadline_s, f"{path.name} was not written"
            time.sleep(0.005)
        found.append(torch.load(path))
        path.unlink()
    return found
