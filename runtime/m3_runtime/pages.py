"""The pages of the cache, 128 tokens each, and who holds which.

The pool owns the tensors (m3_model's KVCache, which keeps K, V and index keys of all layers under one page id) and the
counts, so that sharing, copying or freeing a page can never lose one of them. Pages are blocks of MSA: they are
anchored at position 0 of the sequence, so a page that two sequences hold has the same place in both.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from m3_model.cache import KVCache
from m3_runtime.config import PAGE_TOKENS, pages_for


class OutOfPages(RuntimeError):
    """No page is free and nothing can be evicted."""


class PagePool:
    """`num_pages` pages of a cache, each free, used by one or more sequences, or cached: kept by the prefix tree alone.

    The three always add up: `num_free + num_used + num_cached == num_pages`. `reclaim(n)` is asked to give up cached
    pages when too few are free; it returns nothing and may give up fewer.
    """

    def __init__(self, cache: KVCache, num_pages: int):
        self.cache, self.num_pages = cache, num_pages
        self.num_used = 0
        self.num_cached = 0
        self.reclaim: Callable[[int], None] | None = None
        self._users = [0] * num_pages
        self._kept = [False] * num_pages
        self._free = list(range(num_pages))
        """A heap: the lowest free page is taken first, so that the pages of a sequence tend to be neighbours, which
        attention reads without a copy."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    def is_used(self, page: int) -> bool:
        """Whether a sequence holds the page."""
        return self._users[page] > 0

    def is_shared(self, page: int) -> bool:
        """Whether someone beside its one user would see what is written to the page."""
        return self._users[page] > 1 or self._kept[page]

    def allocate(self, count: int) -> list[int]:
        """`count` pages with one user each, all or none. Raises OutOfPages."""
        if count > len(self._free) and self.reclaim is not None:
            self.reclaim(count - len(self._free))
        if count > len(self._free):
            raise OutOfPages(f"{count} pages are needed, {len(self._free)} of {self.num_pages} are free")
        pages = [heapq.heappop(self._free) for _ in range(count)]
        for page in pages:
            self._users[page] = 1
        self.num_used += count
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """One more user for each page; none of them may be free."""
        for page in pages:
            assert self._users[page] or self._kept[page], f"page {page} is free and cannot be shared"
            if not self._users[page]:
                self.num_cached -= 1
                self.num_used += 1
            self._users[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """One user less for each page; a page that nobody holds is free again."""
        for page in pages:
            assert self._users[page] > 0, f"page {page} was released more often than it was taken"
            self._users[page] -= 1
            if not self._users[page]:
                self.num_used -= 1
                if self._kept[page]:
                    self.num_cached += 1
                else:
                    heapq.heappush(self._free, page)

    def keep(self, page: int) -> None:
        """The prefix tree holds on to a page that is in use."""
        assert self._users[page], f"page {page} is not in use"
        assert not self._kept[page], f"page {page} is kept already"
        self._kept[page] = True

    def drop(self, page: int) -> None:
        """The prefix tree lets go of a page that nobody uses; it is free again."""
        assert self._kept[page], f"page {page} is not kept"
        assert not self._users[page], f"page {page} is in use"
        self._kept[page] = False
        self.num_cached -= 1
        heapq.heappush(self._free, page)


class PageTable:
    """The pages of one sequence, in order, and how many of its tokens they hold.

    `pages` covers at least `num_tokens`. Forks share all pages, the partial one too: whoever writes to it first takes
    a copy, and that happens in `reserve`, the only place that needs new pages.
    """

    def __init__(self, pool: PagePool):
        self.pool = pool
        self.pages: list[int] = []
        self.num_tokens = 0

    def adopt(self, pages: Sequence[int]) -> None:
        """Start with whole pages, full of tokens computed before; the caller's hold on them goes over to the table."""
        assert not self.pages, "only an empty table can adopt pages"
        self.pages = list(pages)
        self.num_tokens = len(pages) * PAGE_TOKENS

    def reserve(self, count: int) -> None:
        """Make room for `count` more tokens, which nobody else sees. Raises OutOfPages and then changes nothing."""
        whole, partial = divmod(self.num_tokens, PAGE_TOKENS)
        copied = [self.pages[whole]] if partial and self.pool.is_shared(self.pages[whole]) else []
        missing = max(pages_for(self.num_tokens + count) - len(self.pages), 0)
        new = self.pool.allocate(len(copied) + missing)
        if copied:
            self.pages[whole] = new.pop()
            self.pool.cache.copy_pages(copied, [self.pages[whole]], tokens=partial)
            self.pool.release(copied)
        self.pages += new

    def fork(self) -> PageTable:
        """A table with the same tokens, in the same pages."""
        child = PageTable(self.pool)
        child.pages = self.pages[: pages_for(self.num_tokens)]
        child.num_tokens = self.num_tokens
        self.pool.share(child.pages)
        return child

    def truncate(self, num_tokens: int) -> None:
        """Forget the tokens from `num_tokens` on."""
        assert 0 <= num_tokens <= self.num_tokens, "a table can only become shorter"
        kept = pages_for(num_tokens)
        self.pool.release(self.pages[kept:])
        del self.pages[kept:]
        self.num_tokens = num_tokens

    def free(self) -> None:
        """Give every page back; the table is empty afterwards."""
        self.truncate(0)
