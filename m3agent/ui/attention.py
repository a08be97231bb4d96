"""Calls a person who looks elsewhere: a bell or a notification, only while the terminal says that it has no focus."""

from __future__ import annotations

from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output

from m3agent.settings import Notify

FOCUS, BLUR = "\x1b[I", "\x1b[O"
_READ_BYTES = 65_536


class FocusInput(Vt100Input):
    """The keys of a terminal. What it reports of its focus is kept in `focused` and is no key.

    It reads as much as there is, so that a large paste takes few steps.
    """

    focused = True
    """A terminal that reports nothing counts as looked at."""

    def read_keys(self) -> list[KeyPress]:
        self.vt100_parser.feed(self.stdin_reader.read(_READ_BYTES))
        keys, self._buffer = self._buffer, []
        for key in keys:
            if key.data in (FOCUS, BLUR):
                self.focused = key.data == FOCUS
        return [key for key in keys if key.data not in (FOCUS, BLUR)]


class Attention:
    """Asks the terminal for reports of its focus, from `begin` to `end`, and calls when there is none."""

    def __init__(self, output: Output, keys: FocusInput, notify: Notify):
        self._output, self._keys, self._notify = output, keys, notify

    def begin(self) -> None:
        for sequence in (FOCUS, BLUR):  # the parser must know them: Escape alone is a key
            ANSI_SEQUENCES.setdefault(sequence, Keys.Ignore)
        if self._notify != "off":
            self._write("\x1b[?1004h")

    def end(self) -> None:
        if self._notify != "off":
            self._write("\x1b[?1004l")

    def call(self, words: str) -> None:
        """`words` are ours, never those of a model or a tool."""
        if self._keys.focused or self._notify == "off":
            return
        self._write("\a" if self._notify == "bell" else f"\x1b]9;m3 {words}\a")

    def _write(self, text: str) -> None:
        self._output.write_raw(text)
        self._output.flush()
