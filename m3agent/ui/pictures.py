"""Pictures on their way into a draft: the name stands there at once, and Enter waits until the picture is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document

from m3_tools.screenshot.dropped import dropped_pictures


class Taker(Protocol):
    """Who reads the pictures."""

    def picture_name(self, path: Path | None) -> str:
        """A new name for the picture in a file or, without one, on the clipboard."""
        ...

    async def take_picture(self, name: str, path: Path | None) -> bool:
        """Read it, and tell the person about it; False if there is none."""
        ...


class PastedPictures:
    """What is read at the moment, for one draft."""

    def __init__(self, draft: Buffer, taker: Taker):
        self._draft, self._taker = draft, taker
        self._reading: set[asyncio.Task[None]] = set()
        self._then: Callable[[], None] | None = None

    @property
    def are_read(self) -> bool:
        return not self._reading

    def then(self, action: Callable[[], None]) -> None:
        """Do this once everything is read."""
        self._then = action

    def paste(self, text: str) -> bool:
        """Begin to read the pictures whose paths the text is, or the clipboard's for an empty text; False for others.

        Where one cannot be read, its path takes the place of its name again.
        """
        paths = dropped_pictures(text) if text else [None]
        for number, path in enumerate(paths):
            name = self._taker.picture_name(path)
            self._draft.insert_text(f" {name}" if number else name)
            task = asyncio.create_task(self._read(name, path))
            self._reading.add(task)
            task.add_done_callback(self._done)
        return bool(paths)

    async def _read(self, name: str, path: Path | None) -> None:
        if not await self._taker.take_picture(name, path):
            document, instead = self._draft.document, str(path or "")
            if (place := document.text.find(name)) >= 0:
                text = document.text.replace(name, instead, 1)
                moved = len(instead) - len(name) if document.cursor_position > place else 0
                self._draft.document = Document(text, document.cursor_position + moved)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._reading.discard(task)
        if not self._reading and self._then is not None:
            action, self._then = self._then, None
            action()
