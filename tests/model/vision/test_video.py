"""Videos: frames chosen by time, the pixels of the released processor, one line for what is no video."""

from __future__ import annotations

import io
import itertools
import struct
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.minimax_m3_vl.video_processing_minimax_m3_vl import MiniMaxM3VLVideoProcessor

from m3_model.vision.config import VisionConfig
from m3_model.vision.images import MediaError
from m3_model.vision.patches import patchify
from m3_model.vision.video import Sampling, read_video


def video(
    frames_FHW3: Sequence[np.ndarray[Any, Any]], times_ms: Sequence[int], codec: str = "ffv1", format: str = "matroska"
) -> bytes:
    """With ffv1, pixels come out as they went in; with another codec, frames are stored out of order."""
    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        stream = container.add_stream(codec, rate=30)
        stream.height, stream.width = frames_FHW3[0].shape[:2]
        stream.pix_fmt = "bgr0" if codec == "ffv1" else "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        stream.codec_context.max_b_frames = 0 if codec == "ffv1" else 2
        for pixels, time_ms in zip(frames_FHW3, times_ms, strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = time_ms, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def shades(values: Sequence[int], height: int = 56, width: int = 56) -> list[np.ndarray[Any, Any]]:
    return [np.full((height, width, 3), value, np.uint8) for value in values]


times = st.lists(st.floats(0.001, 3), min_size=1, max_size=200).map(lambda steps: np.cumsum([0, *steps]).tolist())


@given(times, st.sampled_from([0.2, 1.0, 5.0]))
def test_chosen_frames_keep_their_distance_and_leave_no_gap(times_s: list[float], fps: float) -> None:
    chosen = Sampling(fps=fps).choose(times_s)
    assert (chosen[0], chosen[-1]) == (0, len(times_s) - 1)
    assert chosen == sorted(set(chosen))
    for before, after in itertools.pairwise(chosen):
        if after != chosen[-1]:
            assert times_s[after] - times_s[before] >= 1 / fps - 2e-4
        assert all(times_s[between] - times_s[before] < 1 / fps for between in range(before + 1, after))


@given(times, st.integers(2, 20))
def test_of_too_many_frames_the_first_the_last_and_evenly_spaced_ones_stay(times_s: list[float], most: int) -> None:
    all_of_them = Sampling().choose(times_s)
    chosen = Sampling(max_frames=most).choose(times_s)
    assert len(chosen) == min(most, len(all_of_them))
    assert set(chosen) <= set(all_of_them)
    assert (chosen[0], chosen[-1]) == (all_of_them[0], all_of_them[-1])
    places = [all_of_them.index(i) for i in chosen]
    gaps = [after - before for before, after in itertools.pairwise(places[:-1])]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_one_frame_a_second_of_an_even_video_and_the_last() -> None:
    times_s = [i / 30 for i in range(130)]
    assert Sampling().choose(times_s) == [0, 30, 60, 90, 120, 129]
    assert Sampling(fps=2).choose(times_s) == [*range(0, 129, 15), 129]
    assert Sampling().choose([]) == []


@pytest.mark.parametrize("changes", [{"fps": 0.1}, {"fps": 6}, {"max_frames": 1}])
def test_rates_that_m3_does_not_know_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give"):
        Sampling(**changes)


def test_frames_of_an_uneven_video_come_with_their_times(released: VisionConfig) -> None:
    times_ms = [0, 400, 900, 1100, 1500, 2600, 2700, 4000, 4100]
    shape, frames = read_video(video(shades(range(0, 180, 20)), times_ms), released, Sampling())
    assert shape.size == (56, 56)
    assert shape.times_s == pytest.approx((0, 1.1, 2.6, 4.0, 4.1))
    assert shape.stamps_s(released) == pytest.approx((0, 2.6, 4.1))
    assert frames[:, 0, 0, 0].tolist() == [0, 60, 100, 140, 160, 160]


@pytest.mark.parametrize(("count", "height", "width"), [(9, 56, 84), (4, 48, 100), (3, 90, 160)])
def test_pixels_are_those_of_the_released_processor(
    count: int, height: int, width: int, noise: Callable[..., Any], released: VisionConfig
) -> None:
    pixels = [noise(height, width, 3, seed=i) for i in range(count)]
    clip = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    expected = MiniMaxM3VLVideoProcessor()(videos=[clip], return_tensors="pt", do_resize=True)
    shape, frames = read_video(video(pixels, [1000 * i for i in range(count)]), released, Sampling())
    assert shape.times_s == pytest.approx(range(count))
    times, rows, columns = len(frames) // 2, frames.shape[2] // 14, frames.shape[3] // 14
    segments = [[min(4, times - start), rows, columns] for start in range(0, times, 4)]
    assert expected["video_grid_thw"].tolist() == segments
    torch.testing.assert_close(patchify(frames, released), expected["pixel_values_videos"], atol=1e-5, rtol=0)


def test_a_common_codec_with_frames_out_of_order_is_read(released: VisionConfig) -> None:
    data = video(shades([i * 30 % 210 + 20 for i in range(40)]), [100 * i for i in range(40)], "mpeg4", "mp4")
    shape, frames = read_video(data, released, Sampling())
    assert shape.times_s == pytest.approx((0, 1, 2, 3, 3.9))
    seen = frames.float().mean((1, 2, 3)).tolist()
    assert seen == pytest.approx([20, 110, 200, 80, 140, 140], abs=12)


def test_a_video_of_a_turned_telephone_stands_upright(released: VisionConfig) -> None:
    lying = np.zeros((56, 112, 3), np.uint8)
    lying[:, :28] = 255
    data = bytearray(video([lying] * 3, [0, 500, 1000], "mpeg4", "mp4"))
    matrix = data.index(b"tkhd") + 44  # of the track's header: a quarter turn, clockwise
    data[matrix : matrix + 36] = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 56 << 16, 0, 1 << 30)
    shape, frames = read_video(bytes(data), released, Sampling())
    assert shape.size == (112, 56)
    assert frames[0, 0, :20].float().mean() > 230
    assert frames[0, 0, 36:].float().mean() < 25


SOUND = io.BytesIO()
with av.open(SOUND, "w", format="matroska") as container:
    stream = container.add_stream("pcm_s16le", rate=8000)
    sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
    sound.rate = 8000
    container.mux(stream.encode(sound))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "this is no video that can be read"),
        (b"<!doctype html>", "this is no video that can be read"),
        (SOUND.getvalue(), "the video has no picture, only sound"),
        (video(shades([5]), [0])[:300], "video"),
        (video(shades([5]), [0], format="nut"), "this is no video that can be read"),
        (b"ffconcat version 1.0\nfile other.mkv\n", "this is no video that can be read"),
    ],
    ids=["empty", "html", "sound", "cut off", "another container", "a list of files"],
)
def test_what_is_no_video_is_told_in_one_line(data: bytes, problem: str, released: VisionConfig) -> None:
    with pytest.raises(MediaError, match=problem) as caught:
        read_video(data, released, Sampling())
    assert "\n" not in str(caught.value)


def test_without_pyav_one_line_says_what_to_install(released: VisionConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MediaError, match=r"reading videos needs PyAV: pip install 'm3-agent\[video\]'"):
        read_video(b"", released, Sampling())
