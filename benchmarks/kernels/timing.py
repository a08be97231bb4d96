"""Medians of device time, with a cold L2 for long kernels and in a CUDA graph for short ones."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

import torch
from triton.testing import do_bench


@dataclasses.dataclass(frozen=True)
class Time:
    """Milliseconds: the median, and half the distance between the 20th and the 80th percentile."""

    ms: float
    spread_ms: float


def cold(run: Callable[[], object], *, repeat_ms: int = 200) -> Time:
    """One call, its L2 flushed before each repetition; at least 20 are made."""
    if not torch.cuda.is_available():
        run()
        return Time(1.0, 0.0)
    one = do_bench(run, warmup=1, rep=1, return_mode="median")
    median, low, high = do_bench(
        run, warmup=int(3 * one) + 10, rep=max(repeat_ms, int(20 * one)), quantiles=[0.5, 0.2, 0.8]
    )
    return Time(median, (high - low) / 2)


def in_graph(layers: Sequence[Callable[[], object]], *, replays: int = 60) -> Time:
    """One layer's share of a CUDA graph over all `layers`, each with tensors of its own, more than the L2 holds."""
    if not torch.cuda.is_available():
        for run in layers:
            run()
        return Time(1.0, 0.0)
    torch.cuda.synchronize()  # the tensors were made on another stream
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for run in layers:
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for run in layers:
            run()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / len(layers))
    low, _, high = statistics.quantiles(times[5:], n=4)
    return Time(statistics.median(times[5:]), (high - low) / 2)
