"""Whether all ranks live and move. If one does not, the others are ended, and one line says which it was.

A rank that dies closes its sockets. A rank that is stopped sends no beats. A rank that hangs lets the others wait for
it in an operation: it has begun fewer than they. After the verdict every other process is killed, so that rank 0, which
may wait in an operation itself, gets an error from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from m3_runtime.parallel.collectives import Meter, Progress

_TICK_S = 0.25
_WORDS_S = 0.5
"""How long after the first sign of trouble others are waited for: the rank that fails is often heard after those that
it takes along."""
_END_S = 3.0
"""How long a rank may take to end when it is asked to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """How long ranks may be silent, in seconds."""

    start_s: float = 180.0
    """Until a new process is ready: it imports torch."""
    silent_s: float = 7.0
    """Without a sign of life."""
    stuck_s: float = 7.0
    """In one operation with the others."""


LIMITS = Limits()
"""Those that hold where nothing else is said."""


class Peer:
    """Another rank as rank 0 sees it."""

    def __init__(
        self,
        rank: int,
        commands: Connection[Any, Any],
        lifeline: Connection[Any, Any],
        process: subprocess.Popen[bytes] | None = None,
    ):
        self.rank, self.commands, self.lifeline, self.process = rank, commands, lifeline, process
        self.pid = process.pid if process is not None else 0
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.progress: Progress | None = None
        self.heard_s = time.monotonic()
        self.moved_s = time.monotonic()
        """When it last began or finished an operation."""
        self.gone = False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
        elif self.pid and not self.gone:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)

    def death(self) -> str:
        """How a process ended that said nothing."""
        code = self.process.poll() if self.process is not None else None
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed ({signal.Signals(-code).name})"
        return "died" if code is None else f"ended with code {code}"


class Watch(threading.Thread):
    """Starts the other ranks' processes, listens to them, and ends them.

    A thread of its own also because Linux takes the end of the starting thread for the end of the parent.
    """

    def __init__(self, start: Callable[[], list[Peer]], meter: Meter, limits: Limits, place: Callable[[int], str]):
        super().__init__(name="m3-ranks", daemon=True)
        self._start, self._meter, self._limits, self._place = start, meter, limits, place
        self.peers: list[Peer] = []
        self.started = threading.Event()
        self.lost = ""
        """The verdict; empty while all is well."""
        self.told = threading.Event()
        """Set with the verdict, and when all processes are ended."""
        self.progress: Callable[[int, int], None] | None = None
        """Called with the least progress of all other ranks while they load."""
        self._loaded: dict[int, tuple[int, int]] = {}
        self._signs: list[tuple[int, int, str]] = []
        """Signs of trouble: their weight (the least first), rank and text."""
        self._first_sign_s = 0.0
        self._closing = threading.Event()
        self._own = Progress(0, 0)
        self._own_moved_s = time.monotonic()

    def run(self) -> None:
        try:
            self.peers = self._start()
        except Exception as error:  # whoever starts this thread is told
            self.lost = f"the other ranks cannot be started: {error}"
        self.started.set()
        last_s = time.monotonic()
        while not self.lost and not self._closing.is_set():
            self._listen()
            now_s = time.monotonic()
            if now_s - last_s > 2 + _TICK_S:  # this process was stopped, for instance by Ctrl-Z, and the others with it
                self._forgive(now_s)
            last_s = now_s
            self._judge(now_s)
        self._end()
        self.told.set()

    def close(self) -> None:
        """End all other ranks, gently if they can."""
        self._closing.set()
        self.join(_END_S + 2)

    def verdict(self, timeout_s: float) -> str:
        """Why ranks were lost, as soon as it is known; empty if nothing is wrong in that time."""
        self.told.wait(timeout_s)
        return self.lost

    def fail(self, rank: int, text: str) -> None:
        """Rank 0 reports its own failure."""
        self._signs.append((1, rank, f"{self._place(rank)} failed: {text}"))

    def _listen(self) -> None:
        alive = [peer for peer in self.peers if not peer.gone]
        if not alive:
            time.sleep(_TICK_S)
        channels = [(peer, channel) for peer in alive for channel in (peer.commands, peer.lifeline)]
        ready = wait([channel for _, channel in channels], _TICK_S)
        for peer, channel in channels:
            if channel not in ready:
                continue
            try:
                message = channel.recv()
            except (EOFError, OSError):
                if not peer.gone:
                    peer.gone = True
                    self._exit_of(peer)
                continue
            peer.heard_s = time.monotonic()
            if isinstance(message, Progress):
                if message != peer.progress:
                    peer.moved_s = peer.heard_s
                peer.progress = message
            else:
                self._take(peer, *message)

    def _take(self, peer: Peer, kind: str, value: Any) -> None:
        where = self._place(peer.rank)
        if kind == "failed":
            self._signs.append((1, peer.rank, f"{where} failed: {value}"))
        elif kind == "cut off":
            self._signs.append((3, peer.rank, f"{where} was cut off: {value}"))
        elif kind == "progress":
            self._loaded[peer.rank] = value
            if self.progress is not None and len(self._loaded) == len(self.peers):
                self.progress(*min(self._loaded.values()))
        else:
            if kind == "ready":
                peer.pid = int(value)
                self._loaded.clear()
            peer.answers.put((kind, value))

    def _exit_of(self, peer: Peer) -> None:
        if peer.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                peer.process.wait(1)  # its sockets close a little before it is gone
        self._signs.append((2, peer.rank, f"{self._place(peer.rank)} {peer.death()}"))

    def _forgive(self, now_s: float) -> None:
        self._own_moved_s = now_s
        for peer in self.peers:
            peer.heard_s = peer.moved_s = now_s

    def _judge(self, now_s: float) -> None:
        self._look_for_silence(now_s)
        if not self._signs:
            return
        self._first_sign_s = self._first_sign_s or now_s
        weight, _, text = min(self._signs)
        if weight == 1 or now_s - self._first_sign_s >= _WORDS_S:
            self.lost = text

    def _look_for_silence(self, now_s: float) -> None:
        for peer in self.peers:
            limit_s = self._limits.silent_s if peer.progress is not None else self._limits.start_s
            if now_s - peer.heard_s > limit_s:
                self._signs.append((2, peer.rank, f"{self._place(peer.rank)} gave no sign of life for {limit_s:.0f} s"))
        own = self._meter.progress
        if own != self._own:
            self._own, self._own_moved_s = own, now_s
        standing = [(0, own, self._own_moved_s)]
        standing += [(p.rank, p.progress, p.moved_s) for p in self.peers if p.progress is not None]
        waiting = [moved_s for _, progress, moved_s in standing if progress.begun > progress.finished]
        if waiting and all(now_s - moved_s > self._limits.stuck_s for _, _, moved_s in standing):
            rank, _, _ = min(standing, key=lambda one: (one[1].begun, one[1].begun > one[1].finished, one[0]))
            limit_s = self._limits.stuck_s
            self._signs.append((2, rank, f"{self._place(rank)} kept the others waiting for more than {limit_s:.0f} s"))

    def _end(self) -> None:
        """No process of ours is left afterwards."""
        if not self.lost:
            for peer in self.peers:
                with contextlib.suppress(OSError, ValueError):
                    peer.commands.send(("close", ()))
        deadline_s = time.monotonic() + (0 if self.lost else _END_S)
        for peer in self.peers:
            if peer.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    peer.process.wait(max(deadline_s - time.monotonic(), 0))
            elif not self.lost:
                with contextlib.suppress(EOFError, OSError):
                    while peer.commands.poll(max(deadline_s - time.monotonic(), 0)):
                        peer.commands.recv()
            peer.kill()
        for peer in self.peers:
            if peer.process is not None:
                peer.process.wait()
            peer.commands.close()
            peer.lifeline.close()
