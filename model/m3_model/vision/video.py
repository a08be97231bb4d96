"""The bytes of a video to frames and their times. Decoding needs PyAV, the extra `video`.

Frames are chosen by time, as for the training of M3: the first, then each that comes a second or more after the one
before, and the last.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from m3_model.vision.config import VisionConfig
from m3_model.vision.images import MAX_PIXELS, MediaError, resize
from m3_model.vision.resize import AreaRule

if TYPE_CHECKING:
    from av.container import InputContainer

CONTAINERS = ("mov", "matroska", "avi", "mpegts", "gif")
"""Families of files that are opened, by FFmpeg's names. Others, such as playlists, may lead to other files."""
MAX_FRAME_PIXELS = 602_112
MAX_TOTAL_PIXELS = 301_056_000
"""Of all frames together, after resizing."""
_EARLY_S = 1e-4
"""How much too early a frame may come: times are rounded in the file."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How many frames of a video are looked at. Errors: ValueError for a rate that M3 was not trained with."""

    fps: float = 1.0
    """Frames a second."""
    max_frames: int = 768

    def __post_init__(self) -> None:
        if not 0.2 <= self.fps <= 5:
            raise ValueError(f"fps is {self.fps}; give a number from 0.2 to 5")
        if self.max_frames < 2:
            raise ValueError(f"max_frames is {self.max_frames}; give at least 2")

    def choose(self, times_s: Sequence[float]) -> list[int]:
        """Indices of the frames to look at, given the times of all frames in order."""
        if not times_s:
            return []
        chosen = [0]
        for index, time_s in enumerate(times_s):
            if time_s >= times_s[chosen[-1]] + 1 / self.fps - _EARLY_S:
                chosen.append(index)
        if chosen[-1] != len(times_s) - 1:
            chosen.append(len(times_s) - 1)
        if len(chosen) > self.max_frames:
            step = len(chosen) / (self.max_frames - 1)
            chosen = [*(chosen[int(i * step)] for i in range(self.max_frames - 1)), chosen[-1]]
        return chosen


@dataclass(frozen=True, kw_only=True)
class VideoShape:
    """What the prompt needs to know of a video: `size` (height, width) of its resized frames, and their times."""

    size: tuple[int, int]
    times_s: tuple[float, ...]
    """Of each frame that is looked at, in seconds from the first."""

    def stamps_s(self, config: VisionConfig) -> tuple[float, ...]:
        """The time of the first frame of each patch in time."""
        return self.times_s[:: config.temporal_patch_size]


def read_video(data: bytes, config: VisionConfig, sampling: Sampling) -> tuple[VideoShape, Tensor]:
    """The chosen frames, uint8 [F, 3, H, W]; the last is repeated until F is a multiple of temporal_patch_size.

    Errors: MediaError, also where PyAV is not installed.
    """
    with _opened(data) as container:  # the times first, without decoding, so that only chosen frames are held
        ticks = sorted(packet.pts for packet in container.demux(video=0) if packet.pts is not None)
        unit_s = float(container.streams.video[0].time_base or 0)
    chosen = [ticks[i] for i in sampling.choose([(tick - ticks[0]) * unit_s for tick in ticks])]
    rule = AreaRule(max_pixels=min(MAX_FRAME_PIXELS, MAX_TOTAL_PIXELS // max(len(chosen), 1)))
    wanted = set(chosen)
    size: tuple[int, int] | None = None
    frames: list[Tensor] = []
    times_s: list[float] = []
    with _opened(data) as container:
        for frame in container.decode(video=0):
            if frame.pts is None or frame.pts not in wanted:
                continue
            wanted.remove(frame.pts)
            upright_HW3 = np.rot90(frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False), frame.rotation // 90)
            size = size or rule(upright_HW3.shape[0], upright_HW3.shape[1], config.token_size)
            frames.append(resize(upright_HW3, size))
            times_s.append((frame.pts - chosen[0]) * unit_s)
    if size is None:
        raise MediaError("the video has no frames with a time")
    shape = VideoShape(size=size, times_s=tuple(times_s))
    frames += [frames[-1]] * (-len(frames) % config.temporal_patch_size)
    return shape, torch.stack(frames)


@contextmanager
def _opened(data: bytes) -> Iterator[InputContainer]:
    """The video. Whatever goes wrong with it inside becomes a MediaError."""
    try:
        import av
    except ImportError as error:
        raise MediaError("reading videos needs PyAV: pip install 'm3-agent[video]'") from error
    try:
        with av.open(io.BytesIO(data), mode="r", options={"format_whitelist": ",".join(CONTAINERS)}) as container:
            if not container.streams.video:
                raise MediaError("the video has no picture, only sound")
            width, height = container.streams.video[0].width, container.streams.video[0].height
            if width * height > MAX_PIXELS:
                raise MediaError(f"the video has {width} x {height} pixels; give one of at most {MAX_PIXELS:,}")
            yield container
    except MediaError:
        raise
    except Exception as error:  # the edge to the decoders, which raise nearly anything for damaged data
        raise MediaError(f"this is no video that can be read: {error}") from error
