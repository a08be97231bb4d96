"""Pages that outlive their sequence, found again by the tokens that lead to them.

A tree whose edges are pages: a node is reached by the 128 tokens of its page and of every page before it, because the
keys and values of a page depend on all tokens before. The tokens of an image stand here for its content
(m3_runtime.visuals). Only whole pages are kept: a hit that ended inside a block would have to rebuild the block's index
keys, which is where other engines went wrong.

With a disk cache, a prefix goes on where memory ends. What is asked for a second time is saved: most prompts come once,
and the pages of a conversation or a repository come with every turn.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence

from m3_runtime.config import PAGE_TOKENS
from m3_runtime.disk_cache import DiskCache
from m3_runtime.page_file import next_name
from m3_runtime.pages import OutOfPages, PagePool
from m3_runtime.restoring import PageReader
from m3_runtime.visuals import TokenKey

Key = tuple[TokenKey, ...]
"""The 128 tokens of a page."""


class _Node:
    __slots__ = ("children", "key", "name", "on_disk", "page", "parent")

    def __init__(self, key: Key, page: int, parent: _Node | None, name: bytes):
        self.key, self.page, self.parent = key, page, parent
        self.children: dict[Key, _Node] = {}
        self.name = name
        """Its name on disk; empty without a disk cache."""
        self.on_disk = False
        """Whether it is there, or waits to be saved."""


class PrefixCache:
    """The tree keeps pages in the pool; one that no sequence uses may be evicted, least recently used leaf first."""

    def __init__(self, pool: PagePool, disk: DiskCache | None = None):
        self.pool, self.disk = pool, disk
        self._reader = PageReader(pool.cache, disk) if disk is not None else None
        self._root = _Node((), -1, None, disk.first_name if disk is not None else b"")
        self._by_use: OrderedDict[_Node, None] = OrderedDict()
        """All nodes, least recently used first. A node is never older here than its children, so leaves come first."""
        self._unsaved: deque[tuple[_Node, int]] = deque()
        """Pages that wait to be saved, and when they were used."""
        self._used_ns: dict[bytes, int] = {}
        """When pages on disk were used, as far as the disk cache has not been told."""
        pool.reclaim = self.evict

    @property
    def num_pages(self) -> int:
        """Pages that the tree keeps, those that a sequence uses included."""
        return len(self._by_use)

    def acquire(self, tokens: Sequence[TokenKey]) -> list[int]:
        """Pages of the longest known prefix made of whole pages; the caller is a user of each and must release them."""
        path = self._known(tokens)
        self.pool.share([node.page for node in path])  # first of all: what is held is not evicted
        if self.disk is not None and self._reader is not None:
            path += self._restore(path[-1] if path else self._root, tokens[len(path) * PAGE_TOKENS :], self._reader)
            self._will_save(path)
        self._mark_used(path)
        return [node.page for node in path]

    def insert(self, tokens: Sequence[TokenKey], pages: Sequence[int]) -> None:
        """Keep the whole pages of a computed sequence. Where the tree already has a page, that one stays."""
        node, path = self._root, []
        for key, page in zip(_keys(tokens), pages, strict=False):
            node = node.children.get(key) or self._add(node, key, page)
            path.append(node)
        self._mark_used(path)

    def save(self, deadline_s: float = 0.0) -> None:
        """Hand waiting pages to the disk cache, as many as it takes at once, or until `deadline_s` (time.monotonic)."""
        if self.disk is not None and self._used_ns:
            self.disk.used(self._used_ns)
            self._used_ns = {}
        while self.disk is not None and self._unsaved and (self.disk.has_room or time.monotonic() < deadline_s):
            node, used_ns = self._unsaved.popleft()
            if node in self._by_use and not self.disk.has(node.name):  # neither evicted nor saved by another process
                self.disk.save(node.name, self.pool.cache.read_page(node.page), used_ns)

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

    def _known(self, tokens: Sequence[TokenKey]) -> list[_Node]:
        node, path = self._root, []
        for key in _keys(tokens):
            child = node.children.get(key)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _add(self, parent: _Node, key: Key, page: int, name: bytes = b"") -> _Node:
        self.pool.keep(page)
        if self.disk is not None and not name:
            name = next_name(parent.name, key)
        node = _Node(key, page, parent, name)
        parent.children[key] = node
        return node

    def _restore(self, node: _Node, tokens: Sequence[TokenKey], reader: PageReader) -> list[_Node]:
        """Nodes of the pages behind `node` that are on disk; the caller is a user of each."""
        keys = list(_keys(tokens))
        names = list(itertools.accumulate(keys, next_name, initial=node.name))[1:]
        path: list[_Node] = []
        for content_NX in reader.read(names):
            count = min(len(content_NX), self.pool.num_free + self.pool.num_cached)
            try:
                pages = self.pool.allocate(count)
            except OutOfPages:
                break  # not every page that only the tree holds can go: a later one may be in use
            self.pool.cache.write_pages(pages, content_NX[:count])
            for page in pages:
                node = self._add(node, keys[len(path)], page, names[len(path)])
                node.on_disk = True
                path.append(node)
            if count < len(content_NX):
                break  # the rest is computed, when there is room for it
        return path

    def _will_save(self, path: Sequence[_Node]) -> None:
        # A page counts as used before those that lead to it, so that it is also removed before them.
        now_ns = time.time_ns()
        times_ns = {node.name: now_ns - 1000 * depth for depth, node in enumerate(path)}
        self._unsaved += [(node, times_ns[node.name]) for node in path if not node.on_disk]
        for node in path:
            node.on_disk = True
        self._used_ns |= times_ns

    def _mark_used(self, path: Sequence[_Node]) -> None:
        for node in reversed(path):
            self._by_use[node] = None
            self._by_use.move_to_end(node)


def _keys(tokens: Sequence[TokenKey]) -> Iterator[Key]:
    """The tokens of each whole page."""
    for start in range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS):
        yield tuple(tokens[start : start + PAGE_TOKENS])
