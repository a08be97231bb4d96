"""Images and videos in a prompt: which tokens stand for them, and the vectors that the model reads in their place.

The tokens of two pictures of one size are the same. Whatever tells prompts apart by their tokens must therefore go by
`token_keys`, in which the content of a picture stands for each of its tokens.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import torch

TokenKey = int | bytes
"""The id of a token, or the key of the visual that it is a part of."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Visual:
    """An image, or a segment of a video: what the vision encoder reads at once."""

    key: bytes
    """A hash of everything that its vectors depend on beside the model: 32 bytes."""
    runs: tuple[range, ...]
    """The places of its tokens in the prompt, in order; for each patch in time one run."""
    frames: Callable[[], torch.Tensor]
    """Its resized frames, uint8 [F, 3, H, W]; asked for only where its vectors have to be computed."""

    def between(self, start: int, end: int) -> Iterator[tuple[int, range]]:
        """The places of its tokens from `start` to `end`, and before each run of them the index of its first vector."""
        index = 0
        for run in self.runs:
            first, last = max(run.start, start), min(run.stop, end)
            if first < last:
                yield index + first - run.start, range(first, last)
            index += len(run)


def token_keys(token_ids: Sequence[int], visuals: Sequence[Visual]) -> list[TokenKey]:
    """The tokens of the beginning of a prompt, such that equal keys mean equal content."""
    keys: list[TokenKey] = list(token_ids)
    for visual in visuals:
        for _, places in visual.between(0, len(keys)):
            keys[places.start : places.stop] = [visual.key] * len(places)
    return keys


def encoding_rank(visual: Visual, num_ranks: int) -> int:
    """Which of several ranks encodes it: all have the image side, and each image is read by one of them."""
    return int.from_bytes(visual.key[:4], "big") % num_ranks


class Encodings:
    """The vectors of the visuals that were read last, about `max_bytes` of them, by content."""

    def __init__(self, encode: Callable[[torch.Tensor], torch.Tensor], max_bytes: int):
        self._encode, self._max_bytes = encode, max_bytes
        self._kept: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self.num_bytes = 0

    def get(self, visual: Visual) -> torch.Tensor:
        """The vectors of all its tokens, [N, C]; computed if they are not kept."""
        vectors_NC = self._kept.get(visual.key)
        if vectors_NC is None:
            vectors_NC = self._kept[visual.key] = self._encode(visual.frames())
            self.num_bytes += vectors_NC.nbytes
        self._kept.move_to_end(visual.key)
        while self.num_bytes > self._max_bytes and len(self._kept) > 1:
            _, dropped_NC = self._kept.popitem(last=False)
            self.num_bytes -= dropped_NC.nbytes
        return vectors_NC
