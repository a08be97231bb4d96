"""The keys of a chat, beside those that every line editor has."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prompt_toolkit.filters import (
    Condition,
    emacs_mode,
    has_completions,
    has_selection,
    is_searching,
    vi_insert_mode,
    vi_navigation_mode,
)
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

if TYPE_CHECKING:
    from m3agent.ui.screen import Screen

SECOND_CTRL_C_S = 2.0
KEYS = {
    "Enter": "send; while the model works, it reads this at its next step",
    "\\ Enter": "a new line; Alt+Enter, too, while nothing runs",
    "Alt+Enter": "while the model works: send for afterwards",
    "Esc, Ctrl-C": "stop what runs; Ctrl-C twice leaves",
    "Shift+Tab": "the next mode",
    "Up": "earlier messages; with an empty draft, take back what waits",
    "Ctrl-O": "show the last reasoning whole",
    "Ctrl-R": "search earlier messages",
    "Ctrl-X Ctrl-E": "write in $EDITOR",
    "Ctrl-V, Alt+V": "the picture on the clipboard; a picture file can be dropped or its path pasted",
    "@": "a file of the repository",
    "!": "run a command yourself; the model sees what it gave",
}


def chat_keys(screen: Screen) -> KeyBindings:
    keys = KeyBindings()
    draft, listener = screen.draft, screen.listener
    busy = Condition(lambda: listener.busy)
    empty = Condition(lambda: not draft.text)
    writing = ~is_searching
    asked_nothing = Condition(lambda: screen.answer is None)
    last_ctrl_c = float("-inf")

    @keys.add("enter", filter=writing)
    def _(event: KeyPressEvent) -> None:
        state = draft.complete_state
        if state is not None and state.current_completion is not None:
            draft.complete_state = None  # what was chosen stays in the draft
        elif draft.document.char_before_cursor == "\\" and draft.document.is_cursor_at_the_end:
            draft.delete_before_cursor()
            draft.insert_text("\n")
        else:
            draft.cancel_completion()
            screen.send()

    @keys.add("escape", "enter", filter=writing)
    def _(event: KeyPressEvent) -> None:
        if listener.working and screen.answer is None:
            screen.send(later=True)
        else:
            draft.insert_text("\n")

    @keys.add(Keys.BracketedPaste)
    def _(event: KeyPressEvent) -> None:
        if screen.answer is not None or not screen.pictures.paste(event.data):
            draft.insert_text(screen.pastes.add(event.data))

    @keys.add("c-v", filter=asked_nothing & writing)
    @keys.add("escape", "v", filter=asked_nothing & writing & emacs_mode)  # some terminals keep Ctrl-V for themselves
    def _(event: KeyPressEvent) -> None:
        screen.pictures.paste("")

    @keys.add("c-o", filter=writing)
    def _(event: KeyPressEvent) -> None:
        listener.expand()

    @keys.add("escape", filter=has_completions)
    def _(event: KeyPressEvent) -> None:
        draft.cancel_completion()

    @keys.add("escape", filter=busy & writing & ~has_completions & (empty | ~vi_insert_mode))
    def _(event: KeyPressEvent) -> None:
        listener.stop()

    @keys.add("c-c", filter=writing)
    @keys.add("<sigint>")
    def _(event: KeyPressEvent) -> None:
        nonlocal last_ctrl_c
        now = time.monotonic()
        if now - last_ctrl_c < SECOND_CTRL_C_S:
            listener.leave()
            return
        last_ctrl_c = now
        if listener.busy:
            listener.stop()
        else:
            draft.reset()
        screen.say_shortly("Ctrl-C again leaves", SECOND_CTRL_C_S)

    @keys.add("c-d", filter=empty & writing)
    def _(event: KeyPressEvent) -> None:
        listener.leave()

    @keys.add("s-tab", filter=~has_completions)
    def _(event: KeyPressEvent) -> None:
        listener.next_mode()

    @keys.add("up", filter=empty & Condition(lambda: bool(listener.queued)))
    def _(event: KeyPressEvent) -> None:
        draft.insert_text(listener.take_back())

    @keys.add("c-x", "c-e", filter=emacs_mode & ~has_selection)
    @keys.add("v", filter=vi_navigation_mode)
    def _(event: KeyPressEvent) -> None:
        event.app.create_background_task(screen.edit())

    @keys.add("c-z")
    def _(event: KeyPressEvent) -> None:
        event.app.suspend_to_background()

    return keys
