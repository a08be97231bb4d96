"""Whether decode steps are captured is decided by all ranks together. Ranks are threads here, and captures pretend."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from m3_model.cache import KVCache
from m3_model.group import Alone, Parallel
from m3_model.random_checkpoint import tiny_config
from m3_runtime.config import SCRATCH_PAGES, EngineConfig
from m3_runtime.graphs import Capture, DecodeGraphs, Recording
from m3_runtime.parallel.collectives import Meter, Progress
from m3_runtime.parallel.graphs import open_graphs
from m3_runtime.runner import Chunk
from tests.runtime.parallel.recording import cannot_capture

CONFIG = EngineConfig(num_pages=4, max_context=512, vocab_size=384)
STEP = [Chunk([5], 3, [1]), Chunk([7], 9, [2])]


class Threads(Alone):
    """One of two ranks that are threads of this process."""

    def __init__(self, rank: int, given: list[Tensor], barrier: threading.Barrier) -> None:
        self.rank, self.size, self._given, self._barrier = rank, 2, given, barrier

    def gather(self, x: Tensor) -> Tensor:
        self._given[self.rank] = x
        self._barrier.wait(10)
        every = torch.stack(self._given)
        self._barrier.wait(10)
        return every


class Echo:
    """A decoder whose logits are the tokens."""

    def __init__(self, group: Alone) -> None:
        self.parallel = Parallel(ranks=group)

    def __call__(self, inputs: Any, cache: KVCache) -> Tensor:
        ids_T: Tensor = inputs.token_ids_T
        return ids_T[:, None].float()


def captures(step: Callable[[], Tensor]) -> Recording:
    return step


def on_both(captured: list[Capture | None], steps: int) -> tuple[list[DecodeGraphs | None], list[Any], list[Meter]]:
    """The graphs of both ranks, what `steps` steps gave, and what was counted."""
    given, barrier, meters = [torch.empty(0)] * 2, threading.Barrier(2), [Meter(), Meter()]

    def of(rank: int) -> tuple[DecodeGraphs | None, list[Tensor | None]]:
        cache = KVCache.zeros(tiny_config(), CONFIG.num_pages + SCRATCH_PAGES)
        decoder: Any = Echo(Threads(rank, given, barrier))
        graphs = open_graphs(decoder, cache, CONFIG, meters[rank], captured[rank])
        return graphs, [graphs.run(STEP) for _ in range(steps)] if graphs is not None else []

    with ThreadPoolExecutor(2) as pool:
        graphs, results = zip(*pool.map(of, range(2)), strict=True)
    return list(graphs), list(results), meters


def test_where_all_ranks_capture_a_replay_is_one_operation() -> None:
    graphs, results, meters = on_both([captures, captures], 3)
    assert [g and g.sizes for g in graphs] == [((2, 1),)] * 2
    assert [[logits.tolist() for logits in of_rank] for of_rank in results] == [[[[5.0], [7.0]]] * 3] * 2
    assert [meter.progress for meter in meters] == [Progress(3, 3)] * 2
    assert [list(meter.num_bytes) for meter in meters] == [["replay"]] * 2


def test_where_one_rank_fails_none_replays_and_none_tries_again(caplog: pytest.LogCaptureFixture) -> None:
    attempts = []

    def counted(step: Callable[[], Tensor]) -> Recording:
        attempts.append(step)
        return step

    graphs, results, meters = on_both([counted, cannot_capture], 2)
    assert results == [[None, None]] * 2
    assert [g and g.sizes for g in graphs] == [()] * 2
    assert (len(attempts), [meter.progress.begun for meter in meters]) == (1, [0, 0])
    assert {record.getMessage() for record in caplog.records} == {
        "m3: decoding goes on without CUDA graphs: another rank cannot capture this step",
        "m3: decoding goes on without CUDA graphs: no memory for a graph",
    }


@pytest.mark.parametrize("captured", [[captures, None], [None, captures], [None, None]])
def test_where_one_rank_cannot_have_graphs_none_has(captured: list[Capture | None]) -> None:
    assert on_both(captured, 1)[:2] == ([None, None], [[], []])


def test_an_error_while_others_wait_is_not_forgiven() -> None:
    def fails_in_the_step(step: Callable[[], Tensor]) -> Recording:
        raise torch.OutOfMemoryError("CUDA out of memory")

    cache = KVCache.zeros(tiny_config(), CONFIG.num_pages + SCRATCH_PAGES)
    decoder: Any = Echo(Alone())
    graphs = open_graphs(decoder, cache, CONFIG, Meter(), fails_in_the_step)
    assert graphs is not None
    with pytest.raises(torch.OutOfMemoryError):
        graphs.run(STEP)
