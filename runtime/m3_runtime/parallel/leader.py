"""An engine's runner, cache and disk cache on rank 0: what they do, they have all other ranks do too.

The engine, its scheduler, its pages and its prefix tree are on rank 0 alone and know nothing of this.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch

from m3_model.cache import KVCache
from m3_model.config import M3Config
from m3_model.decoder import Decoder
from m3_runtime.disk_cache import DiskCache
from m3_runtime.parallel.member import ModelSpec, SentVisual
from m3_runtime.parallel.ranks import Ranks
from m3_runtime.runner import Chunk, Runner
from m3_runtime.visuals import Visual, encoding_rank

_KEPT_FRAMES = 4
"""Visuals whose frames are kept for the further steps that read parts of them."""


@dataclasses.dataclass(frozen=True)
class Led:
    """What an engine is built from."""

    decoder: Decoder
    cache: LeadingCache
    runner: LeadingRunner
    disk: DiskCache | None


def lead(ranks: Ranks, spec: ModelSpec, progress: Callable[[int, int], None] | None = None) -> Led:
    """Load a model on all ranks. Raises RankLost, or ValueError before anything is read if it cannot be split."""
    decoder, cache = ranks.load(spec, progress)
    leading = LeadingCache(ranks, decoder.config, cache)
    disk = ranks.member.disk
    if disk is not None:
        disk = LeadingDisk(ranks, disk)
    return Led(decoder, leading, LeadingRunner(ranks, decoder, leading, spec.encoding_bytes), disk)


class LeadingRunner(Runner):
    """A step on all ranks."""

    def __init__(self, ranks: Ranks, decoder: Decoder, cache: KVCache, encoding_bytes: int):
        super().__init__(decoder, cache, encoding_bytes, ranks.member.graphs)
        self._ranks = ranks
        self._frames: OrderedDict[bytes, torch.Tensor] = OrderedDict()

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        with self._ranks.together():
            ranks = range(1, self._ranks.size)
            if any(chunk.visuals for chunk in chunks):
                self._ranks.tell_each("forward", [([self._sent(chunk, rank) for chunk in chunks],) for rank in ranks])
            else:
                self._ranks.tell("forward", [(chunk, ()) for chunk in chunks])
            return super().forward(chunks)

    def _sent(self, chunk: Chunk, rank: int) -> tuple[Chunk, list[SentVisual]]:
        """A chunk for another rank, with the visuals of its new tokens."""
        end = chunk.start + len(chunk.token_ids)
        visuals = [
            SentVisual(v.key, v.runs, self._frames_of(v) if encoding_rank(v, self._ranks.size) == rank else None)
            for v in chunk.visuals
            if any(True for _ in v.between(chunk.start, end))
        ]
        return dataclasses.replace(chunk, visuals=()), visuals

    def _frames_of(self, visual: Visual) -> torch.Tensor:
        frames = self._frames.get(visual.key)
        if frames is None:
            frames = self._frames[visual.key] = visual.frames()
            while len(self._frames) > _KEPT_FRAMES:
                self._frames.popitem(last=False)
        return frames


class LeadingCache(KVCache):
    """Rank 0's part of every page; what moves or leaves it moves on all ranks."""

    def __init__(self, ranks: Ranks, config: M3Config, own: KVCache):
        super().__init__(config, own.k_LPSGD, own.v_LPSGD, own.index_k_LPSD)
        self._ranks = ranks

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int], *, tokens: int | None = None) -> None:
        with self._ranks.together():
            self._ranks.tell("copy_pages", list(sources), list(targets), tokens)
            super().copy_pages(sources, targets, tokens=tokens)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int], first: int, last: int) -> None:
        with self._ranks.together():
            self._ranks.tell("copy_slots", list(sources), list(targets), first, last)
            super().copy_slots(sources, targets, first, last)

    def read_page(self, page: int) -> bytearray:
        with self._ranks.together():
            self._ranks.tell("read_page", page)
            return super().read_page(page)

    def write_pages(self, pages: Sequence[int], content_NX: torch.Tensor) -> None:
        if not pages:  # nothing was there to be read, and no other rank was asked for it
            return
        with self._ranks.together():
            self._ranks.tell("write_pages", list(pages), self._ranks.member.batch)
            super().write_pages(pages, content_NX)


class LeadingDisk(DiskCache):
    """Rank 0's kept pages; one counts as kept where all ranks have their part of it."""

    def __init__(self, ranks: Ranks, own: DiskCache):
        self.first_name = own.first_name
        self._ranks, self._disk = ranks, own
        self._numbers = itertools.count(1)

    @property
    def has_room(self) -> bool:
        return self._disk.has_room

    def has(self, name: bytes) -> bool:
        return self._disk.has(name)

    def read(self, names: Sequence[bytes], targets: Sequence[memoryview]) -> Callable[[], int]:
        """As a disk cache's; what is waited for last is what is written to pages next."""
        if not names or not self._disk.has(names[0]):
            return lambda: 0
        number = next(self._numbers)
        self._ranks.tell("stage", number, list(names))
        wait = self._disk.read(names, targets)

        def agreed() -> int:
            with self._ranks.together():
                count = self._ranks.member.agree(names, wait())
            self._ranks.member.batch = number
            return count

        return agreed

    def save(self, name: bytes, content: bytearray, used_ns: int) -> None:
        self._ranks.tell("save", name, used_ns)
        self._disk.save(name, content, used_ns)

    def used(self, times_ns: dict[bytes, int]) -> None:
        self._ranks.tell("used", times_ns)
        self._disk.used(times_ns)

    def close(self) -> None:
        """The others' are closed when they end."""
        self._disk.close()
