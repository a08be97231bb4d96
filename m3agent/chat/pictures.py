"""The pictures that a person pastes into a chat: a name stands for each in the text and takes it along."""

from __future__ import annotations

from pathlib import Path

from m3_tools.screenshot.picture import Picture
from m3agent.ui.clean import one_line


class Pictures:
    """The pasted pictures of one chat by their names."""

    def __init__(self) -> None:
        self._by_name: dict[str, Picture] = {}
        self._count = 0

    def new_name(self, path: Path | None) -> str:
        """A name that nothing else has, for the picture in a file or, without one, on the clipboard."""
        self._count += 1
        return f"[picture {self._count}: {one_line(path.name, 40) if path else 'clipboard'}]"

    def add(self, name: str, picture: Picture) -> None:
        self._by_name[name] = picture

    def named_in(self, text: str) -> list[Picture]:
        """The pictures whose names stand in the text, in its order."""
        found = [name for name in self._by_name if name in text]
        return [self._by_name[name] for name in sorted(found, key=text.index)]
