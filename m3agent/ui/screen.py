"""The terminal of a chat: a draft that can be edited at any time, below what is going on, below the scrollback.

Finished things are printed once and belong to the terminal; only the lines below them are drawn again.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO, cast

from prompt_toolkit.application import Application
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer, ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import Always
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples
from prompt_toolkit.history import FileHistory
from prompt_toolkit.layout import (
    AnyContainer,
    BufferControl,
    CompletionsMenu,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    VerticalAlign,
    Window,
)
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import DynamicStyle, Style
from prompt_toolkit.widgets import SearchToolbar
from rich.console import Console, Group, RenderableType
from rich.text import Text

from m3agent.settings import Notify, ThemeName
from m3agent.ui.attention import Attention, FocusInput
from m3agent.ui.clean import one_line
from m3agent.ui.face import Face
from m3agent.ui.keys import chat_keys
from m3agent.ui.listener import Listener, is_command
from m3agent.ui.paste import Pastes
from m3agent.ui.pictures import PastedPictures
from m3agent.ui.surface import REDRAWS_PER_SECOND
from m3agent.ui.themes import LOOKS, use_theme

MAX_DRAFT_ROWS = 8
MAX_MENU_ROWS = 6
MAX_QUEUED_SHOWN = 3
MAX_SAVED_CHARACTERS = 64_000
"""A longer message does not enter the history of the drafts."""


class Screen(Face):
    """A surface with a draft below it. `run` must be running for anything to be drawn."""

    def __init__(
        self,
        console: Console,
        listener: Listener,
        *,
        completer: Completer,
        history: Path,
        vi: bool,
        theme: ThemeName = "dark",
        notify: Notify = "bell",
    ):
        self.console, self.listener, self.pastes = console, listener, Pastes()
        self.theme: ThemeName = theme
        self.draft = Buffer(
            completer=ThreadedCompleter(completer),
            complete_while_typing=True,
            history=FileHistory(str(history)),
            multiline=True,
            tempfile_suffix=".md",
        )
        self.pictures = PastedPictures(self.draft, listener)
        self._hint = ""
        self.answer: asyncio.Future[str] | None = None
        """Set while a question waits."""
        self._question = ""
        self._asks_for_text = False
        self._frame: Callable[[], RenderableType] | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._unprinted: list[str] = []
        self._in_editor = False
        output = Vt100_Output.from_pty(cast(TextIO, console.file))
        output.enable_cpr = False  # the draft follows the scrollback; where on the screen does not matter
        keys = FocusInput(sys.stdin)
        self._attention = Attention(output, keys, notify)
        styles = {name: Style.from_dict(dict(look.draft)) for name, look in LOOKS.items()}
        self.app: Application[None] = Application(
            layout=self._layout(),
            key_bindings=chat_keys(self),
            style=DynamicStyle(lambda: styles[self.theme]),
            color_depth=lambda: None if LOOKS[self.theme].colour else ColorDepth.MONOCHROME,
            editing_mode=EditingMode.VI if vi else EditingMode.EMACS,
            erase_when_done=True,
            output=output,
            input=keys,
        )
        self.app.ttimeoutlen = 0.05  # Esc must be felt at once
        self.app.timeoutlen = 0.2

    def _layout(self) -> Layout:
        search = SearchToolbar(ignore_case=True)
        draft = Window(
            BufferControl(self.draft, search_buffer_control=search.control, preview_search=True),
            height=lambda: Dimension(min=1, max=max(1, min(MAX_DRAFT_ROWS, self.console.height - 4))),
            dont_extend_height=True,
            wrap_lines=True,
            get_line_prefix=self._prefix,
        )
        above = Window(FormattedTextControl(self._above), dont_extend_height=True, height=Dimension(min=0))
        below = Window(FormattedTextControl(lambda: ANSI(self._drawn(self._bottom()))), height=1)
        menu = CompletionsMenu(max_height=MAX_MENU_ROWS, scroll_offset=1)
        if isinstance(menu.content, Window):
            menu.content.dont_extend_height = Always()
        rows: list[AnyContainer] = [above, draft, menu, search, below]
        return Layout(HSplit(rows, align=VerticalAlign.TOP), focused_element=draft)

    async def run(self) -> None:
        """Draw and listen until `close`."""
        gc.freeze()  # else each full collection walks through all that is loaded, and a key waits for it
        self._attention.begin()
        try:
            await self.app.run_async(handle_sigint=False, set_exception_handler=False)
        finally:
            self._attention.end()
            self._flush()

    def close(self) -> None:
        if self.app.is_running:
            self.app.exit()

    def print(self, shown: RenderableType) -> None:
        self._unprinted.append(self._drawn(shown))
        if not self._in_editor:
            self._flush()

    def show(self, frame: Callable[[], RenderableType]) -> None:
        self._frame = frame
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._tick())

    def hide(self) -> None:
        self._frame = None
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        self.app.invalidate()

    def use_theme(self, name: ThemeName) -> None:
        """Draw with this theme from now on; what stands in the scrollback stays as it is."""
        self.theme = name
        use_theme(self.console, name)
        self.app.invalidate()

    def call(self, words: str) -> None:
        """Call the person if they look elsewhere."""
        self._attention.call(words)

    def say_shortly(self, hint: str, for_s: float) -> None:
        """Show a word in place of the bottom line for so many seconds."""
        self._hint = hint
        asyncio.get_running_loop().call_later(for_s, self._clear_hint)
        self.app.invalidate()

    def _clear_hint(self) -> None:
        self._hint = ""
        self.app.invalidate()

    async def ask(self, question: str, draft: str = "") -> str:
        """Wait for the answer to a question; `draft` is what it begins with. What was typed comes back afterwards.

        What was typed before the question is no answer to it.
        """
        before = self.draft.document
        self.draft.reset(Document(draft))
        self.answer, self._question = asyncio.get_running_loop().create_future(), question
        self._asks_for_text = bool(draft)
        self.app.invalidate()
        self.call("waits for you")
        try:
            return await self.answer
        finally:
            self.answer = None
            self.draft.set_document(before, bypass_readonly=True)
            self.app.invalidate()

    def send(self, *, later: bool = False) -> None:
        """What Enter does: the draft is the answer to a question, or goes to the listener and into the history.

        `later`: it is not for what runs now, but for afterwards.
        """
        if not self.pictures.are_read:
            self.pictures.then(lambda: self.send(later=later))
            return
        text = self.pastes.expand(self.draft.text)
        if self.answer is not None and (self._asks_for_text or not is_command(text)):
            if text.strip() and not self.answer.done():
                self.answer.set_result(text)  # as it is: it may be code
            return
        if text.strip() and len(text) <= MAX_SAVED_CHARACTERS:
            self.draft.history.append_string(text)
        self.draft.reset()
        self.listener.submit(text, later=later)

    async def edit(self) -> None:
        """Open the draft in the person's editor. What is printed meanwhile comes afterwards."""
        self.draft.document = Document(self.pastes.expand(self.draft.text))
        self._in_editor = True
        try:
            await self.draft.open_in_editor()
        finally:
            self._in_editor = False
            self._flush()

    async def _tick(self) -> None:
        while True:
            self.app.invalidate()
            await asyncio.sleep(1 / REDRAWS_PER_SECOND)

    def _flush(self) -> None:
        """Print above the draft what is new, and draw the draft again at once, so that nothing flickers."""
        text = "".join(self._unprinted).replace("\n", "\r\n")
        self._unprinted.clear()
        if not text:
            return
        output = self.app.output
        if not self.app.is_running:
            output.write_raw(text)
            output.flush()
            return
        output.write_raw("\x1b[?2026h")  # terminals that know it show what follows as one picture
        self.app.renderer.erase()
        output.write_raw(text)
        with set_app(self.app):
            self.app.renderer.render(self.app, self.app.layout)
        output.write_raw("\x1b[?2026l")
        output.flush()

    def _drawn(self, shown: RenderableType) -> str:
        with self.console.capture() as drawn:
            self.console.print(shown, markup=False, highlight=False, emoji=False)
        return drawn.get()

    def _above(self) -> ANSI:
        """What is going on, what waits, and the question."""
        parts: list[RenderableType] = [self._frame()] if self._frame is not None else []
        queued = self.listener.queued
        width = max(10, self.console.width - 12)
        for line in queued[:MAX_QUEUED_SHOWN]:
            parts.append(Text(f"  queued: {one_line(line, width)}", "quiet"))
        if len(queued) > MAX_QUEUED_SHOWN:
            parts.append(Text(f"  and {len(queued) - MAX_QUEUED_SHOWN} more", "quiet"))
        if self.answer is not None:
            parts.append(Text(f"waiting for you: {self._question}", "warn.strong"))
        return ANSI(self._drawn(Group(*parts)).rstrip("\n") if parts else "")

    def _bottom(self) -> Text:
        line = Text(self._hint, "warn") if self._hint else self.listener.status()
        line.truncate(max(1, self.console.width - 1), overflow="ellipsis")
        line.no_wrap = True
        return line

    def _prefix(self, line: int, wrapped: int) -> StyleAndTextTuples:
        text = "you> " if self.answer is not None else f"{self.listener.mode}> "
        if line or wrapped:
            return [("", " " * len(text))]
        return [("class:question" if self.answer is not None else "class:prompt", text)]
