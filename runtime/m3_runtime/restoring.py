"""Pages on their way from disk into the cache: while one batch is copied, the next two are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from m3_model.cache import KVCache
from m3_runtime.disk_cache import DiskCache

_SLABS = 3
"""Memory for a batch each: one that is copied, and two so that no reader waits for the slowest of its batch."""
_GPU_BATCH = (64, 96 * 2**20)
"""At most so many pages, and so many bytes; a page of M3 takes 18 MB in bfloat16."""
_CPU_BATCH = (64, 16 * 2**20)
"""What was read is copied while it is still in the processor's own cache."""


class PageReader:
    """Reads pages of a cache. For a GPU they come through page-locked memory, which it copies from by itself.

    That memory is made at once: to lock it takes as long as to read it.
    """

    def __init__(self, cache: KVCache, disk: DiskCache):
        self._disk, self._page_bytes = disk, cache.bytes_per_page
        self._for_gpu = cache.k_LPSGD.is_cuda
        max_pages, max_bytes = _GPU_BATCH if self._for_gpu else _CPU_BATCH
        self._batch = max(1, min(max_pages, max_bytes // self._page_bytes))
        self._locked = [self._memory(self._batch) for _ in range(_SLABS)] if self._for_gpu else []
        self._copied: list[torch.cuda.Event | None] = [None] * _SLABS

    def read(self, names: Sequence[bytes]) -> Iterator[Tensor]:
        """The contents of the first pages of `names` up to one that is missing or damaged, in batches uint8 [n, bytes].

        A batch is there until the next is asked for; what the GPU was told to copy before is copied as it was.
        """
        batches = [names[i : i + self._batch] for i in range(0, len(names), self._batch)]
        slabs = self._locked or [self._memory(len(batch)) for batch in batches[:_SLABS]]
        begun: deque[Callable[[], int]] = deque()
        try:
            for i, batch in enumerate(batches):
                for ahead in range(i + len(begun), min(i + _SLABS - 1, len(batches))):
                    begun.append(self._begin(ahead, batches[ahead], slabs))
                count = begun.popleft()()
                yield slabs[i % _SLABS][:count]
                if self._for_gpu:
                    self._copied[i % _SLABS] = torch.cuda.current_stream().record_event()
                if count < len(batch):
                    return
        finally:
            for wait in begun:
                wait()

    def _begin(self, i: int, batch: Sequence[bytes], slabs: Sequence[Tensor]) -> Callable[[], int]:
        copied = self._copied[i % _SLABS]
        if copied is not None:
            copied.synchronize()
        return self._disk.read(batch, [memoryview(row) for row in slabs[i % _SLABS][: len(batch)].numpy()])

    def _memory(self, count: int) -> Tensor:
        return torch.empty(count, self._page_bytes, dtype=torch.uint8, pin_memory=self._for_gpu)
