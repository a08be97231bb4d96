"""Syntax trees of bash. The parser is a library in C that a strange input can crash, so it has a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMEOUT_S = 5.0
_SPACE = re.compile(rb"(?:[ \t\n]|\\\n)*")
_GAP = re.compile(rb"(?:[ \t\n]|\\\n)*(?:-[ \t]*)?")
"""White space. Of `python - <<EOF` the grammar loses the `-`."""
_NO_GAP = re.compile(rb"(?:\\\n)*")
_GAP_IN_LINE = re.compile(rb"(?:[ \t]|\\\n)*")
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_SPACE_IN_WORD = re.compile(r"[ \t\n]")
_ON_ONE_LINE = frozenset({"command", "file_redirect", "declaration_command", "unset_command", "variable_assignments"})


@dataclasses.dataclass(frozen=True)
class SyntaxNode:
    """A node of the tree, with its place in the source in bytes."""

    type: str
    is_named: bool
    start: int
    end: int
    children: tuple[SyntaxNode, ...]
    text: str

    def walk(self) -> Iterator[SyntaxNode]:
        """This node and all below it, in the order of the source."""
        pending: list[SyntaxNode] = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(reversed(node.children))


def syntax_tree(source: bytes) -> SyntaxNode | None:
    """The tree, or None if the source cannot be parsed without errors. Never raises."""
    answer = _worker.ask(source)
    try:
        root = _node(json.loads(answer), source) if answer else None
    except (ValueError, TypeError, RecursionError):
        return None
    if root is None or not (_SPACE.fullmatch(source[: root.start]) and _SPACE.fullmatch(source[root.end :])):
        return None  # to the grammar, `\ ` is white space; to bash, it is a character
    return root if all(_joins(node, source) for node in root.walk()) else None


def _node(value: Any, source: bytes) -> SyntaxNode | None:
    if value is None:
        return None
    kind, named, start, end, children = value
    below = tuple(child for each in children if (child := _node(each, source)))
    return SyntaxNode(kind, named, start, end, below, source[start:end].decode("utf-8", "replace"))


def _joins(node: SyntaxNode, source: bytes) -> bool:
    """Whether nothing but white space lies between the children, and no line end where bash would end the command,
    nor any space inside a word: the grammar joins some commands and words that bash keeps apart.
    """
    if node.type == "word":
        return not _SPACE_IN_WORD.search(_ESCAPED.sub("", node.text))
    gap = _NO_GAP if node.type == "concatenation" else _GAP_IN_LINE if node.type in _ON_ONE_LINE else _GAP
    pairs = zip(node.children, node.children[1:], strict=False)
    return all(gap.fullmatch(source[a.end : b.start]) for a, b in pairs if b.start >= a.end)


class _Worker:
    """The process with the parser: started by the first question, and again after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, source: bytes) -> bytes:
        """The worker's answer to a source; empty if it crashed or takes too long."""
        process = self._process if self._process and self._process.poll() is None else self._start()
        if process is None or process.stdin is None or process.stdout is None:
            return b""
        answer = b""
        with contextlib.suppress(OSError):
            process.stdin.write(b"%d\n%b" % (len(source), source))
            process.stdin.flush()
            if select.select([process.stdout], [], [], TIMEOUT_S)[0]:
                answer = process.stdout.readline()
        if not answer.endswith(b"\n"):
            process.kill()
            process.wait()
            self._process, answer = None, b""
        return answer

    def _start(self) -> subprocess.Popen[bytes] | None:
        program = Path(__file__).with_name("syntax_worker.py")
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._process


_worker = _Worker()
