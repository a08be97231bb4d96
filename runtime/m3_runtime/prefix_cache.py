"""Pages that outlive their sequence, found again by the tokens that lead to them.

A tree whose edges are pages: a node is reached by the 128 tokens of its page and of every page before it, because the
keys and values of a page depend on all tokens before. Only whole pages are kept: a hit that ended inside a block would
have to rebuild the block's index keys, which is where other engines went wrong.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from m3_runtime.config import PAGE_TOKENS
from m3_runtime.pages import PagePool


class _Node:
    __slots__ = ("children", "key", "last_used", "page", "parent")

    def __init__(self, key: tuple[int, ...], page: int, parent: _Node | None):
        self.key, self.page, self.parent = key, page, parent
        self.children: dict[tuple[int, ...], _Node] = {}
        self.last_used = 0


class PrefixCache:
    """The tree holds one reference to each of its pages; a page nobody else holds may be evicted, oldest leaf first."""

    def __init__(self, pool: PagePool):
        self.pool = pool
        self.num_pages = 0
        self._root = _Node((), -1, None)
        self._clock = 0
        pool.reclaim = self.evict

    def match(self, token_ids: Sequence[int]) -> list[int]:
        """Pages of the longest known prefix made of whole pages. The caller shares them before it allocates."""
        self._clock += 1
        node, pages = self._root, []
        for start in range(0, len(token_ids) - PAGE_TOKENS + 1, PAGE_TOKENS):
            child = node.children.get(tuple(token_ids[start : start + PAGE_TOKENS]))
            if child is None:
                break
            child.last_used = self._clock
            pages.append(child.page)
            node = child
        return pages

    def insert(self, token_ids: Sequence[int], pages: Sequence[int]) -> None:
        """Remember the whole pages of a computed sequence. Where the tree already has a page, that one stays."""
        self._clock += 1
        node = self._root
        for index in range(min(len(token_ids) // PAGE_TOKENS, len(pages))):
            key = tuple(token_ids[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS])
            child = node.children.get(key)
            if child is None:
                child = _Node(key, pages[index], node)
                self.pool.share([child.page])
                node.children[key] = child
                self.num_pages += 1
            child.last_used = self._clock
            node = child

    def evict(self, count: int) -> None:
        """Free up to `count` pages that only the tree holds: least recently used leaves first, then their parents."""
        heap = [(node.last_used, id(node), node) for node in self._nodes() if self._is_idle_leaf(node)]
        heapq.heapify(heap)
        while heap and count > 0:
            node = heapq.heappop(heap)[2]
            parent = node.parent
            assert parent is not None
            del parent.children[node.key]
            self.pool.release([node.page])
            self.num_pages -= 1
            count -= 1
            if self._is_idle_leaf(parent):
                heapq.heappush(heap, (parent.last_used, id(parent), parent))

    def clear(self) -> None:
        """Drop every page that no sequence uses."""
        self.evict(self.num_pages)

    def _is_idle_leaf(self, node: _Node) -> bool:
        return node.parent is not None and not node.children and self.pool.counts[node.page] == 1

    def _nodes(self) -> list[_Node]:
        found, queue = [], list(self._root.children.values())
        while queue:
            node = queue.pop()
            found.append(node)
            queue.extend(node.children.values())
        return found
