"""The one thread that owns the engine: jobs come in, events go back to the event loop of whoever asked."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator

from m3_runtime.chat.events import ChatEvent, Finish
from m3_runtime.chat.session import ChatEngine, Turn
from m3_runtime.parallel.errors import RankLost
from m3_runtime.request import Output, TokenOutput
from m3_runtime.server.errors import Overloaded, Stopping
from m3_runtime.server.request import ChatRequest


class Job:
    """One request on its way through the worker. `cancelled` is set by the event loop and read by the worker."""

    def __init__(self, request: ChatRequest):
        self.request = request
        self.cancelled = False
        self.num_started = 0
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, ChatEvent] | Exception] = asyncio.Queue()

    def post(self, event: tuple[int, ChatEvent] | Exception) -> None:
        """Hand over an event of an answer, or the error that ends all; called by the worker."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:  # the loop is closed, and nobody waits
            self.cancelled = True

    async def events(self) -> AsyncIterator[tuple[int, ChatEvent]]:
        """The events of all answers with the answer's number, up to the last Finish; leaving early cancels the job.

        Raises what the engine raised.
        """
        num_open = self.request.num_answers
        try:
            while num_open:
                event = await self._events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                num_open -= isinstance(event[1], Finish)
        finally:
            self.cancelled = True


class Worker:
    """Runs all jobs of a server together: one engine step, then one step of every search for candidates, and again."""

    def __init__(self, chat: ChatEngine, *, max_open: int):
        self._chat, self._max_open = chat, max_open
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._running: dict[int, tuple[Job, int, Turn]] = {}
        self._searches: dict[Job, Generator[ChatEvent]] = {}
        self._stopping = False
        self.lost: RankLost | None = None
        """Why the model cannot answer any more."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called once when it is lost."""
        self._thread = threading.Thread(target=self._work, name="m3-engine", daemon=True)

    @property
    def num_running(self) -> int:
        """Answers and searches that have begun and not ended."""
        return len(self._running) + len(self._searches)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its present step; whoever still waits is told Stopping. A second call does nothing."""
        if not self._stopping:
            self._stopping = True
            self._inbox.put(None)
            self._thread.join()
            self._chat.close()

    def submit(self, job: Job) -> None:
        """Queue a job. Raises Overloaded or Stopping."""
        if self._stopping:
            raise Stopping("the server is being stopped")
        if self.num_running + self._inbox.qsize() >= self._max_open:
            raise Overloaded(f"{self._max_open} answers are open here already; try again in a moment")
        self._inbox.put(job)

    def _work(self) -> None:
        while self._take_jobs():
            self._drop_cancelled()
            try:
                outputs = self._chat.engine.step() if self._running else []
            except Exception as error:  # the edge of the thread: every job hears of it, the server lives on
                self._end_all(error)
                self._look_for_loss(error)
                continue
            for output in outputs:
                self._deliver(output)
            for job, events in list(self._searches.items()):
                self._advance(job, events)
        self._end_all(Stopping("the server was stopped before the answer ended"))
        for job in list(self._searches):
            job.post(Stopping("the server was stopped before the search ended"))
            self._end_search(job)
        with contextlib.suppress(queue.Empty):
            while True:
                if (late := self._inbox.get_nowait()) is not None:
                    late.post(Stopping("the server is being stopped"))

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
            request = job.request
            if request.options.candidates > 1:
                self._searches[job] = self._chat.stream(request.messages, request.tools, request.options)
            else:
                self._begin(job)

    def _begin(self, job: Job) -> None:
        """Add the job's next answer to the engine's work."""
        request, index = job.request, job.num_started
        options = request.options
        if options.seed is not None:
            options = dataclasses.replace(options, seed=options.seed + index)
        job.num_started += 1
        try:
            turn = self._chat.prepare(request.messages, request.tools, options, number=index)
            self._running[self._chat.engine.add(turn.request)] = (job, index, turn)
        except Exception as error:  # the edge of the thread: whoever asked gets the error
            job.cancelled = True
            job.post(error)

    def _deliver(self, output: Output) -> None:
        job, index, turn = self._running[output.request_id]
        if isinstance(output, TokenOutput):
            # Only now is the prompt in the cache, where the other answers find it.
            while job.num_started < job.request.num_answers and not job.cancelled:
                self._begin(job)
        try:
            events = turn.feed(output)
        except Exception as error:  # the edge of the thread: this answer fails, the others go on
            job.cancelled = True
            job.post(error)
            return
        for event in events:
            job.post((index, event))
        if turn.ended:
            self._chat.engine.cancel(output.request_id)  # a stop text ends an answer before the engine does
            del self._running[output.request_id]

    def _advance(self, job: Job, events: Iterator[ChatEvent]) -> None:
        """Move a search on by one event."""
        try:
            event = next(events)
        except Exception as error:  # the edge of the thread: this search fails, the others go on
            self._end_search(job)
            job.post(error)
            self._look_for_loss(error)
            return
        job.post((0, event))
        if isinstance(event, Finish):
            self._end_search(job)

    def _look_for_loss(self, error: Exception) -> None:
        """A model that has lost a rank is of no use any more, nor is a server without a model."""
        if isinstance(error, RankLost) and self.lost is None:
            self.lost = error
            self.on_lost()

    def _end_search(self, job: Job) -> None:
        """Closing the events gives back the pages of a search that has not ended by itself."""
        self._searches.pop(job).close()

    def _drop_cancelled(self) -> None:
        for job in [job for job in self._searches if job.cancelled]:
            self._end_search(job)
        for request_id in [i for i, (job, _, _) in self._running.items() if job.cancelled]:
            self._chat.engine.cancel(request_id)
            del self._running[request_id]

    def _end_all(self, error: Exception) -> None:
        """End every answer with an error. Searches do not take part in the engine's steps."""
        for request_id, (job, _, _) in self._running.items():
            self._chat.engine.cancel(request_id)
            job.post(error)
        self._running.clear()
