"""Packs of documents for the trainer, made by forked processes."""

from __future__ import annotations

import dataclasses
import multiprocessing
import queue
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.queues import Queue

import numpy as np
from numpy.typing import NDArray

from training.conversations import DataSettings, Example, examples
from training.corpus import Corpus
from training.executed import Executed


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


def packs(documents: Iterable[Example], size: int, *, waiting: int = 48) -> Iterator[Pack]:
    """Fill packs of `size` tokens, choosing among up to `waiting` documents the next that fits.

    A pack so mixes documents that were made at different times. Raises ValueError for a document longer than a pack.
    """
    source = iter(documents)
    pool: list[Example] = []
    while True:
        chosen: list[Example] = []
        room = size
        while room > 0:
            while len(pool) < waiting:
                document = next(source, None)
                if document is None:
                    break
                if len(document.tokens) > size:
                    raise ValueError(f"a document of {len(document.tokens)} tokens does not fit into packs of {size}")
                pool.append(document)
            at = next((i for i, d in enumerate(pool) if len(d.tokens) <= room), None)
            if at is None:
                break
            chosen.append(pool.pop(at))
            room -= len(chosen[-1].tokens)
        if not chosen:
            return
        yield _joined(chosen, size)


def _joined(documents: list[Example], size: int) -> Pack:
    tokens, classes = np.zeros(size, np.int32), np.zeros(size, np.uint8)
    starts, at = [], 0
    for document in documents:
        end = at + len(document.tokens)
        tokens[at:end], classes[at:end] = document.tokens, document.classes
        starts.append(at)
        at = end
    if at < size:
        starts.append(at)
    return Pack(tokens, classes, np.array([*starts, size], np.int32))


class Feed:
    """Packs from `processes` forked workers, without end; start it before the accelerator is touched.

    Worker i draws from its own stream of the seed, so the documents are the same for the same seed and number of
    processes, though their order depends on the machine.
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
        ahead: int = 4,
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._queue: Queue[Pack] = context.Queue(processes * ahead)
        self._workers = [
            context.Process(
                target=_work,
                args=(corpus, seed * 1000 + i, settings, executed, pack_tokens, self._queue),
                daemon=True,
            )
            for i in range(processes)
        ]
        for worker in self._workers:
            worker.start()

    def __iter__(self) -> Iterator[Pack]:
        while True:
            try:
                yield self._queue.get(timeout=60)
            except queue.Empty:
                raise RuntimeError("no worker has made a pack for a minute; look at their errors above") from None

    def close(self) -> None:
        for worker in self._workers:
            worker.terminate()
            worker.join()


def _work(
    corpus: Corpus,
    seed: int,
    settings: DataSettings | None,
    executed: Sequence[Executed],
    pack_tokens: int,
    out: Queue[Pack],
) -> None:
    for pack in packs(examples(corpus, seed=seed, settings=settings, executed=executed), pack_tokens):
        out.put(pack)
