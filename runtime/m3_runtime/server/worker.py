"""The one thread that owns the engine: jobs come in, events go back to the event loop of whoever asked."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from m3_runtime.chat.events import ChatEvent, Finish
from m3_runtime.chat.options import ChatOptions
from m3_runtime.chat.session import ChatEngine, Turn
from m3_runtime.request import Output


class Job:
    """One request on its way through the worker. `cancelled` is set by the event loop and read by the worker."""

    def __init__(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: ChatOptions):
        self.messages, self.tools, self.options = messages, tools, options
        self.cancelled = False
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[ChatEvent | Exception] = asyncio.Queue()

    def post(self, event: ChatEvent | Exception) -> None:
        """Hand an event over; called by the worker. A loop that is closed has nobody waiting."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:
            self.cancelled = True

    async def events(self) -> AsyncIterator[ChatEvent]:
        """The events up to Finish; leaving early cancels the job. Raises what the engine raised."""
        try:
            while True:
                event = await self._events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Finish):
                    return
        finally:
            self.cancelled = True


class Worker:
    """Runs all jobs of a server together: one engine step, then one step of every search for candidates, and again."""

    def __init__(self, chat: ChatEngine):
        self._chat = chat
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._running: dict[int, tuple[Job, Turn]] = {}
        self._searches: dict[Job, Iterator[ChatEvent]] = {}
        self._thread = threading.Thread(target=self._work, name="m3-engine", daemon=True)

    @property
    def num_running(self) -> int:
        return len(self._running) + len(self._searches)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its present step; jobs that still run get no more events."""
        self._inbox.put(None)
        self._thread.join()
        self._chat.close()

    def submit(self, job: Job) -> None:
        self._inbox.put(job)

    def _work(self) -> None:
        while self._take_jobs():
            self._drop_cancelled()
            try:
                outputs = self._chat.engine.step() if self._running else []
            except Exception as error:  # the edge of the thread: every job hears of it, the server lives on
                self._fail_all(error)
                continue
            for output in outputs:
                self._deliver(output)
            for job, events in list(self._searches.items()):
                self._advance(job, events)

    def _take_jobs(self) -> bool:
        """Admit what has arrived; waits if there is nothing else to do. False when the worker must end."""
        while True:
            try:
                job = self._inbox.get(block=not self.num_running)
            except queue.Empty:
                return True
            if job is None:
                return False
            if job.cancelled:
                continue
            if job.options.candidates > 1:
                self._searches[job] = self._chat.stream(job.messages, job.tools, job.options)
                continue
            try:
                turn = self._chat.prepare(job.messages, job.tools, job.options)
                self._running[self._chat.engine.add(turn.request)] = (job, turn)
            except Exception as error:  # the edge of the thread: whoever asked gets the error
                job.post(error)

    def _deliver(self, output: Output) -> None:
        job, turn = self._running[output.request_id]
        try:
            events = turn.feed(output)
        except Exception as error:  # the edge of the thread: this answer fails, the others go on
            self._chat.engine.cancel(output.request_id)
            del self._running[output.request_id]
            job.post(error)
            return
        for event in events:
            job.post(event)
        if events and isinstance(events[-1], Finish):
            del self._running[output.request_id]

    def _advance(self, job: Job, events: Iterator[ChatEvent]) -> None:
        """Move a search on by one event."""
        try:
            event = next(events)
        except Exception as error:  # the edge of the thread: this search fails, the others go on
            self._end_search(job)
            job.post(error)
            return
        job.post(event)
        if isinstance(event, Finish):
            self._end_search(job)

    def _end_search(self, job: Job) -> None:
        """Closing the events gives back the pages of a search that has not ended by itself."""
        self._searches.pop(job).close()  # type: ignore[attr-defined]

    def _drop_cancelled(self) -> None:
        for job in [job for job in self._searches if job.cancelled]:
            self._end_search(job)
        for request_id in [i for i, (job, _) in self._running.items() if job.cancelled]:
            self._chat.engine.cancel(request_id)
            del self._running[request_id]

    def _fail_all(self, error: Exception) -> None:
        """The engine's step failed. Searches do not take part in it and go on."""
        for request_id, (job, _) in self._running.items():
            self._chat.engine.cancel(request_id)
            job.post(error)
        self._running.clear()
