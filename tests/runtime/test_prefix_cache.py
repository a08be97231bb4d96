"""The prefix tree: it finds exactly what was put in, and never lets go of a page in use."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from m3_runtime.config import PAGE_TOKENS
from m3_runtime.pages import PagePool
from m3_runtime.prefix_cache import PrefixCache


def _tokens(letters: str, extra: int = 0) -> list[int]:
    """One page of equal tokens for each letter, and some tokens of a page that is not whole."""
    return [ord(letter) for letter in letters for _ in range(PAGE_TOKENS)] + [0] * extra


words = st.text("ab", max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["put", "get", "evict"]), words, st.integers(0, 4)), max_size=30))
def test_matches_are_the_longest_known_prefix_and_counts_stay_exact(steps: list[tuple[str, str, int]]) -> None:
    pool = PagePool(40)
    tree = PrefixCache(pool)
    known: dict[str, int] = {}
    for kind, word, number in steps:
        if kind == "put":
            cached = tree.match(_tokens(word))
            pool.share(cached)
            pages = cached + pool.allocate(len(word) - len(cached))
            tree.insert(_tokens(word, number), pages)
            for end in range(1, len(word) + 1):
                known.setdefault(word[:end], pages[end - 1])
            pool.release(pages)
        elif kind == "get":
            found = tree.match(_tokens(word, number))
            longest = max((n for n in range(len(word) + 1) if word[:n] in known), default=0)
            assert found == [known[word[: n + 1]] for n in range(longest)]
        else:
            tree.evict(number)
            known = {word: page for word, page in known.items() if len(tree.match(_tokens(word))) == len(word)}
        assert tree.num_pages == len(known)
        assert pool.num_free == pool.num_pages - len(known)
    tree.clear()
    assert pool.num_free == pool.num_pages


def test_the_least_recently_used_leaf_goes_first() -> None:
    pool = PagePool(4)
    tree = PrefixCache(pool)
    for word in ("ab", "ac"):
        cached = tree.match(_tokens(word))
        pool.share(cached)
        pages = cached + pool.allocate(2 - len(cached))
        tree.insert(_tokens(word), pages)
        pool.release(pages)
    tree.match(_tokens("ab"))
    tree.evict(1)
    assert len(tree.match(_tokens("ab"))) == 2
    assert len(tree.match(_tokens("ac"))) == 1


def test_a_page_in_use_is_never_evicted_and_allocation_evicts_by_itself() -> None:
    pool = PagePool(3)
    tree = PrefixCache(pool)
    pages = pool.allocate(2)
    tree.insert(_tokens("ab"), pages)
    pool.release(pages[1:])
    tree.evict(5)
    assert tree.match(_tokens("ab")) == pages[:1]
    pool.release(pages[:1])
    assert len(pool.allocate(3)) == 3
    assert tree.num_pages == 0
