"""Takes M3's reasoning markers out of text, for servers that leave them in the content."""

from __future__ import annotations

from m3agent.llm.protocol import TextDelta, ThinkDelta

OPEN, CLOSE = "<mm:think>", "</mm:think>"


class ThinkMarkers:
    """Text in pieces in, reasoning and answer out. A marker may be spread over pieces.

    Only a marker at the beginning of the answer counts: an answer may speak of `<mm:think>` later on. A leading
    `</mm:think>`, which says that there is no reasoning, vanishes.
    """

    def __init__(self) -> None:
        self._held = ""
        self._state = "start"

    def feed(self, text: str) -> list[ThinkDelta | TextDelta]:
        self._held += text
        out: list[ThinkDelta | TextDelta] = []
        if self._state == "start":
            begun = self._held.lstrip()
            if begun not in (OPEN, CLOSE) and any(marker.startswith(begun) for marker in (OPEN, CLOSE)):
                return out
            if begun.startswith(OPEN):
                self._held, self._state = begun.removeprefix(OPEN), "think"
            elif begun.startswith(CLOSE):
                self._held, self._state = begun.removeprefix(CLOSE), "answer"
            else:
                self._state = "answer"
        if self._state == "think":
            thought, marker, rest = self._held.partition(CLOSE)
            if marker:
                self._held, self._state = rest, "answer"
            else:
                keep = _overlap(thought, CLOSE)
                self._held, thought = thought[len(thought) - keep :], thought[: len(thought) - keep]
            if thought:
                out.append(ThinkDelta(text=thought))
        if self._state == "answer" and self._held:
            out.append(TextDelta(text=self._held))
            self._held = ""
        return out

    def finish(self) -> list[ThinkDelta | TextDelta]:
        """What was held back because it could have become a marker."""
        held, self._held = self._held, ""
        if not held:
            return []
        return [ThinkDelta(text=held) if self._state == "think" else TextDelta(text=held)]


def _overlap(text: str, marker: str) -> int:
    """How many characters at the end of `text` begin `marker`."""
    return next((n for n in range(min(len(marker) - 1, len(text)), 0, -1) if marker.startswith(text[-n:])), 0)
