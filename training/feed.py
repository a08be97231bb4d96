"""Packs of documents for the trainer, made by forked processes."""

from __future__ import annotations

import dataclasses
import itertools
import math
import mmap
import multiprocessing
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.queues import Queue
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from m3_model.vision.config import VisionConfig
from training.conversations import DataSettings, Example, examples
from training.corpus import Corpus
from training.executed import Executed
from training.pictures import PictureSettings, SeenExample, picture_examples

PADDING_RUN = 1024
"""Patches that stand for nothing attend to each other in runs of this length, so that they cost little."""

_NONE = np.zeros((0, 588), np.uint8)
"""No colours, or those that lie elsewhere."""


@dataclasses.dataclass(frozen=True)
class Patches:
    """The pictures of a pack: `colours` uint8 [P, 588] with their `places`, the first patch of each picture (and of
    each run of padding, and P), and the positions in the pack of the tokens that they become.

    Padding has places, so that there are always P of them. Colours it only has in packs from `Feed`, any ones.
    """

    colours: NDArray[np.uint8]
    places: NDArray[np.int16]
    starts: NDArray[np.int32]
    rows: NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Pack:
    """Whole documents side by side: `tokens` and `classes` of the same fixed length, `starts` as attention wants them.

    `starts` holds the first position of each document and, last, the length of the pack. What is left over at the end
    is one more document, of token 0 and class 0. The class of a token weighs its own prediction; a document's first
    token has class 0.
    """

    tokens: NDArray[np.int32]
    classes: NDArray[np.uint8]
    starts: NDArray[np.int32]
    patches: Patches | None = None


T = TypeVar("T")


class Waiting(Generic[T]):
    """Documents that wait for a pack with room for them; a pack so mixes some that were made at different times."""

    def __init__(self, source: Iterable[T], count: int, sizes: Callable[[T], tuple[int, ...]], limits: tuple[int, ...]):
        self._source, self._count, self._sizes, self._limits = iter(source), count, sizes, limits
        self._pool: list[T] = []

    def fitting(self, *room: int) -> T | None:
        """The next document for which there is room of every kind. ValueError for one that no pack has room for."""
        for document in itertools.islice(self._source, self._count - len(self._pool)):
            if not self._fits(document, self._limits):
                sizes = " and ".join(map(str, self._sizes(document)))
                limits = " and ".join(map(str, self._limits))
                raise ValueError(f"a document of {sizes} tokens (and patches) does not fit into packs of {limits}")
            self._pool.append(document)
        at = next((at for at, document in enumerate(self._pool) if self._fits(document, room)), None)
        return None if at is None else self._pool.pop(at)

    def _fits(self, document: T, room: tuple[int, ...]) -> bool:
        return all(size <= left for size, left in zip(self._sizes(document), room, strict=True))


def packs(
    documents: Iterable[Example],
    size: int,
    *,
    pictures: Iterable[SeenExample] = (),
    patches: int = 0,
    merged: int = 4,
    waiting: int = 48,
) -> Iterator[Pack]:
    """Fill packs of `size` tokens: documents with pictures first, as long as they have room among `patches`, then text.

    Each is the next of up to `waiting` that fits. `merged` patches become one token. Ends with the text. Raises
    ValueError for a document longer than a pack.
    """
    texts = Waiting(documents, waiting, lambda one: (len(one.tokens),), (size,))
    seen = Waiting(pictures, waiting, lambda one: (len(one.tokens), len(one.patches)), (size, patches))
    while True:
        chosen_seen: list[SeenExample] = []
        chosen: list[Example] = []
        room, left = size, patches
        while patches and (shown := seen.fitting(room, left)) is not None:
            chosen_seen.append(shown)
            room, left = room - len(shown.tokens), left - len(shown.patches)
        while room > 0 and (document := texts.fitting(room)) is not None:
            chosen.append(document)
            room -= len(document.tokens)
        if not chosen:
            return
        yield joined([*chosen_seen, *chosen], size, patches, merged)


def joined(documents: Sequence[Example | SeenExample], size: int, patches: int, merged: int) -> Pack:
    """The pack of these documents; `patches` are as many as the pack will have, padding included."""
    tokens, classes = np.zeros(size, np.int32), np.zeros(size, np.uint8)
    starts, at = [], 0
    begins: list[int] = []
    for document in documents:
        end = at + len(document.tokens)
        tokens[at:end], classes[at:end] = document.tokens, document.classes
        starts.append(at)
        begins.append(at)
        at = end
    if at < size:
        starts.append(at)
    seen = [(b, one) for b, one in zip(begins, documents, strict=True) if isinstance(one, SeenExample)]
    cut = _patches(seen, patches, merged) if patches else None
    return Pack(tokens, classes, np.array([*starts, size], np.int32), cut)


def _patches(seen: Sequence[tuple[int, SeenExample]], size: int, merged: int) -> Patches:
    first = np.cumsum([0, *(len(one.patches) for _, one in seen)])
    places = np.zeros((size, 2), np.int16)
    rows: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for (begin, one), start in zip(seen, first, strict=False):
        places[start : start + len(one.patches)] = one.places
        rows.append(begin + one.image_start + np.arange(len(one.patches) // merged))
    colours = np.concatenate([_NONE, *(one.patches for _, one in seen)])
    starts = [*first[:-1], *range(first[-1], size, PADDING_RUN), size]
    return Patches(colours, places, np.array(starts, np.int32), np.concatenate(rows))


class Feed:
    """Packs from `processes` forked workers, without end; start it before the accelerator is touched.

    Worker i draws from its own stream of the seed, so the documents are the same for the same seed and number of
    processes, though their order depends on the machine. With `vision`, as many tokens of a pack as `picture_tokens`
    says are left to pictures. Their colours, tens of megabytes a pack, lie in memory that is shared with the workers:
    those of a pack are overwritten once the next pack is asked for.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        processes: int,
        pack_tokens: int,
        seed: int,
        settings: DataSettings | None = None,
        executed: Sequence[Executed] = (),
        vision: VisionConfig | None = None,
        picture_tokens: int = 0,
        pictures: PictureSettings | None = None,
        ahead: int = 4,
    ) -> None:
        context = multiprocessing.get_context("fork")
        merged = vision.merge_size**2 if vision is not None else 0
        self._queue: Queue[tuple[Pack, int]] = context.Queue(processes * ahead)
        self._free: Queue[int] = context.Queue()
        shape = (2 * processes + 2, picture_tokens * merged, 588)
        self._colours = np.frombuffer(mmap.mmap(-1, max(1, math.prod(shape))), np.uint8)[: math.prod(shape)]
        self._colours = self._colours.reshape(shape)
        for slot in range(len(self._colours)):
            self._free.put(slot)

        def work(stream: int) -> None:
            texts = examples(corpus, seed=stream, settings=settings, executed=executed)
            seen = picture_examples(vision, seed=stream, settings=pictures) if vision is not None else ()
            made = packs(texts, pack_tokens, pictures=seen, patches=picture_tokens * merged, merged=merged)
            for pack in made:
                slot = self._free.get()
                if pack.patches is not None:
                    self._colours[slot, : len(pack.patches.colours)] = pack.patches.colours
                    pack = dataclasses.replace(pack, patches=dataclasses.replace(pack.patches, colours=_NONE))
                self._queue.put((pack, slot))

        self._workers = [context.Process(target=work, args=(seed * 1000 + i,), daemon=True) for i in range(processes)]
        for worker in self._workers:
            worker.start()

    def __iter__(self) -> Iterator[Pack]:
        while True:
            try:
                pack, slot = self._queue.get(timeout=60)
            except queue.Empty:
                raise RuntimeError("no worker has made a pack for a minute; look at their errors above") from None
            if pack.patches is not None:
                patches = dataclasses.replace(pack.patches, colours=self._colours[slot])
                pack = dataclasses.replace(pack, patches=patches)
            yield pack
            self._free.put(slot)

    def close(self) -> None:
        for worker in self._workers:
            worker.terminate()
            worker.join()
