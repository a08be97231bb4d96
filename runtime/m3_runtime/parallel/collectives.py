"""The few operations that ranks do together, over torch.distributed, and how far this rank is in them.

Not run so far: NCCL. On CPUs they go through gloo, which waits in the call; with NCCL a call only queues its work, so
what is finished is told by events on the stream.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from m3_runtime.parallel.errors import CutOff

# Named so since torch 2.13, which warns of the older names.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclasses.dataclass(frozen=True)
class Progress:
    """Operations that a rank has begun, and those of them that are finished."""

    begun: int
    finished: int


class Meter:
    """Counts a rank's operations, for whoever watches it, and what they cost. One thread counts; any may read."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """By operation; of NCCL only the time to queue it."""
        self.num_bytes: dict[str, int] = {}
        """By operation, the bytes that this rank gave."""
        self._begun = 0
        self._finished = 0
        self._queued: deque[Any] = deque()
        """Events of the stream behind operations that a GPU may still be at."""

    @contextlib.contextmanager
    def counted(self, name: str, x: Tensor) -> Iterator[None]:
        """Count one operation on a tensor. Raises CutOff if another rank left it.

        One that a GPU only records is none: its replays are.
        """
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            yield
            return
        self._begun += 1
        start = time.perf_counter()
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CutOff(f"{name} failed: {error}") from error
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        self.num_bytes[name] = self.num_bytes.get(name, 0) + x.nbytes
        if x.is_cuda:
            self._queued.append(torch.cuda.current_stream(x.device).record_event())
        else:
            self._finished += 1

    @property
    def progress(self) -> Progress:
        while self._queued and self._queued[0].query():
            self._queued.popleft()
            self._finished += 1
        return Progress(self._begun, self._finished)


class TorchGroup:
    """An m3_model.group.Group over a process group of torch.distributed."""

    def __init__(self, process_group: Any, meter: Meter):
        self._group, self._meter = process_group, meter
        self.rank: int = dist.get_rank(process_group)
        self.size: int = dist.get_world_size(process_group)

    def sum(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        with self._meter.counted("sum", x):
            dist.all_reduce(x, group=self._group)
        return x

    def sum_rows(self, x_TC: Tensor) -> Tensor:
        x_TC = x_TC.contiguous()
        own_SC = x_TC.new_empty(len(x_TC) // self.size, *x_TC.shape[1:])
        with self._meter.counted("sum_rows", x_TC):
            _reduce_scatter(own_SC, x_TC, group=self._group)
        return own_SC

    def gather(self, x: Tensor) -> Tensor:
        every = x.new_empty(self.size * x.numel())
        with self._meter.counted("gather", x):
            _all_gather(every, x.reshape(-1), group=self._group)
        return every.view(self.size, *x.shape)

    def exchange(self, x_TC: Tensor, counts: Sequence[int]) -> tuple[Tensor, list[int]]:
        sent = torch.tensor(list(counts), dtype=torch.int64, device=x_TC.device)
        arriving = torch.empty_like(sent)
        with self._meter.counted("exchange", sent):
            dist.all_to_all_single(arriving, sent, group=self._group)
        arriving_counts = [int(count) for count in arriving.tolist()]
        x_TC = x_TC.contiguous()
        arrived = x_TC.new_empty(sum(arriving_counts), *x_TC.shape[1:])
        with self._meter.counted("exchange", x_TC):
            dist.all_to_all_single(arrived, x_TC, arriving_counts, list(counts), group=self._group)
        return arrived, arriving_counts
