"""Runs as a program of its own: an encoded image from stdin, a safe one to stdout, with one line of JSON before it.

Its only argument is JSON: background, longest_side, max_pixels, memory_bytes, output_bytes, time_s. The line holds
media_type, width, height, format, suffixes and notes; or, alone, the problem.
"""

import io
import json
import os
import resource
import sys
from typing import Any

BICUBIC = 3
ORIENTATION = 0x0112
"""The EXIF field."""
MOST_UNEQUAL = 100
"""A picture this many times as long as it is wide is refused; models refuse one at 200."""
MEDIA = {
    "PNG": [".png", ".apng"],
    "JPEG": [".jpg", ".jpeg", ".jpe", ".jfif"],
    "WEBP": [".webp"],
    "GIF": [".gif"],
    "BMP": [".bmp", ".dib"],
}
MAGIC = (b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"GIF8", b"BM")
"""How such files begin."""
DAMAGED = "the image is damaged or cut off"
NAMES = "PNG, JPEG, WebP, GIF or BMP"
OTHERS = {
    b"<svg": "an SVG is a drawing for a browser; give a screenshot of it",
    b"<html": "it is a web page, not an image; give a screenshot of it",
    b"<!doctype html": "it is a web page, not an image; give a screenshot of it",
    b"%pdf-": "it is a PDF, not an image; give a screenshot of the page",
    b"ftyphei": f"it is a HEIC image, which is not read; save it as {NAMES}",
    b"ftypavif": f"it is an AVIF image, which is not read; save it as {NAMES}",
}
"""What people take for an image, by what stands near its beginning."""


class Problem(Exception):
    """The image is refused; the text says why and what to do, without a full stop."""


def main() -> None:
    limits = json.loads(sys.argv[1])
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, limits["time_s"]),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["output_bytes"]),
    ):
        resource.setrlimit(kind, (value, value))
    try:
        head, encoded = read(sys.stdin.buffer.read(), limits)
    except Problem as problem:
        head, encoded = {"problem": str(problem)}, b""
    except MemoryError:
        head, encoded = {"problem": "it needs too much memory; give a smaller one"}, b""
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + encoded)
    sys.stdout.buffer.flush()
    os._exit(0)  # nothing of the image is needed any more, whatever state the decoder left


def read(data: bytes, limits: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The head and the bytes of the picture. Errors: Problem, MemoryError."""
    from PIL import Image, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # the bound is ours, below
    if size := webp_size(data):  # opening one makes room for all its pixels
        check_size(*size, max_pixels=limits["max_pixels"])
    try:
        with Image.open(io.BytesIO(data), formats=list(MEDIA)) as image:
            check_size(*image.size, max_pixels=limits["max_pixels"])
            return convert(image, limits)
    except (Problem, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise Problem(what_it_is(data)) from error
    except Exception as error:  # the edge to the decoders, which raise nearly anything for damaged data
        raise Problem(f"{DAMAGED} ({one_line(error)}); take it again") from error


def check_size(width: int, height: int, *, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise Problem(f"it has {width} × {height} pixels; give one of at most {max_pixels:,}")
    if min(width, height) < 1 or max(width, height) > MOST_UNEQUAL * min(width, height):
        raise Problem(f"it has {width} × {height} pixels; one side may be at most {MOST_UNEQUAL} times the other")


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Width and height in the header of a WebP; None for anything else."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    match data[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None


def convert(image: Any, limits: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Decode the image. It becomes small before anything else is made of it."""
    size, kind, longest = image.size, image.format, limits["longest_side"]
    notes = ["animated: this is its first frame"] if getattr(image, "is_animated", False) else []
    image.draft(None, (longest, longest))  # a JPEG is decoded at a fraction of its size
    image = to_colours(image)
    if max(size) > longest:
        image = image.reduce(max(1, max(image.size) // longest))  # fast, and the rest of the way is short
        scale = longest / max(size)
        image = image.resize([max(1, round(side * scale)) for side in size], resample=BICUBIC)
        notes.append(f"made smaller, from {size[0]} × {size[1]}")
    image = upright(image, notes)
    if image.mode == "RGBA":
        image = on_background(image, tuple(limits["background"]), notes)
    encoded = io.BytesIO()
    if kind == "JPEG":
        image.save(encoded, "JPEG", quality=95, subsampling=0, exif=b"")
    else:
        image.info.clear()  # else text and colour profiles go along
        image.save(encoded, "PNG", compress_level=1)
    head = {
        "media_type": "image/jpeg" if kind == "JPEG" else "image/png",
        "width": image.width,
        "height": image.height,
        "format": kind,
        "suffixes": MEDIA[kind],
        "notes": notes,
    }
    return head, encoded.getvalue()


def to_colours(image: Any) -> Any:
    """The image in RGB, or in RGBA where something in it may be transparent; 8 bits a colour."""
    if image.mode.startswith("I"):  # 16-bit grey, of which a plain conversion would cut off all but the darkest
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def upright(image: Any, notes: list[str]) -> Any:
    """The image turned as its EXIF data asks; data that cannot be read asks nothing."""
    from PIL import ImageOps

    try:
        if image.getexif().get(ORIENTATION, 1) in range(2, 9):
            image = ImageOps.exif_transpose(image)
            notes.append("turned upright")
    except Exception:  # the edge to the reader of EXIF data
        notes.append("its EXIF data cannot be read")
    return image


def on_background(image: Any, background: tuple[int, ...], notes: list[str]) -> Any:
    from PIL import Image

    if image.getchannel("A").getextrema()[0] < 255:
        notes.append("what is transparent shows the background")
    opaque = Image.new("RGBA", image.size, (*background, 255))
    return Image.alpha_composite(opaque, image).convert("RGB")


def what_it_is(data: bytes) -> str:
    if data.startswith(MAGIC):
        return f"{DAMAGED}; take it again"
    head = data[:1024].lower()
    for mark, text in OTHERS.items():
        if mark in head:
            return text
    return f"it is no image in a known format; give {NAMES}"


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


if __name__ == "__main__":
    main()
