"""Pages on their way from disk into the cache: while one batch is copied, the next one is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from m3_model.cache import KVCache
from m3_runtime.disk_cache import DiskCache

_BATCH_PAGES = 64
_BATCH_BYTES = 128 * 2**20
"""Of one batch, of which there are two; a page of M3 takes 18 MB in bfloat16."""


class PageReader:
    """Reads pages of a cache. For a GPU they come through page-locked memory, which it copies from by itself.

    That memory is made at once: to lock it takes as long as to read it.
    """

    def __init__(self, cache: KVCache, disk: DiskCache):
        self._disk, self._page_bytes = disk, cache.bytes_per_page
        self._batch = max(1, min(_BATCH_PAGES, _BATCH_BYTES // self._page_bytes))
        self._for_gpu = cache.k_LPSGD.is_cuda
        self._locked = [self._memory(self._batch) for _ in range(2)] if self._for_gpu else []
        self._copied: list[torch.cuda.Event | None] = [None, None]

    def read(self, names: Sequence[bytes]) -> Iterator[Tensor]:
        """The contents of the first pages of `names` up to one that is missing or damaged, in batches uint8 [n, bytes].

        A batch is there until the next is asked for; what the GPU was told to copy before is copied as it was.
        """
        batches = [names[i : i + self._batch] for i in range(0, len(names), self._batch)]
        slabs = self._locked or [self._memory(len(batch)) for batch in batches[:2]]
        pending: Callable[[], int] | None = None
        try:
            for i, batch in enumerate(batches):
                count = (pending or self._begin(i, batch, slabs))()
                pending = None
                if i + 1 < len(batches) and count == len(batch):
                    pending = self._begin(i + 1, batches[i + 1], slabs)
                yield slabs[i % 2][:count]
                if self._for_gpu:
                    self._copied[i % 2] = torch.cuda.current_stream().record_event()
                if count < len(batch):
                    return
        finally:
            if pending is not None:
                pending()

    def _begin(self, i: int, batch: Sequence[bytes], slabs: Sequence[Tensor]) -> Callable[[], int]:
        copied = self._copied[i % 2]
        if copied is not None:
            copied.synchronize()
        return self._disk.read(batch, [memoryview(row) for row in slabs[i % 2][: len(batch)].numpy()])

    def _memory(self, count: int) -> Tensor:
        return torch.empty(count, self._page_bytes, dtype=torch.uint8, pin_memory=self._for_gpu)
