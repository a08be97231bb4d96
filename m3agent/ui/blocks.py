"""Cuts streamed Markdown into finished blocks, so that each is drawn once and never again."""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class BlockSplitter:
    """Text goes in as it comes; whole blocks come out at blank lines outside fenced code.

    Joining everything that came out with `rest` gives back what went in.
    """

    def __init__(self) -> None:
        self.rest = ""
        """What has come since the last finished block."""
        self._scanned = 0
        self._fence = ""

    def feed(self, text: str) -> list[str]:
        """The blocks that this text finishes, in order."""
        self.rest += text
        blocks: list[str] = []
        while (end := self.rest.find("\n", self._scanned)) >= 0:
            line = self.rest[self._scanned : end]
            self._scanned = end + 1
            fence = _FENCE.match(line)
            if self._fence:
                if fence and fence[1].startswith(self._fence) and not line[fence.end() :].strip():
                    self._fence = ""
            elif fence:
                self._fence = fence[1]
            elif not line.strip() and self.rest[: self._scanned].strip():
                blocks.append(self.rest[: self._scanned])
                self.rest, self._scanned = self.rest[self._scanned :], 0
        return blocks

    def finish(self) -> str:
        """The last block, finished or not."""
        last, self.rest, self._scanned, self._fence = self.rest, "", 0, ""
        return last
