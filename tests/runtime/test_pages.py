"""Pages and prefix tree against a naive model: what a sequence reads is what it wrote, whatever its relatives do."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from m3_runtime.config import PAGE_TOKENS, pages_for
from m3_runtime.disk_cache import DiskCache
from m3_runtime.pages import OutOfPages, PagePool, PageTable
from m3_runtime.prefix_cache import PrefixCache
from tests.runtime.conftest import small_cache

NUM_PAGES = 9


class Sequence:
    """A table and, as the naive model, the plain list of its tokens."""

    def __init__(self, table: PageTable):
        self.table = table
        self.tokens: list[int] = []

    def append(self, tokens: list[int]) -> None:
        """Stand in for the decoder: one number in every tensor of every layer for each token. Raises OutOfPages."""
        self.table.reserve(len(tokens))
        cache, first = self.table.pool.cache, len(self.tokens)
        for position, token in enumerate(tokens, first):
            page, offset = self.table.pages[position // PAGE_TOKENS], position % PAGE_TOKENS
            for number, tensor in enumerate((cache.k_LPSGD, cache.v_LPSGD, cache.index_k_LPSD), 1):
                tensor[:, page, offset] = number * (1000 * position + token)
        self.table.num_tokens += len(tokens)
        self.tokens += tokens

    def check(self) -> None:
        cache, tokens = self.table.pool.cache, self.tokens
        assert self.table.num_tokens == len(tokens)
        assert len(self.table.pages) >= pages_for(len(tokens))
        for number, tensor in enumerate((cache.k_LPSGD, cache.v_LPSGD, cache.index_k_LPSD), 1):
            rows = tensor[:, self.table.pages].flatten(1, 2)[:, : len(tokens)]
            expected = [number * (1000 * position + token) for position, token in enumerate(tokens)]
            for row in (rows.amin(0), rows.amax(0)):
                values = row.flatten(1)
                assert values.amin(1).tolist() == values.amax(1).tolist() == expected


class PagesMachine(RuleBasedStateMachine):
    """Sequences that start, grow, fork, shrink and end, in a pool that is too small for them."""

    sequences = Bundle("sequences")
    prompts = st.builds(
        lambda pages, rest: [ord(c) for c in pages for _ in range(PAGE_TOKENS)] + [ord("z")] * rest,
        st.text("ab", max_size=3),
        st.integers(1, 200),
    )

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(small_cache(NUM_PAGES), NUM_PAGES)
        self.tree = PrefixCache(self.pool, self.open_disk())
        self.live: list[Sequence] = []

    def open_disk(self) -> DiskCache | None:
        return None

    @rule(target=sequences, prompt=prompts)
    def start(self, prompt: list[int]) -> object:
        """Known pages first, the rest computed; without room for it, the sequence never begins."""
        sequence = Sequence(PageTable(self.pool))
        sequence.table.adopt(self.tree.acquire(prompt[:-1]))
        known = sequence.table.num_tokens
        sequence.tokens = prompt[:known]
        self.live.append(sequence)
        try:
            sequence.append(prompt[known:])
        except OutOfPages:
            sequence.check()
            self.end(sequence, keep=True)
            return multiple()
        return sequence

    @rule(sequence=sequences, count=st.integers(0, 300), token=st.integers(1, 99))
    def append(self, sequence: Sequence, count: int, token: int) -> None:
        before = list(sequence.table.pages)
        try:
            sequence.append([token] * count)
        except OutOfPages:
            assert sequence.table.pages == before
            assert self.pool.num_free < pages_for(count) + 1  # the one more is the copy of a partial page

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: Sequence) -> Sequence:
        used = self.pool.num_used
        child = Sequence(sequence.table.fork())
        child.tokens = list(sequence.tokens)
        self.live.append(child)
        assert self.pool.num_used == used  # nothing is copied before someone writes
        return child

    @rule(sequence=sequences, share=st.floats(0, 1))
    def truncate(self, sequence: Sequence, share: float) -> None:
        kept = int(len(sequence.tokens) * share)
        sequence.table.truncate(kept)
        del sequence.tokens[kept:]

    @rule(sequence=sequences)
    def remember(self, sequence: Sequence) -> None:
        self.tree.insert(sequence.tokens, sequence.table.pages)

    @rule(sequence=consumes(sequences), keep=st.booleans())
    def end(self, sequence: Sequence, keep: bool) -> None:
        if keep:
            self.remember(sequence)
        sequence.table.free()
        self.live.remove(sequence)

    @rule(count=st.integers(0, 4))
    def evict(self, count: int) -> None:
        cached, free = self.pool.num_cached, self.pool.num_free
        self.tree.evict(count)
        assert self.pool.num_free - free == cached - self.pool.num_cached <= count

    @invariant()
    def every_page_is_counted_once(self) -> None:
        pool = self.pool
        assert pool.num_free + pool.num_used + pool.num_cached == pool.num_pages
        held = Counter(page for sequence in self.live for page in sequence.table.pages)
        assert pool.num_used == len(held)
        assert [page for page in range(NUM_PAGES) if pool.is_used(page)] == sorted(held)
        for page, users in held.items():
            assert pool.is_shared(page) or users == 1
        assert pool.num_cached <= self.tree.num_pages <= pool.num_cached + pool.num_used

    @invariant()
    def everyone_reads_what_was_written(self) -> None:
        for sequence in self.live:
            sequence.check()

    def teardown(self) -> None:
        for sequence in self.live:
            sequence.table.free()
        self.tree.clear()
        assert self.pool.num_free == self.pool.num_pages


TestPages = PagesMachine.TestCase
TestPages.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


class PagesOnDiskMachine(PagesMachine):
    """The same, with pages that come back from disk after they were evicted. The folder holds eight of them."""

    def open_disk(self) -> DiskCache:
        self.folder = tempfile.TemporaryDirectory()
        page_bytes = self.pool.cache.bytes_per_page
        return DiskCache(Path(self.folder.name), "m", b"m", page_bytes=page_bytes, max_bytes=8 * (page_bytes + 100))

    @rule()
    def save(self) -> None:
        assert self.tree.disk is not None
        self.tree.save()
        self.tree.disk.close()

    def teardown(self) -> None:
        super().teardown()
        self.save()
        self.folder.cleanup()


TestPagesOnDisk = PagesOnDiskMachine.TestCase
TestPagesOnDisk.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


def test_allocation_is_all_or_nothing() -> None:
    pool = PagePool(small_cache(3), 3)
    pool.allocate(2)
    with pytest.raises(OutOfPages, match="2 pages are needed, 1 of 3 are free"):
        pool.allocate(2)
    assert pool.num_free == 1


def test_of_two_that_share_a_partial_page_only_the_first_to_write_copies_it() -> None:
    pool = PagePool(small_cache(4), 4)
    parent = Sequence(PageTable(pool))
    parent.append([7] * 130)
    child = Sequence(parent.table.fork())
    child.tokens = list(parent.tokens)
    parent.append([8])
    assert parent.table.pages[0] == child.table.pages[0]
    own = child.table.pages[1]
    child.append([9])
    assert child.table.pages[1] == own != parent.table.pages[1]
    assert pool.num_used == 3
    parent.check()
    child.check()
