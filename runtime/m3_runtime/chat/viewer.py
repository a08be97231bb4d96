"""Images and videos as they stand in a prompt: how many tokens each takes, and where its pixels come from."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import torch

from m3_model.vision.config import VisionConfig
from m3_model.vision.images import read_image
from m3_model.vision.resize import ResizeRule, num_tokens
from m3_model.vision.video import Sampling, VideoShape, read_video
from m3_runtime.chat.media import Kind, Media
from m3_runtime.visuals import Visual

_REMEMBERED = 1024
"""Shapes of so many images and videos; the next turn of a conversation shows the same again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown:
    """An image or a video in a prompt: an image is one run of equal tokens, a video one for each patch in time."""

    kind: Kind
    key: bytes
    """A hash of its content and of the shape in which it is read."""
    stamps: tuple[str, ...]
    """What stands before each run: the time of its frames, nothing for an image."""
    run_tokens: int
    segment_runs: int
    """Runs of a video that are read together."""
    frames: Callable[[], torch.Tensor]
    """All its frames, as m3_model.vision gives them."""


def place(shown: Sequence[Shown], runs: Sequence[range]) -> tuple[Visual, ...]:
    """What the model is to read in the runs of a prompt, which are those of `shown` in order."""
    rest = iter(runs)
    return tuple(visual for one in shown for visual in _visuals(one, rest))


class Viewer:
    """Reads images and videos for one model."""

    def __init__(self, config: VisionConfig, rule: ResizeRule, sampling: Sampling):
        self.config, self._rule, self._sampling = config, rule, sampling
        self._shapes: OrderedDict[tuple[Kind, str], VideoShape] = OrderedDict()
        """Of what was decoded before and is known to be whole. An image is a video of one frame."""

    def show(self, media: Media) -> Shown:
        """How it stands in a prompt. What was shown before is decoded only if its pixels are needed.

        Errors: ValueError that names its place and what is wrong with it.
        """
        known = self._shapes.get((media.kind, media.digest))
        read = functools.cache(functools.partial(self._read, media))
        try:
            shape = known or read()[0]
        except ValueError as error:
            raise ValueError(f"{media.where}: {error}") from error
        self._remember(media, shape)
        written = (f"]<]{time_s:.1f} seconds[>[" for time_s in shape.stamps_s(self.config))
        return Shown(
            kind=media.kind,
            key=hashlib.sha256(f"{media.kind} {media.digest} {shape}".encode()).digest(),
            stamps=tuple(written) if media.kind == "video" else ("",),
            run_tokens=num_tokens(*shape.size, self.config),
            segment_runs=self.config.segment_size,
            frames=lambda: read()[1],
        )

    def _read(self, media: Media) -> tuple[VideoShape, torch.Tensor]:
        if media.kind == "video":
            return read_video(media.data, self.config, self._sampling)
        frames = read_image(media.data, self.config, self._rule)
        return VideoShape(size=(frames.shape[2], frames.shape[3]), times_s=(0.0,)), frames

    def _remember(self, media: Media, shape: VideoShape) -> None:
        self._shapes[media.kind, media.digest] = shape
        self._shapes.move_to_end((media.kind, media.digest))
        while len(self._shapes) > _REMEMBERED:
            self._shapes.popitem(last=False)


def _visuals(shown: Shown, runs: Iterator[range]) -> Iterator[Visual]:
    """One for an image, and one for each segment of a video."""
    for first in range(0, len(shown.stamps), shown.segment_runs):
        end = min(first + shown.segment_runs, len(shown.stamps))
        yield Visual(
            key=hashlib.sha256(b"%s %d" % (shown.key, first)).digest(),
            runs=tuple(itertools.islice(runs, end - first)),
            frames=functools.partial(_segment, shown, first, end),
        )


def _segment(shown: Shown, first: int, end: int) -> torch.Tensor:
    frames = shown.frames()
    per_run = len(frames) // len(shown.stamps)
    return frames[first * per_run : end * per_run]
