"""What a command printed, kept in bounded memory: the head, the tail, and everything on disk once that is too
little.
"""

from __future__ import annotations

import codecs
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from m3_tools.text import shown

MAX_SPILL_BYTES = 256 * 2**20
_ESCAPES = re.compile(
    r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|[P_^X][^\x1b]*(?:\x1b\\)?|\[[0-?]*[ -/]*[@-~]|[ -/]*[0-~])"
)


class Output:
    """Collects chunks. `head` and `tail` together hold at most `head_bytes + tail_bytes`."""

    def __init__(
        self, spill_dir: Path | None, head_bytes: int, tail_bytes: int, on_text: Callable[[str], None] | None = None
    ):
        self.total_bytes = 0
        self.path: Path | None = None
        self._head, self._tail = bytearray(), bytearray()
        self._head_bytes, self._tail_bytes = head_bytes, tail_bytes
        self._spill_dir, self._spill = spill_dir, -1
        self._on_text = on_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, chunk: bytes) -> None:
        if self._on_text is not None:
            text = self._decoder.decode(chunk)
            if text:
                self._on_text(clean(text))
        self._write_spill(chunk)
        self.total_bytes += len(chunk)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk and self._tail_bytes:
            self._tail += chunk
            del self._tail[: max(0, len(self._tail) - self._tail_bytes)]

    def _write_spill(self, chunk: bytes) -> None:
        if self._spill_dir is None or self.total_bytes > MAX_SPILL_BYTES:
            return
        if self._spill < 0:
            if self.total_bytes + len(chunk) <= self._head_bytes + self._tail_bytes:
                return
            self._spill_dir.mkdir(parents=True, exist_ok=True)
            self.path = self._spill_dir / f"output-{secrets.token_hex(6)}.txt"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._spill = os.open(self.path, flags, 0o600)
            os.write(self._spill, bytes(self._head + self._tail))
        try:
            os.write(self._spill, chunk)
        except OSError:  # a full disk must not stop the command: the head and the tail remain
            self.close()
            self._spill_dir, self.path = None, None

    def close(self) -> None:
        if self._spill >= 0:
            os.close(self._spill)
            self._spill = -1

    @property
    def head(self) -> bytes:
        """The first bytes as they came."""
        return bytes(self._head)

    @property
    def num_omitted_bytes(self) -> int:
        return self.total_bytes - len(self._head) - len(self._tail)

    def text(self) -> str:
        """The head and the tail for the model, with a line that says what is left out and where all of it lies."""
        head, tail = self._head.decode("utf-8", "replace"), self._tail.decode("utf-8", "replace")
        if not self.num_omitted_bytes:
            return clean((self._head + self._tail).decode("utf-8", "replace"))
        where = f"; all of it: {self.path}" if self.path else ""
        return f"{clean(head).rstrip()}\n[… {self.num_omitted_bytes:,} bytes left out{where} …]\n{clean(tail).lstrip()}"


def clean(text: str) -> str:
    """Terminal output as plain lines: no escape sequences, of a line rewritten by carriage returns only its last
    form.
    """
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(shown(line) for line in lines)
