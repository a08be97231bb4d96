"""Finding fixed texts in a stream, wherever its pieces are cut."""

from __future__ import annotations

from collections.abc import Sequence


def first(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """The place of the marker that comes first, and the marker."""
    found = [(place, marker) for marker in markers if (place := text.find(marker)) >= 0]
    return min(found) if found else None


def held(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end of the text may be the beginning of a marker."""
    longest = max(map(len, markers), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(marker.startswith(text[-size:]) for marker in markers):
            return size
    return 0


class StopText:
    """Lets text through up to one of some texts, which is left out; what may become one of them waits.

    The one that is complete first counts, wherever the pieces are cut; of two that end together, the longer.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._buffer = ""
        self.found = False

    def feed(self, text: str) -> str:
        """Take more text; returns what is certain now. Nothing comes after a stop text."""
        if self.found or not self._stops:
            return "" if self.found else text
        self._buffer += text
        ends = [(place + len(stop), place) for stop in self._stops if (place := self._buffer.find(stop)) >= 0]
        self.found = bool(ends)
        cut = min(ends)[1] if ends else len(self._buffer) - held(self._buffer, self._stops)
        certain, self._buffer = self._buffer[:cut], self._buffer[cut:]
        return certain

    def flush(self) -> str:
        """What waited, once it can no longer become a stop text."""
        rest, self._buffer = "" if self.found else self._buffer, ""
        return rest
