"""One rank's share of a model, and all that it is told to do. Rank 0 does the same, through its engine.

Commands go to every rank in the same order. A page is the same number on all ranks; what it holds differs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from m3_model.cache import KVCache
from m3_model.config import M3Config
from m3_model.decoder import Decoder
from m3_model.group import Alone, Group, Parallel
from m3_model.loading import load_decoder
from m3_model.share import Share, replica_groups
from m3_runtime.config import DiskConfig, EngineConfig
from m3_runtime.disk_cache import DiskCache
from m3_runtime.fingerprint import fingerprint
from m3_runtime.graphs import Capture, DecodeGraphs, cuda_capture
from m3_runtime.parallel.collectives import Meter, TorchGroup
from m3_runtime.parallel.graphs import open_graphs
from m3_runtime.runner import Chunk, Runner
from m3_runtime.visuals import Visual

_HOUR = timedelta(hours=1)
"""How long an operation may take by itself: m3_runtime.parallel.watch ends it long before."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank is, and how it meets the others."""

    rank: int
    size: int
    device: str
    """`cpu` or `cuda:N`."""
    backend: str
    """`gloo` or `nccl`."""
    meeting: Path
    """A file that all ranks of the group can write, and no other group."""
    threads: int
    """Of torch, on a CPU."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What all ranks load."""

    folder: Path
    name: str
    dtype: str
    num_pages: int
    """Of the cache."""
    encoding_bytes: int
    engine: EngineConfig | None = None
    """Limits of the engine whose steps may be captured; None where none is."""
    disk: DiskConfig | None = None
    spread_rows: int = 1024
    """New tokens of a step from which on each rank has its own rows (m3_model.group)."""
    shared_blocks: int = 256
    """Blocks of a sequence from which on ranks with the same index heads share the scoring: 32k tokens."""


@dataclasses.dataclass(frozen=True)
class SentVisual:
    """A visual on its way to another rank; its frames go with it where that rank encodes it."""

    key: bytes
    runs: tuple[range, ...]
    frames: torch.Tensor | None

    def visual(self) -> Visual:
        return Visual(key=self.key, runs=self.runs, frames=self._frames)

    def _frames(self) -> torch.Tensor:
        assert self.frames is not None, "another rank encodes this"
        return self.frames


class Member:
    """The share of one rank. Every public method but `connect` is a command of rank 0, in the words of its engine."""

    def __init__(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        self.progress = progress
        """Told how many layers are loaded, and of how many."""
        self.capture: Callable[[Decoder, KVCache, EngineConfig], Capture | None] = cuda_capture
        """Gives what records decode steps on this rank, if anything can."""
        self.meter = Meter()
        self.place: Place | None = None
        self.runner: Runner | None = None
        self.disk: DiskCache | None = None
        self.batch = 0
        """On rank 0: the number of the batch of pages that all ranks have read last."""
        self._staged: dict[int, torch.Tensor] = {}
        """Batches of pages that were read from disk, on all ranks the same ones, and wait for `write_pages`."""
        self._held = bytearray()
        self._replicas: dict[int, TorchGroup] = {}

    def connect(self, place: Place) -> None:
        """Meet the other ranks."""
        self.place = place
        if place.device.startswith("cuda"):
            torch.cuda.set_device(place.device)
        else:
            torch.set_num_threads(place.threads)
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
        dist.init_process_group(
            place.backend,
            init_method=f"file://{place.meeting}",
            rank=place.rank,
            world_size=place.size,
            timeout=_HOUR,
        )
        self._all = TorchGroup(dist.group.WORLD, self.meter)

    def load(self, spec: ModelSpec) -> tuple[Decoder, KVCache]:
        """Read this rank's share, and make room for the cache."""
        assert self.place is not None
        dtype, device = _DTYPES[spec.dtype], self.place.device
        config = M3Config.from_folder(spec.folder)
        Share.of(config, self.place.rank, self.place.size)  # before groups are made for it: raises ValueError
        parallel = Parallel(
            ranks=self._all,
            replicas=self._replicas_for(config),
            spread_rows=spec.spread_rows,
            shared_blocks=spec.shared_blocks,
        )
        self.close_disk()
        self.runner = None  # what was loaded before makes room first
        decoder = load_decoder(spec.folder, dtype=dtype, device=device, parallel=parallel, progress=self.progress)
        cache = KVCache.zeros(decoder.config, spec.num_pages, dtype=dtype, device=device)
        graphs = None
        if spec.engine is not None:
            capture = self.capture(decoder, cache, spec.engine)
            graphs = open_graphs(decoder, cache, spec.engine, self.meter, capture)
        self.runner = Runner(decoder, cache, spec.encoding_bytes, graphs)
        self.disk = self._disk_cache(spec, cache)
        return decoder, cache

    def forward(self, chunks: Sequence[tuple[Chunk, Sequence[SentVisual]]]) -> None:
        """One step: the new tokens of each chunk are in this rank's cache afterwards."""
        full = [dataclasses.replace(chunk, visuals=[sent.visual() for sent in visuals]) for chunk, visuals in chunks]
        self._runner.forward(full)

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int], tokens: int | None) -> None:
        self._runner.cache.copy_pages(sources, targets, tokens=tokens)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int], first: int, last: int) -> None:
        self._runner.cache.copy_slots(sources, targets, first, last)

    def stage(self, batch: int, names: Sequence[bytes]) -> None:
        """Read the first pages of `names` that every rank has on its disk."""
        content_NX = torch.empty(len(names), self._runner.cache.bytes_per_page, dtype=torch.uint8)
        mine = 0
        if self.disk is not None:
            targets = [memoryview(row) for row in content_NX.numpy()]
            mine = self.disk.read([self._own(name) for name in names], targets)()
        self._staged[batch] = content_NX[: self.agree(names, mine)]

    def agree(self, names: Sequence[bytes], mine: int) -> int:
        """How many of the first pages every rank has read, if this one has `mine`.

        Where ranks differ, a page that is missing on one of them is removed on the others: a page is on all or on none.
        """
        device = self._runner.cache.k_LPSGD.device
        common = int(self._all.gather(torch.tensor([mine], device=device)).min())
        if self.disk is not None and mine > common:
            self.disk.remove(self._own(names[common]))
        return common

    def write_pages(self, pages: Sequence[int], batch: int) -> None:
        """Fill pages with the first ones of a batch; that one and those before it are not wanted any more."""
        self._runner.cache.write_pages(pages, self._staged[batch][: len(pages)])
        self._staged = {number: content for number, content in self._staged.items() if number > batch}

    def read_page(self, page: int) -> None:
        """Hold what is in a page, for `save`."""
        self._held = self._runner.cache.read_page(page) if self.disk is not None else bytearray()

    def save(self, name: bytes, used_ns: int) -> None:
        """Keep the held page on disk, unless the disk is behind: then rank 0's copy goes when it is asked for."""
        if self.disk is not None and self.disk.has_room:
            self.disk.save(self._own(name), self._held, used_ns)

    def used(self, times_ns: dict[bytes, int]) -> None:
        if self.disk is not None:
            self.disk.used({self._own(name): time_ns for name, time_ns in times_ns.items()})

    def close_disk(self) -> None:
        if self.disk is not None:
            self.disk.close()

    @property
    def graphs(self) -> DecodeGraphs | None:
        """The captured steps of what is loaded."""
        return self._runner.graphs

    @property
    def _runner(self) -> Runner:
        assert self.runner is not None, "no model is loaded"
        return self.runner

    def _replicas_for(self, config: M3Config) -> Group:
        """The ranks with the same key heads as this one; made once, because a process cannot have many groups."""
        assert self.place is not None
        groups = replica_groups(config, self.place.size)
        copies = len(groups[0])
        if copies == 1:
            return Alone()
        if copies not in self._replicas:
            for ranks in groups:  # every rank makes every group
                made = dist.new_group(ranks, timeout=_HOUR)
                if self.place.rank in ranks:
                    self._replicas[copies] = TorchGroup(made, self.meter)
        return self._replicas[copies]

    def _disk_cache(self, spec: ModelSpec, cache: KVCache) -> DiskCache | None:
        """This rank's pages have a folder of their own, for another number of ranks another one."""
        assert self.place is not None
        if spec.disk is None or not spec.disk.max_bytes:
            return None
        kind = self.place.device.partition(":")[0]
        where = f"{self.place.rank} of {self.place.size}"
        whole = fingerprint(spec.folder, dtype=spec.dtype, device=kind)
        return DiskCache(
            spec.disk.folder,
            f"{spec.name}-rank-{self.place.rank}-of-{self.place.size}",
            hashlib.sha256(whole + where.encode()).digest(),
            page_bytes=cache.bytes_per_page,
            max_bytes=spec.disk.max_bytes,
        )

    def _own(self, name: bytes) -> bytes:
        """This rank's name of the page that rank 0 calls `name`: their contents differ."""
        assert self.disk is not None
        assert self.place is not None
        return name if self.place.rank == 0 else hashlib.sha256(self.disk.first_name + name).digest()
