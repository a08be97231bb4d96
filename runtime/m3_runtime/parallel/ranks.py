"""The other ranks in the hands of rank 0: started, told what to do, and ended."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from m3_runtime.parallel.errors import CutOff, RankLost, told
from m3_runtime.parallel.launch import spawn
from m3_runtime.parallel.member import Member, Place
from m3_runtime.parallel.watch import LIMITS, Limits, Peer, Watch

_VERDICT_S = 9.0
"""How long after an error of an operation its reason may take."""


class Ranks:
    """Rank 0 and its followers, connected. Build it with `start`; one caller at a time.

    Whatever goes wrong on one of them ends the others; from then on every method raises RankLost with the reason.
    """

    def __init__(self, size: int, *, device: str, limits: Limits, start: Callable[[int], list[Peer]]):
        self.size, self.device = size, device
        self.member = Member()
        self._store, self._remove_store = _new_store()
        self._closed = False
        self._watch = Watch(lambda: start(size), self.member.meter, limits, self._name)
        self._watch.start()
        self._watch.started.wait()

    @classmethod
    def start(
        cls,
        size: int,
        *,
        device: str = "cuda",
        backend: str | None = None,
        limits: Limits = LIMITS,
        peers: Callable[[int], list[Peer]] | None = None,
    ) -> Ranks:
        """Start `size` - 1 processes beside this one and connect all. `device` is `cuda`, one GPU a rank, or `cpu`.

        `peers` gives other ranks instead (m3_runtime.parallel.launch). Raises RankLost, or ValueError while this
        process leads other ranks already.
        """
        if dist.is_initialized():
            raise ValueError("this process runs a model on several GPUs already; close that one first")
        ranks = cls(size, device=device, limits=limits, start=peers or spawn)
        try:
            with ranks.together():
                ranks._answers("ready")
                backend = backend or ("nccl" if device == "cuda" else "gloo")
                threads = max(1, torch.get_num_threads() // size)
                places = [
                    Place(
                        rank=rank,
                        size=size,
                        device=f"cuda:{rank}" if device == "cuda" else device,
                        backend=backend,
                        meeting=ranks._store,
                        threads=threads,
                    )
                    for rank in range(size)
                ]
                ranks.tell_each("connect", [(place,) for place in places[1:]])
                ranks.member.connect(places[0])
                ranks._answers("done")
        except BaseException:
            ranks.close()
            raise
        return ranks

    def tell(self, command: str, *arguments: Any) -> None:
        """Have all other ranks do something; it is done when they come to it."""
        self.tell_each(command, [arguments] * len(self._watch.peers))

    def tell_each(self, command: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        """The same with arguments of its own for each rank from 1 on."""
        self.check()
        sent: dict[int, bytes] = {}
        try:
            for peer, own in zip(self._watch.peers, arguments, strict=True):
                if id(own) not in sent:
                    sent[id(own)] = pickle.dumps((command, own), protocol=pickle.HIGHEST_PROTOCOL)
                peer.commands.send_bytes(sent[id(own)])
        except OSError:
            self._raise_lost("a rank closed its connection")

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Around what rank 0 does while the others do it too: an error here, or there, ends all of them."""
        self.check()
        try:
            yield
        except RankLost:
            raise
        except CutOff as error:
            self._raise_lost(told(error))
        except BaseException as error:
            # The others would wait for what does not come. ValueError is what all of them raise alike.
            if not isinstance(error, Exception):
                self.close()
                raise
            self._watch.fail(0, told(error))
            self._raise_lost(told(error))

    def load(self, spec: Any, progress: Callable[[int, int], None] | None = None) -> Any:
        """Have all ranks load a model; returns rank 0's decoder and cache. `progress` is told of the slowest rank."""
        own = [0, 0]
        others = [0, 0]

        def report() -> None:
            if progress is not None and own[1] and others[1]:
                progress(min(own[0], others[0]), own[1])

        def take(into: list[int]) -> Callable[[int, int], None]:
            def taken(done: int, total: int) -> None:
                into[:] = done, total
                report()

            return taken

        with self.together():
            self._watch.progress = take(others)
            self.member.progress = take(own)
            self.tell("load", spec)
            loaded = self.member.load(spec)
            self._answers("done")
            self._watch.progress = None
        return loaded

    def check(self) -> None:
        """Raises RankLost if a rank is lost."""
        if self._watch.lost:
            self._raise_lost("")
        if self._closed:
            raise RankLost("the ranks of this model were ended")

    def close(self) -> None:
        """End all other ranks; a second call does nothing. No process is left behind."""
        if self._closed:
            return
        self._closed = True
        self._watch.close()
        with contextlib.suppress(Exception):  # a group whose ranks are gone cannot say goodbye
            dist.destroy_process_group()
        self._remove_store()

    @property
    def pids(self) -> list[int]:
        """Of the other ranks' processes."""
        return [peer.pid for peer in self._watch.peers]

    def _answers(self, kind: str) -> None:
        """Wait until every other rank said this."""
        for peer in self._watch.peers:
            while peer.answers.empty():
                if self._watch.told.wait(0.01):
                    self._raise_lost("")
            assert peer.answers.get()[0] == kind

    def _raise_lost(self, otherwise: str) -> Any:
        reason = self._watch.verdict(_VERDICT_S) or otherwise
        self.close()
        raise RankLost(f"{reason}; all {self.size} ranks were ended") from None

    def _name(self, rank: int) -> str:
        return f"rank {rank} (GPU {rank})" if self.device == "cuda" else f"rank {rank}"


def _new_store() -> tuple[Path, Callable[[], None]]:
    """An empty file that all ranks can open, and what removes it.

    On Linux it is in memory alone: nothing stays behind, even if this process is killed. There it is never closed:
    torch reads and writes it by this path once more when it forgets the group, which may be long after, and the path of
    a closed file is soon that of another one.
    """
    if sys.platform == "linux":
        return Path(f"/proc/{os.getpid()}/fd/{os.memfd_create('m3-ranks')}"), lambda: None
    folder = Path(tempfile.mkdtemp(prefix="m3-ranks-"))
    return folder / "store", functools.partial(shutil.rmtree, folder, ignore_errors=True)
