"""Cuts streamed Markdown into finished blocks, so that each is drawn once and never again."""

from __future__ import annotations

import dataclasses
import re

MAX_OPENING_CHARACTERS = 80
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


MAX_OPEN_CHARACTERS = 4000
"""A longer block is cut at the end of a line, so that neither memory nor a redraw grows with it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """A part of the text. `lead` stands before it where it is drawn: the opening of a code fence that was cut."""

    text: str
    lead: str = ""


class BlockSplitter:
    """Text goes in as it comes; whole blocks come out at blank lines outside fenced code.

    Joining the text of everything that came out with `rest` gives back what went in.
    """

    def __init__(self) -> None:
        self.rest = ""
        """What has come since the last finished block."""
        self.lead = ""
        """What stands before `rest` where it is drawn."""
        self._scanned = 0
        self._fence = self._opening = ""

    def feed(self, text: str) -> list[Block]:
        """The blocks that this text finishes, in order."""
        blocks: list[Block] = []
        for at in range(0, len(text), MAX_OPEN_CHARACTERS):
            self.rest += text[at : at + MAX_OPEN_CHARACTERS]
            self._scan(blocks)
            if len(self.rest) > MAX_OPEN_CHARACTERS:
                blocks.append(self._cut(self._scanned or len(self.rest)))
        return blocks

    def finish(self) -> Block:
        """The last block, finished or not."""
        last = Block(text=self.rest, lead=self.lead)
        self.rest, self.lead, self._scanned, self._fence = "", "", 0, ""
        return last

    def _scan(self, blocks: list[Block]) -> None:
        while (end := self.rest.find("\n", self._scanned)) >= 0:
            line = self.rest[self._scanned : end]
            self._scanned = end + 1
            fence = _FENCE.match(line)
            if self._fence:
                if fence and fence[1].startswith(self._fence) and not line[fence.end() :].strip():
                    self._fence = ""
            elif fence:
                self._fence, self._opening = fence[1], line[:MAX_OPENING_CHARACTERS] + "\n"
            elif not line.strip() and self.rest[: self._scanned].strip():
                blocks.append(self._cut(self._scanned))

    def _cut(self, end: int) -> Block:
        block = Block(text=self.rest[:end], lead=self.lead)
        self.rest, self._scanned = self.rest[end:], 0
        self.lead = self._opening if self._fence else ""
        return block
