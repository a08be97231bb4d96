"""The bytes of an image to the frames that the vision encoder reads.

What a file says about itself is not believed: only formats that screenshots and photographs come in are decoded, and
not before the size in the header is known to be harmless.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional as F

from m3_model.vision.config import VisionConfig
from m3_model.vision.resize import ResizeRule

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 64_000_000
"""Of an image before it is resized. A screen of 8K has 33 million."""


class MediaError(ValueError):
    """An image or video that cannot be read. The message says what is wrong with it."""


def read_image(data: bytes, config: VisionConfig, rule: ResizeRule) -> Tensor:
    """The image as equal frames, uint8 [F, 3, H, W]: temporal_patch_size of them, in the size that the rule gives.

    It is turned as its EXIF data asks, and what is transparent becomes white. Errors: MediaError, and the rule's
    ValueError.
    """
    with _opened(data) as image:
        pixels_HW3 = np.asarray(_to_rgb(ImageOps.exif_transpose(image)))
    size = rule(pixels_HW3.shape[0], pixels_HW3.shape[1], config.token_size)
    return resize(pixels_HW3, size)[None].expand(config.temporal_patch_size, -1, -1, -1)


def resize(pixels_HW3: npt.NDArray[np.uint8], size: tuple[int, int]) -> Tensor:
    """Bicubic and antialiased, as in the released image processor: uint8 [3, H, W]."""
    pixels_3HW = torch.from_numpy(np.array(pixels_HW3)).permute(2, 0, 1).contiguous()
    if pixels_3HW.shape[1:] == size:
        return pixels_3HW
    return F.interpolate(pixels_3HW[None], size=size, mode="bicubic", antialias=True)[0]


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    """The image, of which only the header is read. Whatever goes wrong with it inside becomes a MediaError."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise MediaError(f"the image has {width} x {height} pixels; give one of at most {MAX_PIXELS:,}")
            if getattr(image, "is_animated", False):
                raise MediaError("the image is animated; give one frame of it, or a video")
            yield image
    except MediaError:
        raise
    except Image.DecompressionBombError as error:
        raise MediaError(f"the image is too large; give one of at most {MAX_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        raise MediaError(f"this is no image in a known format; give {', '.join(FORMATS)}") from error
    except Exception as error:  # the edge to the decoders, which raise nearly anything for damaged data
        raise MediaError(f"the image is damaged: {error}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey, of which a plain conversion would cut off all but the darkest
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")
