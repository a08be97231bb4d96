"""What each rank chose: the blocks of every call, in the order of the calls. Run as a module, a rank that records."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import m3_kernels.msa_decode.reference as decode
import m3_model.attention as attention
from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_runtime.graphs import CaptureFailed, Recording
from m3_runtime.parallel.follower import main
from m3_runtime.parallel.member import Member, ModelSpec


@contextlib.contextmanager
def recorded() -> Iterator[list[Tensor]]:
    """The blocks chosen within, [T, G, K] and in ascending order: their order is not part of any contract."""
    found: list[Tensor] = []
    places = [(attention, "choose_blocks"), (decode, "block_topk")]
    before = [getattr(module, name) for module, name in places]

    def watching(choose: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def chosen(*arguments: Any, **named: Any) -> Tensor:
            blocks = choose(*arguments, **named)
            found.append(blocks.sort(dim=-1).values)
            return blocks

        return chosen

    for (module, name), original in zip(places, before, strict=True):
        setattr(module, name, watching(original))
    try:
        yield found
    finally:
        for (module, name), original in zip(places, before, strict=True):
            setattr(module, name, original)


def cannot_capture(step: Callable[[], Tensor]) -> Recording:
    """A capture that fails, as one without memory for it."""
    raise CaptureFailed("no memory for a graph")


class RecordingMember(Member):
    """A member that gives away what it chose since it was asked last, and fails when it is told to."""

    chosen: list[Tensor]

    def hang(self) -> None:
        """Stay away from what comes next."""
        time.sleep(600)

    def load(self, spec: ModelSpec) -> tuple[Decoder, KVCache]:
        if spec.name == "too large":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        if spec.name == "cannot capture":
            self.capture = lambda decoder, cache, config: cannot_capture
        return super().load(spec)

    def dump(self, path: Path) -> None:
        unfinished = path.with_suffix(".tmp")
        torch.save(self.chosen, unfinished)
        os.replace(unfinished, path)
        self.chosen.clear()


if __name__ == "__main__":
    with recorded() as chosen:
        RecordingMember.chosen = chosen
        main(RecordingMember)
