"""Images: the pixels of the released processor, the picture that a person sees, one line for what is no image."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from transformers.models.minimax_m3_vl.image_processing_minimax_m3_vl import MiniMaxM3VLImageProcessor

from m3_model.vision.config import VisionConfig
from m3_model.vision.images import MediaError, read_image
from m3_model.vision.patches import patchify
from m3_model.vision.resize import AreaRule

Noise = Callable[..., Any]


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def as_it_is(height: int, width: int, token_size: int) -> tuple[int, int]:
    """A rule for images whose sides are whole tokens."""
    return height, width


@pytest.mark.parametrize(
    ("height", "width"),
    [(28, 28), (40, 30), (56, 84), (100, 301), (13, 400), (224, 224), (672, 672), (640, 1131), (1080, 1920)],
)
def test_pixels_and_patches_are_those_of_the_released_processor(
    height: int, width: int, noise: Noise, released: VisionConfig
) -> None:
    image = Image.fromarray(noise(height, width, 3))
    expected = MiniMaxM3VLImageProcessor()(images=[image], return_tensors="pt")
    data = encoded(image)
    frames = read_image(data, released, AreaRule())
    grid = [1, frames.shape[2] // 14, frames.shape[3] // 14]
    assert expected["image_grid_thw"].tolist() == [grid]
    torch.testing.assert_close(patchify(frames, released), expected["pixel_values"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "PA", "L", "1", "RGB", "CMYK"])
def test_every_kind_of_pixel_looks_as_the_released_processor_sees_it(
    mode: str, noise: Noise, released: VisionConfig
) -> None:
    image = Image.fromarray(noise(56, 84, 4)).convert("RGBA")
    image = image.quantize(16) if mode in ("P", "PA") else image.convert(mode)
    if mode == "PA":
        image.info["transparency"] = 3
    data = encoded(image, "JPEG" if mode == "CMYK" else "PNG", **({"quality": 100} if mode == "CMYK" else {}))
    expected = MiniMaxM3VLImageProcessor()(images=[Image.open(io.BytesIO(data))], return_tensors="pt")
    frames = read_image(data, released, as_it_is)
    torch.testing.assert_close(patchify(frames, released), expected["pixel_values"], atol=1e-5, rtol=0)


def test_what_is_transparent_becomes_white(released: VisionConfig) -> None:
    clear = Image.new("RGBA", (28, 28), (255, 0, 0, 0))
    marked = Image.new("RGB", (28, 28), (255, 0, 0))
    for data in (encoded(clear), encoded(marked, transparency=(255, 0, 0)), encoded(clear, "WEBP", lossless=True)):
        assert read_image(data, released, as_it_is).eq(255).all()


def test_16_bit_grey_keeps_its_shades(released: VisionConfig) -> None:
    grey = Image.fromarray(np.linspace(0, 65535, 28 * 28).reshape(28, 28).astype(np.uint16))
    shades = read_image(encoded(grey), released, as_it_is)[0, 0]
    assert shades.flatten().tolist() == [int(v) >> 8 for v in np.asarray(grey).flatten()]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_stands_upright(orientation: int, released: VisionConfig) -> None:
    """The corner that EXIF calls the top left has another colour."""
    image = Image.new("RGB", (56, 28), "blue")
    image.paste("red", (0, 0, 14, 14))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    data = encoded(image, exif=exif)
    red_3HW = read_image(data, released, as_it_is)[0]
    assert red_3HW.shape[1:] == ((56, 28) if orientation >= 5 else (28, 56))
    rows, columns = torch.nonzero(red_3HW[0] == 255, as_tuple=True)
    top, left = int(rows.min()) == 0, int(columns.min()) == 0
    assert (top, left) == (orientation in (1, 2, 5, 6), orientation in (1, 4, 5, 8))


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "GIF", "BMP"])
def test_the_formats_of_screenshots_and_photographs_are_read(format: str, noise: Noise, released: VisionConfig) -> None:
    image = Image.fromarray(noise(56, 56, 3)).resize((112, 84), Image.Resampling.BICUBIC)
    frames = read_image(encoded(image, format), released, as_it_is)
    assert frames.shape == (2, 3, 84, 112)
    seen = frames[0].permute(1, 2, 0).numpy().astype(int)
    assert np.abs(seen - np.asarray(image).astype(int)).mean() < 20


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_of(width: int, height: int) -> bytes:
    """A PNG whose header claims a size that its few bytes of pixels do not fill."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


NOISY = encoded(Image.effect_noise((120, 120), 50))
FRAMES = [Image.new("L", (30, 30), shade) for shade in (0, 200)]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "this is no image in a known format; give PNG, JPEG, WEBP, GIF, BMP"),
        (b"<!doctype html><html>Not found</html>", "no image in a known format"),
        (encoded(Image.new("L", (30, 30)), "TIFF"), "no image in a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "no image in a known format"),
        (NOISY[:5000], "the image is damaged"),
        (NOISY[:200] + bytes(200) + NOISY[400:], "the image is damaged"),
        (png_of(9000, 8000), "the image has 9000 x 8000 pixels; give one of at most 64,000,000"),
        (png_of(200_000, 200_000), "the image is too large; give one of at most 64,000,000 pixels"),
        (encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]), "the image is animated"),
        (encoded(FRAMES[0], "PNG", save_all=True, append_images=FRAMES[1:]), "the image is animated"),
    ],
    ids=["empty", "html", "tiff", "eps", "cut off", "torn", "large", "bomb", "gif", "apng"],
)
def test_what_is_no_image_is_told_in_one_line(data: bytes, problem: str, released: VisionConfig) -> None:
    with pytest.raises(MediaError, match=problem) as caught:
        read_image(data, released, as_it_is)
    assert "\n" not in str(caught.value)
