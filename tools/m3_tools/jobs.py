"""What goes on after the call that started it, at most until the end of the run: commands that take long, terminals."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from m3_tools.output import Output, clean
from m3_tools.process import ProcessResult
from m3_tools.secret import RedactedStream, Secrets

MAX_JOBS = 8


class Background(Protocol):
    """Something that runs. Once it was added to `Jobs` it has a number."""

    command: str
    number: int
    pid: int | None

    @property
    def ended(self) -> bool: ...

    async def stop(self) -> None:
        """Stop it; nothing of it runs afterwards."""


class Job:
    """One command. `pid` is None until it has started."""

    def __init__(self, command: str, secrets: Secrets, on_output: Callable[[str], None] | None):
        self.command = command
        self.number = 0
        self.pid: int | None = None
        self._on_output = on_output
        self._output: Output | None = None
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []
        # What was read may end within a secret: then it waits for the rest.
        self._redacted = RedactedStream(self._parts.append, secrets.redact)
        self._started = time.monotonic()
        self._task: asyncio.Task[ProcessResult] | None = None

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    @property
    def duration_s(self) -> float:
        return time.monotonic() - self._started

    def started(self, pid: int, output: Output) -> None:
        """It runs, and this is where its output comes."""
        self.pid, self._output = pid, output

    def show(self, text: str) -> None:
        """Pass live output on, as long as the call lasts."""
        if self._on_output is not None:
            self._on_output(text)

    def take(self) -> str:
        """The output since the last time; of much of it the end."""
        if self._output is None:
            return ""
        data, left_out = self._output.since(self._position)
        self._position = self._output.total_bytes
        if left_out:  # what is kept may begin within a word, and the word be a secret
            self._redacted.close()
            self._parts[:] = [f"[… {left_out:,} bytes left out …]\n"]
            data = re.sub(rb"\A\S+", b"", data)
        self._redacted.add(clean(self._decoder.decode(data)))
        if self.ended:
            self._redacted.close()
        text = "".join(self._parts)
        self._parts.clear()
        return text

    async def run(self, work: Coroutine[Any, Any, ProcessResult], patience_s: float | None) -> ProcessResult | None:
        """Start the work and wait so long; its result if it ended by then. An interrupt stops it.

        Errors: those of the work, if it ends in time.
        """
        self._task = asyncio.create_task(work)
        try:
            await self.wait(patience_s)
        except asyncio.CancelledError:
            await self.stop()
            raise
        self._on_output = None
        return self._task.result() if self.ended else None

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until it ends, at most so long."""
        assert self._task is not None
        await asyncio.wait([self._task], timeout=timeout_s)

    def result(self) -> ProcessResult | None:
        """How it ended; None if it runs, was stopped, or could not be run."""
        if self._task is None or not self._task.done() or self._task.cancelled() or self._task.exception():
            return None
        return self._task.result()

    async def stop(self) -> None:
        """Stop it; nothing of it runs afterwards."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])


class Jobs:
    """What of a run goes on in the background. A call waits for `patience_s` before its command goes there."""

    def __init__(self, patience_s: float = 60.0):
        self.patience_s = patience_s
        self._jobs: dict[int, Background] = {}

    @property
    def full(self) -> bool:
        return len(self.running()) >= MAX_JOBS

    def add(self, job: Background) -> None:
        job.number = len(self._jobs) + 1
        self._jobs[job.number] = job

    def get(self, number: int) -> Background | None:
        return self._jobs.get(number)

    def running(self) -> list[Background]:
        return [job for job in self._jobs.values() if not job.ended]

    def describe(self) -> str:
        """What runs, by number, for the model."""
        return ", ".join(f"{job.number} ({clean(job.command)[:60]})" for job in self.running()) or "none"

    async def close(self) -> list[Background]:
        """Stop all; gives those that ran."""
        stopped = self.running()
        for job in stopped:
            await job.stop()
        return stopped
