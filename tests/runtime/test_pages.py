"""Pages: counts stay exact, and what a sequence reads is what it wrote, whatever its relatives do."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3_model.cache import KVCache
from m3_model.random_checkpoint import tiny_config
from m3_runtime.config import PAGE_TOKENS, pages_for
from m3_runtime.pages import OutOfPages, PagePool, PageTable


def _cache(num_pages: int) -> KVCache:
    return KVCache.zeros(tiny_config(), num_pages)


def _write(table: PageTable, first: int, values: list[int]) -> None:
    """Stand in for the decoder: one number in every tensor of every layer for each token."""
    for position, value in enumerate(values, first):
        page, offset = table.pages[position // PAGE_TOKENS], position % PAGE_TOKENS
        for tensor in (table.cache.k_LPSGD, table.cache.v_LPSGD, table.cache.index_k_LPSD):
            tensor[:, page, offset] = value


def _read(table: PageTable) -> list[list[float]]:
    found = []
    for tensor in (table.cache.k_LPSGD, table.cache.v_LPSGD, table.cache.index_k_LPSD):
        rows = tensor[-1, table.pages].flatten(0, 1)[: table.num_tokens].flatten(1)[:, -1]
        found.append(rows.tolist())
    return found


operation = st.tuples(
    st.sampled_from(["append", "append", "fork", "truncate", "free"]), st.integers(0, 9), st.integers(0, 400)
)


@settings(max_examples=40, deadline=None)
@given(st.lists(operation, max_size=25), st.integers(0, 1000))
def test_any_history_keeps_counts_exact_and_contents_apart(operations: list[tuple[str, int, int]], seed: int) -> None:
    pool, numbers = PagePool(12), random.Random(seed)
    cache = _cache(12)
    tables: list[tuple[PageTable, list[int]]] = [(PageTable(pool, cache), [])]
    for kind, which, amount in operations:
        table, content = tables[which % len(tables)]
        try:
            if kind == "append":
                new = [numbers.randrange(1, 1000) for _ in range(amount)]
                table.reserve(len(new))
                _write(table, table.num_tokens, new)
                table.num_tokens += len(new)
                content += new
            elif kind == "fork":
                tables.append((table.fork(), list(content)))
            elif kind == "truncate":
                kept = min(amount, len(content))
                table.truncate(kept)
                del content[kept:]
            else:
                table.free()
                content.clear()
        except OutOfPages:
            pass  # allowed to fail, not to change anything
        held = [0] * pool.num_pages
        for other, expected in tables:
            assert len(other.pages) >= pages_for(other.num_tokens)
            assert _read(other) == [expected] * 3
            for page in other.pages:
                held[page] += 1
        assert held == pool.counts
        assert pool.num_free == held.count(0)
    for table, _ in tables:
        table.free()
    assert pool.num_free == pool.num_pages


def test_allocation_is_all_or_nothing() -> None:
    pool = PagePool(3)
    pool.allocate(2)
    with pytest.raises(OutOfPages, match="2 pages are needed, 1 of 3 are free"):
        pool.allocate(2)
    assert pool.num_free == 1
