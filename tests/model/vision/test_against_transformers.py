"""The image side equals that of transformers' minimax_m3_vl, which we did not write: tower, tokens and logits."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image
from transformers.models.minimax_m3_vl.image_processing_minimax_m3_vl import MiniMaxM3VLImageProcessor

from m3_model.cache import KVCache
from m3_model.inputs import ModelInputs, VisualInputs
from m3_model.vision.config import VisionConfig
from m3_model.vision.images import read_image
from m3_model.vision.patches import patchify, positions
from m3_model.vision.resize import AreaRule
from m3_model.vision.tower import Rotation

TOLERANCE = 1e-4
GRIDS = [(1, 1, 1), (1, 1, 5), (1, 7, 1), (1, 4, 6), (3, 2, 3), (4, 2, 1), (5, 2, 3), (9, 1, 2)]
"""Patches in time, and rows and columns of tokens."""


def frames(count: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 3, height, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_size": 80, "num_heads": 1, "intermediate_size": 32},
        {"hidden_size": 24, "num_heads": 4, "num_layers": 1, "projector_size": 16},
        {"rope_theta": 300.0, "layer_norm_eps": 1e-2, "num_layers": 3},
        {"patch_size": 4, "merge_size": 3},
        {"patch_size": 6, "temporal_patch_size": 1, "segment_size": 2},
    ],
    ids=lambda changes: ",".join(f"{key}={value}" for key, value in changes.items()),
)
def test_images_and_videos_of_many_sizes_agree(changes: dict[str, Any], make_vision_oracle: Callable[..., Any]) -> None:
    oracle = make_vision_oracle(**changes)
    T, side, patch = oracle.vision.temporal_patch_size, oracle.vision.token_size, oracle.vision.patch_size
    for times, rows, columns in GRIDS:
        pixels = frames(times * T, rows * side, columns * side)
        grid = (times, rows * side // patch, columns * side // patch)
        states, tokens = oracle.features(patchify(pixels, oracle.vision), grid)
        torch.testing.assert_close(oracle.encoder(pixels), tokens, atol=TOLERANCE, rtol=0)
        if times <= oracle.vision.segment_size:
            torch.testing.assert_close(oracle.encoder.patch_states(pixels), states, atol=TOLERANCE, rtol=0)


def test_the_bytes_of_an_image_become_the_same_tokens_all_the_way(
    make_vision_oracle: Callable[..., Any], noise: Callable[..., Any]
) -> None:
    """Their processor and their tower, ours and ours; up to the most tokens that the area rule gives."""
    oracle = make_vision_oracle(num_layers=1)
    for height, width in ((28, 28), (40, 30), (13, 400), (100, 301), (300, 100), (640, 1131)):
        image = Image.fromarray(noise(height, width, 3, seed=height))
        theirs = MiniMaxM3VLImageProcessor()(images=[image], return_tensors="pt")
        _, expected = oracle.features(theirs["pixel_values"], theirs["image_grid_thw"][0].tolist())
        file = io.BytesIO()
        image.save(file, "PNG")
        found = oracle.encoder(read_image(file.getvalue(), oracle.vision, AreaRule()))
        assert len(found) == len(expected) <= 576
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_the_tokens_tell_where_and_when_something_is(make_vision_oracle: Callable[..., Any]) -> None:
    """Without positions or with another order of patches, equal pixels in another place would look the same."""
    encoder = make_vision_oracle().encoder
    pixels = frames(4, 28, 56)
    for moved in (pixels.flip(0).roll(1, 0), pixels.roll(28, 3), pixels.roll(14, 2)):
        assert (encoder(pixels) - encoder(moved)).abs().max() > 100 * TOLERANCE


def test_a_video_is_its_segments_each_by_itself(make_vision_oracle: Callable[..., Any]) -> None:
    encoder = make_vision_oracle().encoder
    pixels = frames(20, 28, 28)
    parts = [encoder(part) for part in torch.split(pixels, 8)]
    torch.testing.assert_close(encoder(pixels), torch.cat(parts), atol=0, rtol=0)


@pytest.mark.parametrize("sizes", [[104], [16, 16, 40, 1, 1, 30], [1] * 104], ids=["whole", "chunks", "one by one"])
def test_logits_of_a_prompt_with_images_and_a_video_agree(
    sizes: list[int], make_vision_oracle: Callable[..., Any], run: Any
) -> None:
    oracle = make_vision_oracle()
    config, vision = oracle.config, oracle.vision
    images = [frames(2, 84, 112, seed=1), frames(2, 28, 140, seed=2)]
    video = torch.cat([frames(9, 56, 56, seed=3), frames(9, 56, 56, seed=3)[-1:]])
    text = run.tokens(67, config)
    text = [token for token in text if token not in (vision.image_token_id, vision.video_token_id)]
    ids = [*text[:20], *[vision.image_token_id] * 12, *text[20:23], *[vision.image_token_id] * 5, *text[23:30]]
    for _ in range(5):
        ids += [*text[30:33], *[vision.video_token_id] * 4]
    ids += text[33:][: 104 - len(ids)]
    video_grid = oracle.segments((5, 4, 4))
    with torch.inference_mode():
        expected = oracle.theirs(
            input_ids=torch.tensor([ids]),
            pixel_values=torch.cat([patchify(image, vision) for image in images]),
            image_grid_thw=torch.tensor([[1, 6, 8], [1, 2, 10]]),
            pixel_values_videos=patchify(video, vision),
            video_grid_thw=torch.tensor(video_grid),
            use_cache=False,
        ).logits[0]
    marks = (vision.image_token_id, vision.video_token_id)
    rows = [row for row, token in enumerate(ids) if token in marks]
    vectors = torch.cat([oracle.encoder(pixels) for pixels in (*images, video)])
    pages = list(range(-(-len(ids) // config.block_size)))
    cache = KVCache.zeros(config, len(pages))
    found, start = [], 0
    for size in sizes:
        end = start + size
        part = [i for i, row in enumerate(rows) if start <= row < end]
        visual = None
        if part:
            visual = VisualInputs(
                rows_N=torch.tensor([rows[i] - start for i in part]), vectors_NC=vectors[part[0] : part[-1] + 1]
            )
        inputs = ModelInputs.build(
            [ids[start:end]], [start], [pages], page_size=config.block_size, output_rows=range(size), visual=visual
        )
        found.append(oracle.decoder(inputs, cache))
        start = end
    torch.testing.assert_close(torch.cat(found), expected, atol=TOLERANCE, rtol=0)


def test_the_released_frequencies_are_the_published_ones(released: VisionConfig) -> None:
    """Three axes of 13 pairs each; the last two of 80 dimensions are not rotated."""
    rotation = Rotation.at(torch.eye(3, dtype=torch.int64), released)
    angles_3A = torch.atan2(rotation.sin_PA, rotation.cos_PA)
    assert angles_3A.shape == (3, 39)
    for axis in range(3):
        own = angles_3A[axis, 13 * axis : 13 * axis + 13]
        assert own[[0, 1, 12]].tolist() == pytest.approx([1.0, 0.49238826, 2.0309176e-4], rel=1e-6)
        assert angles_3A[axis].count_nonzero() == 13
    turned = rotation(torch.ones(3, 1, 80))
    assert turned[:, :, 78:].eq(1).all()


def test_places_follow_the_order_of_the_patches(released: VisionConfig) -> None:
    found = positions(frames(4, 28, 56), released).tolist()
    square = [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert found == [[t, r, c + 2 * s] for t in (0, 1) for s in (0, 1) for r, c in square]


def test_frames_of_another_size_are_refused(make_vision_oracle: Callable[..., Any]) -> None:
    encoder = make_vision_oracle().encoder
    for shape in ((3, 28, 28), (2, 28, 30), (2, 14, 28), (0, 28, 28)):
        with pytest.raises(ValueError, match="give a multiple of 2, of multiples of 28 pixels"):
            encoder(frames(*shape))
