"""What a command printed, kept in bounded memory: the head, the tail, and everything on disk once that is too
little.

The file on disk is named by its content, so that the same output reads the same in every run. A model knows it as
`$M3_OUTPUT/NAME`: read and grep take that path, and a shell command finds the variable in its environment.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from m3_tools.text import shown

MAX_SPILL_BYTES = 256 * 2**20
SPILL_VARIABLE = "M3_OUTPUT"
SPILL_PREFIX = f"${SPILL_VARIABLE}/"
_ESCAPES = re.compile(
    r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|[P_^X][^\x1b]*(?:\x1b\\)?|\[[0-?]*[ -/]*[@-~]|[ -/]*[0-~])"
)


class Output:
    """Collects chunks. `head` and `tail` together hold at most `head_bytes + tail_bytes`.

    With `line_chars`, `text` cuts longer lines. Whatever is cut lies in the file at `path` once `close` was called.
    """

    def __init__(
        self,
        spill_dir: Path | None,
        head_bytes: int,
        tail_bytes: int,
        on_text: Callable[[str], None] | None = None,
        *,
        line_chars: int | None = None,
    ):
        self.total_bytes = 0
        self.path: Path | None = None
        self._head, self._tail = bytearray(), bytearray()
        self._head_bytes, self._tail_bytes, self._line_chars = head_bytes, tail_bytes, line_chars
        self._spill_dir = spill_dir
        self._spill: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._on_text = on_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, chunk: bytes) -> None:
        if self._on_text is not None:
            text = self._decoder.decode(chunk)
            if text:
                self._on_text(clean(text))
        if self.total_bytes + len(chunk) > self._head_bytes + self._tail_bytes:
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
        room = MAX_SPILL_BYTES - self.total_bytes
        if self._spill_dir is None or room <= 0:
            return
        chunk = chunk[:room]
        try:
            if self._spill is None:
                self._spill_dir.mkdir(parents=True, exist_ok=True)
                self.path = self._spill_dir / f".{secrets.token_hex(8)}.part"
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._spill = os.fdopen(os.open(self.path, flags, 0o600), "wb")
                chunk = bytes(self._head + self._tail) + chunk
            self._spill.write(chunk)
            self._digest.update(chunk)
        except OSError:  # a full disk must not stop the command: the head and the tail remain
            self._drop_spill()

    def _drop_spill(self) -> None:
        with contextlib.suppress(OSError):
            if self._spill is not None:
                self._spill.close()
        with contextlib.suppress(OSError):
            if self.path is not None:
                self.path.unlink()
        self._spill, self._spill_dir, self.path = None, None, None

    def close(self) -> None:
        """Everything has come. The file gets its name."""
        if self._spill is None and not self.num_omitted_bytes and self._has_long_lines():
            self._write_spill(b"")
        if self._spill is None or self.path is None:
            return
        try:
            self._spill.close()
            self._spill = None
            self.path = self.path.replace(self.path.with_name(f"{self._digest.hexdigest()[:10]}.txt"))
        except OSError:
            self._drop_spill()

    def _has_long_lines(self) -> bool:
        limit = self._line_chars
        return limit is not None and any(len(line) > limit for line in clean(self._kept()).split("\n"))

    def _kept(self) -> str:
        return (self._head + self._tail).decode("utf-8", "replace")

    @property
    def head(self) -> bytes:
        """The first bytes as they came."""
        return bytes(self._head)

    def since(self, position: int) -> tuple[bytes, int]:
        """The bytes that came after the first `position` ones, and how many of them are not kept between or before."""
        in_head = self._head[position:]
        missed = max(0, self.total_bytes - max(position, len(self._head)) - len(self._tail))
        in_tail = self._tail[max(0, position - len(self._head) - self.num_omitted_bytes) :]
        return bytes(in_tail if missed else in_head + in_tail), missed + (len(in_head) if missed else 0)

    @property
    def num_omitted_bytes(self) -> int:
        return self.total_bytes - len(self._head) - len(self._tail)

    def text(self) -> str:
        """The head and the tail for the model, with a line that says what is left out and where all of it lies."""
        extent = "all" if self.total_bytes <= MAX_SPILL_BYTES else f"the first {MAX_SPILL_BYTES // 2**20} MiB"
        where = f"; {extent} of it: {SPILL_PREFIX}{self.path.name}" if self.path else ""
        if not self.num_omitted_bytes:
            text = self._shortened(clean(self._kept()))
            is_cut = where and self._line_chars is not None
            return f"{text.rstrip()}\n[long lines were cut{where}]\n" if is_cut else text
        head, tail = self._head.decode("utf-8", "replace"), self._tail.decode("utf-8", "replace")
        return (
            f"{self._shortened(clean(head)).rstrip()}\n[… {self.num_omitted_bytes:,} bytes left out{where} …]\n"
            f"{self._shortened(clean(tail)).lstrip()}"
        )

    def _shortened(self, text: str) -> str:
        limit = self._line_chars
        if limit is None:
            return text
        return "\n".join(
            line if len(line) <= limit else f"{line[:limit]} [… {len(line) - limit:,} more characters]"
            for line in text.split("\n")
        )


def clean(text: str) -> str:
    """Terminal output as plain lines: no escape sequences, of a line rewritten by carriage returns only its last
    form.
    """
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "\n".join(shown(line) for line in lines)
