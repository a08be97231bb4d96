"""A pseudo-terminal of a fixed size with one program in it: what it was sent, and what a person would see."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pexpect
import pyte

KEYS = {
    "Enter": "\r", "Esc": "\x1b", "Alt+Enter": "\x1b\r", "Shift+Tab": "\x1b[Z", "Tab": "\t", "Up": "\x1b[A",
    "Ctrl-C": "\x03", "Ctrl-D": "\x04", "Ctrl-R": "\x12", "Ctrl-X Ctrl-E": "\x18\x05",
}  # fmt: skip


class Terminal:
    """`raw` is everything that the program wrote; `text` is the scrollback and the screen as drawn."""

    def __init__(
        self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str], width: int, height: int
    ):
        self.raw = ""
        self._screen = pyte.HistoryScreen(width, height, history=5000, ratio=1.0)
        self._stream = pyte.Stream(self._screen)
        self._child = pexpect.spawn(
            command[0],
            list(command[1:]),
            cwd=folder,
            env=dict(environment),
            dimensions=(height, width),
            encoding="utf-8",
        )
        self._child.delaybeforesend = None

    def type(self, text: str) -> None:
        self._child.send(text)

    def press(self, *keys: str) -> None:
        """Press keys by their names, one after the other."""
        for key in keys:
            self._child.send(KEYS[key])

    def paste(self, text: str) -> None:
        self._child.send(f"\x1b[200~{text}\x1b[201~")

    def resize(self, width: int, height: int) -> None:
        self._screen.resize(height, width)
        self._child.setwinsize(height, width)

    def text(self) -> str:
        self._read()
        above = [
            "".join(line[x].data for x in range(self._screen.columns)).rstrip() for line in self._screen.history.top
        ]
        return "\n".join([*above, *(line.rstrip() for line in self._screen.display)])

    def display(self) -> list[str]:
        """The rows of the screen."""
        self._read()
        return [row.rstrip() for row in self._screen.display]

    @property
    def screen(self) -> pyte.Screen:
        """The screen as it was drawn last, with its colours."""
        return self._screen

    def wait_until(self, holds: Callable[[], bool], *, timeout_s: float = 30.0) -> float:
        """Wait for a condition; returns how long it took."""
        start = time.monotonic()
        while not holds():
            assert time.monotonic() - start < timeout_s, f"it did not come; the screen:\n{self.text()}"
            time.sleep(0.01)
        return time.monotonic() - start

    def wait_for(self, words: str, *, times: int = 1) -> str:
        """The text once it holds the words, so many times; white space does not matter."""
        self.wait_until(lambda: squeezed(self.text()).count(words) >= times)
        return self.text()

    def wait_for_end(self) -> int:
        """The exit code, once the program has ended."""
        self.wait_until(lambda: self._ended())
        self._child.close()
        assert self._child.exitstatus is not None
        return int(self._child.exitstatus)

    def kill(self, number: int) -> None:
        self._child.kill(number)

    def close(self) -> None:
        self._child.close(force=True)

    def _ended(self) -> bool:
        self._read()
        return not self._child.isalive()

    def _read(self) -> None:
        while not self._child.closed:
            try:
                data = self._child.read_nonblocking(65_536, timeout=0)
            except (pexpect.TIMEOUT, pexpect.EOF):
                return
            self.raw += data
            self._stream.feed(data)


def squeezed(text: str) -> str:
    return " ".join(text.split())
