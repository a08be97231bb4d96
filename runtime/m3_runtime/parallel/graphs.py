"""Captured decode steps on several ranks: all of them replay a step, or none does.

Ranks are told the same steps in the same order, so they capture the same ones at the same time. What may differ is
whether it succeeds, and on that they vote.
Not run so far: a capture with NCCL in it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.group import Group
from m3_runtime.config import EngineConfig
from m3_runtime.graphs import Capture, CaptureFailed, DecodeGraphs, Recording
from m3_runtime.parallel.collectives import Meter


def open_graphs(
    decoder: Decoder, cache: KVCache, config: EngineConfig, meter: Meter, capture: Capture | None
) -> DecodeGraphs | None:
    """Graphs, if every rank has a `capture`. All ranks call it."""
    group, device = decoder.parallel.ranks, cache.k_LPSGD.device
    if not _all_agree(group, capture is not None, device):
        return None
    assert capture is not None
    return DecodeGraphs(decoder, cache, config, CaptureTogether(capture, group, meter, device), forgiven=CaptureFailed)


class CaptureTogether:
    """A capture that fails on all ranks if it does on one, and whose replay counts as one operation of them.

    Only CaptureFailed is put to the vote. Another error comes while the others wait in an operation of the step, so it
    ends all ranks, as it does in any other step.
    """

    def __init__(self, capture: Capture, group: Group, meter: Meter, device: torch.device):
        self._capture, self._group, self._meter = capture, group, meter
        self._nothing = torch.empty(0, device=device)

    def __call__(self, step: Callable[[], Tensor]) -> Recording:
        recording, problem = None, "another rank cannot capture this step"
        try:
            recording = self._capture(step)
        except CaptureFailed as error:
            problem = str(error)
        if not _all_agree(self._group, recording is not None, self._nothing.device):
            raise CaptureFailed(problem)
        assert recording is not None
        replayed = recording

        def replay() -> Tensor:
            with self._meter.counted("replay", self._nothing):
                return replayed()

        return replay


def _all_agree(group: Group, mine: bool, device: torch.device) -> bool:
    return bool(group.gather(torch.tensor([int(mine)], device=device)).all())
