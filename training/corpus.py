"""The corpus in memory: modules with their ids by line, and the units cut from them, without duplicates.

Built once in the parent by several processes; the workers that make examples are forked from it and share the memory.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import multiprocessing
import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.near import band_keys
from training.quality import worth_reading
from training.sources import PackageRecord, SourceFile, read_sources
from training.transcript import Encoder
from training.units import Outline, Unit, outline

CHUNK = 64


class Module(NamedTuple):
    """A module's text and its ids; line i has the ids [line_starts[i], line_starts[i + 1] - 1), its newline not
    counted."""

    package: str
    path: str
    text: str
    ids: NDArray[np.uint16]
    line_starts: NDArray[np.int32]
    functions: list[str]

    def line_ids(self, line: int) -> list[int]:
        ids: list[int] = self.ids[self.line_starts[line] : self.line_starts[line + 1] - 1].tolist()
        return ids


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Modules, units, and the record of the packages that they come from."""

    modules: list[Module]
    units: list[Unit]
    records: list[PackageRecord]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_cumulative", list(itertools.accumulate(u.weight for u in self.units)))

    def draw(self, rng: random.Random) -> Unit:
        """A unit by weight."""
        cumulative: list[float] = self.__dict__["_cumulative"]
        return self.units[bisect.bisect(cumulative, rng.random() * cumulative[-1], 0, len(cumulative) - 1)]


def build_corpus(
    archive: Path | None, *, processes: int, installed: bool = True, held_out: bool = False, limit: int | None = None
) -> Corpus:
    """Read, parse, cut and encode all sources; of units that are nearly the same the first stays, and those nearly
    equal to one of a held-out package are left out.

    `held_out=True` gives the held-out packages alone, for evaluation. `limit` keeps that many modules (for tests).
    """
    files, records = read_sources(archive, installed=installed, held_out=held_out)
    files = files[:limit]
    refused: set[bytes | int] = set()
    if not held_out and installed:
        others, _ = read_sources(None, held_out=True)
        for unit in _assemble(others, [], set(), processes).units:
            refused.update((unit.digest, *unit.bands))
    return _assemble(files, records, refused, processes)


_shared: tuple[list[SourceFile], Encoder] | None = None


def _assemble(
    files: list[SourceFile], records: list[PackageRecord], refused: set[bytes | int], processes: int
) -> Corpus:
    global _shared
    _shared = files, Encoder()
    starts = range(0, len(files), CHUNK)
    modules: list[Module] = []
    units: list[Unit] = []
    seen = set(refused)
    try:
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            for start, chunk in zip(starts, pool.imap(_read_chunk, starts, chunksize=4), strict=True):
                for offset, ids, line_starts, cut in chunk:
                    file = files[start + offset]
                    index = len(modules)
                    fresh = [u for u in cut.units if seen.isdisjoint((u.digest, *u.bands))]
                    for unit in fresh:
                        seen.update((unit.digest, *unit.bands))
                    units += [u._replace(module=index) for u in fresh]
                    modules.append(Module(file.package, file.path, file.text, ids, line_starts, cut.functions))
    finally:
        _shared = None
    return Corpus(modules, units, records)


def _read_chunk(start: int) -> list[tuple[int, NDArray[np.uint16], NDArray[np.int32], Outline]]:
    """The modules of one chunk that parse and are worth reading (runs in a forked process)."""
    assert _shared is not None
    files, encoder = _shared
    result = []
    for offset, file in enumerate(files[start : start + CHUNK]):
        if not worth_reading(file.text):
            continue
        try:
            cut = outline(0, file.package, file.path, file.text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        if not cut.units:
            continue
        text = file.text if file.text.endswith("\n") else file.text + "\n"
        ids = np.array(encoder.content(text), dtype=np.uint16)
        ends = np.flatnonzero(ids == encoder.newline).astype(np.int32) + 1
        if len(ends) == text.count("\n"):
            starts = np.concatenate([np.zeros(1, np.int32), ends])
            banded = [u._replace(bands=band_keys(ids[starts[u.first] : starts[u.last + 1]])) for u in cut.units]
            result.append((offset, ids, starts, cut._replace(units=banded)))
    return result
