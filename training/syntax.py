"""A piece of Python with its syntax tree, the places in it by byte, and edits of one span."""

from __future__ import annotations

import ast
import dataclasses
import random
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Replace the bytes [start, end) of a source by `text`."""

    start: int
    end: int
    text: bytes


class Parsed:
    """A source with its tree, the nodes by type, and byte spans.

    An indented source (a method) is parsed under a class line, so that nothing in it moves. Annotations and the inside
    of f-strings are left out: the first change nothing at run time, the second have no reliable positions before 3.12.
    Raises SyntaxError, or ValueError for a null byte.
    """

    def __init__(self, source: str, *, only_line: int | None = None) -> None:
        self.source = source
        self.data = source.encode()
        header = "class _:\n" if source[:1] in (" ", "\t") else ""
        self._header = len(header)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.tree = ast.parse(header + source)
        self._starts = [0]
        for line in (header + source).encode().split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._first_line = 1 if header else 0
        self.nodes: dict[type[ast.AST], list[ast.AST]] = {}
        self.parents: dict[ast.AST, ast.AST] = {}
        self._collect(only_line + self._first_line if only_line is not None else None)

    def _collect(self, only_line: int | None) -> None:
        stack: list[ast.AST] = [self.tree]
        while stack:
            node = stack.pop()
            for name, value in ast.iter_fields(node):
                if name in ("annotation", "returns", "type_params", "type_comment") or isinstance(node, ast.JoinedStr):
                    continue
                children = value if isinstance(value, list) else [value]
                for child in children:
                    if isinstance(child, ast.AST):
                        self.parents[child] = node
                        stack.append(child)
            line = getattr(node, "lineno", None)  # arguments and comprehensions have none
            if only_line is None or (line is not None and line == only_line == getattr(node, "end_lineno", line)):
                self.nodes.setdefault(type(node), []).append(node)

    def all(self, kind: type[Node]) -> list[Node]:
        return self.nodes.get(kind, [])  # type: ignore[return-value]

    def pick(self, rng: random.Random, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """The nodes of these types in random order, at most twelve."""
        found = [node for kind in kinds for node in self.nodes.get(kind, ())]
        yield from rng.sample(found, min(len(found), 12))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Byte offsets of a node in the source."""
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return start - self._header, end - self._header

    def text(self, node: ast.AST) -> bytes:
        start, end = self.span(node)
        return self.data[start:end]

    def line(self, node: ast.AST) -> int:
        """The 0-based first line of a node in the source."""
        return int(node.lineno) - 1 - self._first_line  # type: ignore[attr-defined]

    def replace(self, node: ast.AST, text: bytes | str) -> Span:
        start, end = self.span(node)
        return Span(start, end, text.encode() if isinstance(text, str) else text)

    def between(self, left: ast.AST, right: ast.AST, old: bytes, new: bytes) -> Span | None:
        """Replace the first `old` between two nodes, for instance an operator; None if it is not on one line there."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.data[start:end]
        at = gap.find(old)
        if at < 0 or b"\n" in gap or b"#" in gap:
            return None
        return Span(start + at, start + at + len(old), new)

    def lines(self, start: int, count: int) -> tuple[int, int]:
        """Byte offsets of `count` whole lines from 0-based line `start`, with their newlines."""
        first = self._starts[start + self._first_line] - self._header
        last = min(self._starts[start + self._first_line + count] - self._header, len(self.data))
        return first, last


Maker = Callable[[Parsed, random.Random], Span | None]
"""Makes one edit that damages a source, or None when the class has no place in it."""
