"""Pages that outlive their sequence, found again by the tokens that lead to them.

A tree whose edges are pages: a node is reached by the 128 tokens of its page and of every page before it, because the
keys and values of a page depend on all tokens before. Only whole pages are kept: a hit that ended inside a block would
have to rebuild the block's index keys, which is where other engines went wrong.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from m3_runtime.config import PAGE_TOKENS
from m3_runtime.pages import PagePool

Key = tuple[int, ...]
"""The 128 token ids of a page."""


class _Node:
    __slots__ = ("children", "key", "page", "parent")

    def __init__(self, key: Key, page: int, parent: _Node | None):
        self.key, self.page, self.parent = key, page, parent
        self.children: dict[Key, _Node] = {}


class PrefixCache:
    """The tree keeps pages in the pool; one that no sequence uses may be evicted, least recently used leaf first."""

    def __init__(self, pool: PagePool):
        self.pool = pool
        self._root = _Node((), -1, None)
        self._by_use: OrderedDict[_Node, None] = OrderedDict()
        """All nodes, least recently used first. A node is never older here than its children, so leaves come first."""
        pool.reclaim = self.evict

    @property
    def num_pages(self) -> int:
        """Pages that the tree keeps, those that a sequence uses included."""
        return len(self._by_use)

    def acquire(self, token_ids: Sequence[int]) -> list[int]:
        """Pages of the longest known prefix made of whole pages; the caller is a user of each and must release them."""
        path = self._known(token_ids)
        pages = [node.page for node in path]
        self.pool.share(pages)
        self._mark_used(path)
        return pages

    def insert(self, token_ids: Sequence[int], pages: Sequence[int]) -> None:
        """Keep the whole pages of a computed sequence. Where the tree already has a page, that one stays."""
        node, path = self._root, []
        for key, page in zip(_keys(token_ids), pages, strict=False):
            node = node.children.get(key) or self._add(node, key, page)
            path.append(node)
        self._mark_used(path)

    def evict(self, count: int) -> None:
        """Free up to `count` pages that only the tree holds: least recently used leaves first, then their parents."""
        for node in list(self._by_use):
            if count <= 0:
                return
            if not node.children and not self.pool.is_used(node.page):
                assert node.parent is not None
                del node.parent.children[node.key]
                del self._by_use[node]
                self.pool.drop(node.page)
                count -= 1

    def clear(self) -> None:
        """Drop every page that no sequence uses."""
        self.evict(self.num_pages)

    def _known(self, token_ids: Sequence[int]) -> list[_Node]:
        node, path = self._root, []
        for key in _keys(token_ids):
            child = node.children.get(key)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _add(self, parent: _Node, key: Key, page: int) -> _Node:
        self.pool.keep(page)
        node = _Node(key, page, parent)
        parent.children[key] = node
        return node

    def _mark_used(self, path: Sequence[_Node]) -> None:
        for node in reversed(path):
            self._by_use[node] = None
            self._by_use.move_to_end(node)


def _keys(token_ids: Sequence[int]) -> Iterator[Key]:
    """The tokens of each whole page."""
    for start in range(0, len(token_ids) - PAGE_TOKENS + 1, PAGE_TOKENS):
        yield tuple(token_ids[start : start + PAGE_TOKENS])
