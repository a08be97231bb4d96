"""Pages of one model on disk, so that a later run need not compute a prompt that begins like an earlier one.

Saving never holds the engine up: one thread writes, and takes no more pages than it can hold. Whatever goes wrong with
a file or the folder costs time only: the page is computed as if it had not been there.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from m3_runtime.page_file import HEAD_BYTES, BadPage, first_name, read_page_file, write_page_file
from m3_runtime.page_folder import SUFFIX, shrink

_log = logging.getLogger(__name__)
_QUEUE_BYTES = 64 * 2**20
_READERS = max(8, min(os.cpu_count() or 1, 32))
"""Files read at a time. One reader of 17 MB pages, as M3 has them, would be slower than eight GPUs compute them."""


class DiskCache:
    """The pages of the model that `fingerprint` stands for (m3_runtime.fingerprint), all of `page_bytes` bytes.

    `folder` is shared by all models and processes; together they keep about `max_bytes`. `model` is a name for people.
    Problems are logged, each kind once.
    """

    def __init__(
        self,
        folder: Path,
        model: str,
        fingerprint: bytes,
        *,
        page_bytes: int,
        max_bytes: int,
        num_readers: int = _READERS,
    ):
        self.first_name = first_name(fingerprint)
        self._folder, self._page_bytes, self._max_bytes = folder, page_bytes, max_bytes
        self._mine = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', model)}-{self.first_name.hex()[:12]}"
        self._file_bytes = HEAD_BYTES + page_bytes
        self._num_bytes: int | None = None
        self._can_write = self._file_bytes <= max_bytes
        self._told: set[str] = set()
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(max(2, _QUEUE_BYTES // page_bytes))
        self._writer: threading.Thread | None = None
        self._num_readers = num_readers
        self._readers: ThreadPoolExecutor | None = None

    @property
    def has_room(self) -> bool:
        """Whether `save` returns at once."""
        return not self._jobs.full()

    def has(self, name: bytes) -> bool:
        """Whether there is a file of this name; it may still turn out to be damaged."""
        return os.path.exists(self._mine / (name.hex() + SUFFIX))  # False, too, where we may not look

    def read(self, names: Sequence[bytes], targets: Sequence[memoryview]) -> Callable[[], int]:
        """Begin to fill `targets`, of the size of a page each, with the contents of the pages of `names`.

        Calling the result waits, and tells how many pages are there before the first that is missing or damaged.
        """
        if not names or not self.has(names[0]):
            return lambda: 0
        if self._readers is None:
            self._readers = ThreadPoolExecutor(self._num_readers, thread_name_prefix="m3-page-reader")
        absent = [len(names)]

        def read_share(first: int) -> None:
            for i in range(first, len(names), self._num_readers):
                if i > absent[-1]:  # of no use any more
                    return
                if not self._read(names[i], targets[i]):
                    absent.append(i)
                    return

        shares = [self._readers.submit(read_share, i) for i in range(min(self._num_readers, len(names)))]

        def wait() -> int:
            for share in shares:  # all of them: the targets are in use until then
                share.result()
            return min(absent)

        return wait

    def save(self, name: bytes, content: bytearray, used_ns: int) -> None:
        """Write a page in the background; `used_ns` as in `used`."""
        self._start()
        self._jobs.put(functools.partial(self._write, name, content, used_ns))

    def remove(self, name: bytes) -> None:
        """Forget a page."""
        with contextlib.suppress(OSError):  # not there, or not ours to change
            (self._mine / (name.hex() + SUFFIX)).unlink()

    def used(self, times_ns: dict[bytes, int]) -> None:
        """Tell when pages were used last, in nanoseconds since 1970: those of the earliest times are removed first."""
        self._start()
        with contextlib.suppress(queue.Full):  # the next prompt that begins like this tells it again
            self._jobs.put_nowait(functools.partial(self._touch, times_ns))

    def close(self) -> None:
        """Write what was handed over and end the thread."""
        if self._writer is not None:
            self._jobs.put(None)
            self._writer.join()
            self._writer = None
        if self._readers is not None:
            self._readers.shutdown()
            self._readers = None

    def _start(self) -> None:
        if self._writer is None:
            self._writer = threading.Thread(target=self._work, name="m3-page-writer", daemon=True)
            self._writer.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except FileNotFoundError:
                pass  # another process cleared the folder just now; the page is saved another time
            except Exception as error:  # the edge of the thread: nothing is saved any more, the engine goes on
                self._can_write = False
                why = getattr(error, "strerror", None) or error
                self._tell("write", f"computed prompts are not kept in {self._mine}: {why}")

    def _write(self, name: bytes, content: bytearray, used_ns: int) -> None:
        if not self._can_write:
            return
        self._mine.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._num_bytes is None:
            self._num_bytes = shrink(self._folder, self._max_bytes)
        room = self._max_bytes - self._file_bytes
        if self._num_bytes > room:
            # A tenth more than needed, so that the folder is not read again for the next page. Only here does it
            # count what other processes wrote.
            self._num_bytes = shrink(self._folder, max(room - self._max_bytes // 10, 0))
        write_page_file(self._mine, name, content, used_ns=used_ns)
        self._num_bytes += self._file_bytes

    def _touch(self, times_ns: dict[bytes, int]) -> None:
        for name, time_ns in times_ns.items():
            with contextlib.suppress(OSError):  # not there, or not ours to change
                os.utime(self._mine / (name.hex() + SUFFIX), ns=(time_ns, time_ns))

    def _read(self, name: bytes, target: memoryview) -> bool:
        try:
            return read_page_file(self._mine, name, target)
        except BadPage as problem:
            self._tell("bad", f"a kept page in {self._mine} was ignored and is computed again: {problem}")
            self.remove(name)
        except OSError as error:
            self._tell("read", f"kept pages in {self._mine} cannot be read: {error.strerror}")
        return False

    def _tell(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            _log.warning("m3: %s", text)
