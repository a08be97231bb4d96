"""Who holds which page of the cache: reference counts over pages of 128 tokens.

The pool counts; the tensors belong to m3_model's KVCache, which keeps K, V and index keys of all layers under one page
id, so that sharing, copying or freeing a page can never lose one of them. Pages are blocks of MSA: they are anchored at
position 0 of the sequence, so only whole pages are shared and a partial page is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from m3_model.cache import KVCache
from m3_runtime.config import PAGE_TOKENS, pages_for


class OutOfPages(RuntimeError):
    """No page is free and nothing can be evicted."""


class PagePool:
    """Reference counts of `num_pages` pages.

    `reclaim(n)` is asked to give back unused pages when the free list is too short; it returns nothing and may give
    fewer. A page is free exactly when its count is 0.
    """

    def __init__(self, num_pages: int):
        self.num_pages = num_pages
        self.counts = [0] * num_pages
        self.reclaim: Callable[[int], None] | None = None
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """`count` pages with one reference each, all or none. Raises OutOfPages."""
        if count > len(self._free) and self.reclaim is not None:
            self.reclaim(count - len(self._free))
        if count > len(self._free):
            raise OutOfPages(f"{count} pages are needed, {len(self._free)} of {self.num_pages} are free")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self.counts[page] = 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """Add one reference to each page; all must be in use."""
        for page in pages:
            assert self.counts[page] > 0, f"page {page} is free and cannot be shared"
            self.counts[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Drop one reference of each page; a page without references is free again."""
        for page in pages:
            assert self.counts[page] > 0, f"page {page} was released more often than it was taken"
            self.counts[page] -= 1
            if self.counts[page] == 0:
                self._free.append(page)


class PageTable:
    """The pages of one sequence, in order, and how many of its tokens they hold.

    Invariant: `pages` covers at least `num_tokens`; the page that takes the next token has no other owner.
    """

    def __init__(self, pool: PagePool, cache: KVCache):
        self.pool, self.cache = pool, cache
        self.pages: list[int] = []
        self.num_tokens = 0

    def adopt(self, pages: Sequence[int]) -> None:
        """Start with whole shared pages, each full of tokens computed before."""
        assert not self.pages, "only an empty table can adopt pages"
        self.pool.share(pages)
        self.pages = list(pages)
        self.num_tokens = len(pages) * PAGE_TOKENS

    def reserve(self, count: int) -> None:
        """Make room for `count` more tokens. Raises OutOfPages and then changes nothing."""
        missing = pages_for(self.num_tokens + count) - len(self.pages)
        if missing > 0:
            self.pages += self.pool.allocate(missing)

    def fork(self) -> PageTable:
        """A table with the same tokens: whole pages shared, the partial page copied. Raises OutOfPages."""
        whole, partial = divmod(self.num_tokens, PAGE_TOKENS)
        tail = self.pool.allocate(1) if partial else []
        child = PageTable(self.pool, self.cache)
        self.pool.share(self.pages[:whole])
        child.pages = self.pages[:whole] + tail
        child.num_tokens = self.num_tokens
        if tail:
            self.cache.copy_pages([self.pages[whole]], tail, tokens=partial)
        return child

    def truncate(self, num_tokens: int) -> None:
        """Forget the tokens from `num_tokens` on. A shared page that becomes partial is copied. Raises OutOfPages."""
        assert 0 <= num_tokens <= self.num_tokens, "a table can only become shorter"
        whole, partial = divmod(num_tokens, PAGE_TOKENS)
        if partial and self.pool.counts[self.pages[whole]] > 1:
            (copy,) = self.pool.allocate(1)
            self.cache.copy_pages([self.pages[whole]], [copy], tokens=partial)
            self.pool.release([self.pages[whole]])
            self.pages[whole] = copy
        kept = pages_for(num_tokens)
        self.pool.release(self.pages[kept:])
        del self.pages[kept:]
        self.num_tokens = num_tokens

    def free(self) -> None:
        """Give every page back; the table is empty afterwards."""
        self.pool.release(self.pages)
        self.pages = []
        self.num_tokens = 0
