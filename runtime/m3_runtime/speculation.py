"""What probably comes next, guessed from what was there before: code that is edited is mostly code that was read.

The simplest form of SuffixDecoding (arXiv 2411.04975), known as prompt lookup.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_SUFFIXES = (4, 3, 2)
"""How many last tokens are looked for, the most first: what followed the longer match is more likely right."""
_FIRST_LENGTH = 8


class Lookup:
    """Drafts for one growing sequence: what followed where its last tokens stood before.

    All tokens of a draft are computed in one step, and those that turn out wrong were computed in vain. So a draft that
    came true makes the next one up to twice as long, and one that failed at once makes it half as long.
    """

    def __init__(self) -> None:
        self._length = _FIRST_LENGTH
        self._bytes = bytearray()
        """All tokens so far, so that a search is one call; four bytes a token."""

    def draft(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """At most `limit` tokens that may follow; empty if the end was not seen before. Earlier tokens never change."""
        if limit < 1:
            return []
        self._bytes += array("i", token_ids[len(self._bytes) // 4 :]).tobytes()
        for length in _SUFFIXES:
            place = self._last_place_of(self._bytes[-4 * length :]) if length < len(token_ids) else -1
            if place >= 0:
                return list(token_ids[place + length : place + length + min(limit, self._length)])
        return []

    def learn(self, num_drafted: int, num_right: int) -> None:
        """Tell how many tokens of the last draft came true."""
        if num_right == num_drafted:
            self._length = max(self._length, 2 * num_drafted)
        elif num_right == 0:
            self._length = max(num_drafted // 2, 1)

    def _last_place_of(self, suffix: bytearray) -> int:
        """Number of the token where the suffix stands, something behind it; -1 if it stands at the end alone."""
        place = self._bytes.rfind(suffix, 0, len(self._bytes) - 4)
        while place % 4 and place >= 0:  # across the borders of tokens
            place = self._bytes.rfind(suffix, 0, place + len(suffix) - 1)
        return place // 4
