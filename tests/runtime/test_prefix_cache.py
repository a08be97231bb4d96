"""The prefix tree: it finds exactly what was put in, and never lets go of a page in use."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from m3_runtime.config import PAGE_TOKENS
from m3_runtime.pages import PagePool
from m3_runtime.prefix_cache import PrefixCache
from tests.runtime.conftest import small_cache


def _tokens(letters: str, extra: int = 0) -> list[int]:
    """One page of equal tokens for each letter, and some tokens of a page that is not whole."""
    return [ord(letter) for letter in letters for _ in range(PAGE_TOKENS)] + [0] * extra


words = st.text("ab", max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["put", "get", "evict"]), words, st.integers(0, 4)), max_size=30))
def test_matches_are_the_longest_known_prefix_and_counts_stay_exact(steps: list[tuple[str, str, int]]) -> None:
    pool, tree = _pool_and_tree(40)
    known: dict[str, int] = {}
    for kind, word, number in steps:
        if kind == "put":
            pages = _put(pool, tree, word, number)
            for end in range(1, len(word) + 1):
                known.setdefault(word[:end], pages[end - 1])
        elif kind == "get":
            longest = max((n for n in range(len(word) + 1) if word[:n] in known), default=0)
            assert _get(pool, tree, word, number) == [known[word[: n + 1]] for n in range(longest)]
        else:
            tree.evict(number)
            known = {word: page for word, page in known.items() if len(_get(pool, tree, word)) == len(word)}
        assert tree.num_pages == pool.num_cached == len(known)
        assert pool.num_free == pool.num_pages - len(known)
    tree.clear()
    assert pool.num_free == pool.num_pages


def _pool_and_tree(num_pages: int) -> tuple[PagePool, PrefixCache]:
    pool = PagePool(small_cache(num_pages), num_pages)
    return pool, PrefixCache(pool)


def _put(pool: PagePool, tree: PrefixCache, word: str, extra: int = 0) -> list[int]:
    known = tree.acquire(_tokens(word))
    pages = known + pool.allocate(len(word) - len(known))
    tree.insert(_tokens(word, extra), pages)
    pool.release(pages)
    return pages


def _get(pool: PagePool, tree: PrefixCache, word: str, extra: int = 0) -> list[int]:
    pages = tree.acquire(_tokens(word, extra))
    pool.release(pages)
    return pages


def test_the_least_recently_used_leaf_goes_first() -> None:
    pool, tree = _pool_and_tree(4)
    _put(pool, tree, "ab")
    _put(pool, tree, "ac")
    _get(pool, tree, "ab")
    tree.evict(1)
    assert len(_get(pool, tree, "ab")) == 2
    assert len(_get(pool, tree, "ac")) == 1


def test_a_page_in_use_is_never_evicted_and_allocation_evicts_by_itself() -> None:
    pool, tree = _pool_and_tree(3)
    pages = pool.allocate(2)
    tree.insert(_tokens("ab"), pages)
    pool.release(pages[1:])
    tree.evict(5)
    assert _get(pool, tree, "ab") == pages[:1]
    pool.release(pages[:1])
    assert len(pool.allocate(3)) == 3
    assert tree.num_pages == 0
