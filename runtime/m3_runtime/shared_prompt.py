"""A prompt read once, to be continued many times: what search and score have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence

import torch

from m3_runtime.config import PAGE_TOKENS, EngineConfig, pages_for
from m3_runtime.pages import PagePool, PageTable
from m3_runtime.prefix_cache import PrefixCache
from m3_runtime.request import PrefillProgress
from m3_runtime.runner import Chunk, Runner
from m3_runtime.visuals import Visual, token_keys


class SharedPrompt:
    """The pages of a computed prompt and the logits [1, V] after its last token."""

    def __init__(self, runner: Runner, pool: PagePool, token_ids: Sequence[int], visuals: Sequence[Visual] = ()):
        self.runner, self.pool = runner, pool
        self.token_ids, self.visuals = list(token_ids), visuals
        self.table = PageTable(pool)
        self.logits_1V = torch.empty(0)
        self.cached_tokens = 0

    def read(self, prefix_cache: PrefixCache | None, config: EngineConfig) -> Generator[PrefillProgress, None, None]:
        """Compute the prompt chunk by chunk, from the longest known prefix on."""
        total = len(self.token_ids)
        keys = token_keys(self.token_ids, self.visuals)
        if prefix_cache is not None:
            self.table.adopt(prefix_cache.acquire(keys[:-1]))
            prefix_cache.save()
        self.cached_tokens = self.table.num_tokens
        while self.table.num_tokens < total:
            start = self.table.num_tokens
            count = min(config.prefill_chunk, total - start)
            self.table.reserve(count)
            chunk = Chunk(self.token_ids[start : start + count], start, self.table.pages, visuals=self.visuals)
            self.logits_1V = self.runner.forward([chunk])
            self.table.num_tokens += count
            yield PrefillProgress(
                request_id=0, done_tokens=start + count, total_tokens=total, cached_tokens=self.cached_tokens
            )
        if prefix_cache is not None:
            prefix_cache.insert(keys, self.table.pages)

    @contextlib.contextmanager
    def slots(self, count: int) -> Iterator[Slots]:
        """Room for `count` continuations; all their pages are given back at the end. Raises OutOfPages."""
        slots = Slots(self, count)
        try:
            yield slots
        finally:
            self.pool.release(slots.taken)


class Slots:
    """Page lists of continuations of one prompt: whole pages of the prompt shared, the partial page a copy for each."""

    def __init__(self, prompt: SharedPrompt, count: int):
        self._pool = prompt.pool
        whole, partial = divmod(len(prompt.token_ids), PAGE_TOKENS)
        self.taken = self._pool.allocate(count) if partial else []
        if partial:
            prompt.pool.cache.copy_pages([prompt.table.pages[whole]] * count, self.taken, tokens=partial)
        self.pages = [[*prompt.table.pages[:whole], *self.taken[i : i + 1]] for i in range(count)]

    def __len__(self) -> int:
        return len(self.pages)

    def ensure(self, slot: int, num_tokens: int) -> None:
        """Make room for `num_tokens` tokens, prompt included. Raises OutOfPages."""
        missing = pages_for(num_tokens) - len(self.pages[slot])
        if missing > 0:
            new = self._pool.allocate(missing)
            self.taken += new
            self.pages[slot] += new
