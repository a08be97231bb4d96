"""Images that break programs, generated: what a person may drop, and what somebody may send them."""

from __future__ import annotations

import dataclasses
import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from PIL import Image, PngImagePlugin

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """An image, and what is made of it: words of the error; or the size, a pixel, and words of the notes."""

    name: str
    data: bytes
    error: str = ""
    size: tuple[int, int] = (40, 20)
    pixels: dict[tuple[int, int], tuple[int, int, int]] = dataclasses.field(default_factory=dict)
    note: str = ""


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def plain() -> Image.Image:
    """40 x 20, red with a blue corner in the upper left."""
    image = Image.new("RGB", (40, 20), RED)
    image.paste(BLUE, (0, 0, 10, 10))
    return image


def noise(width: int, height: int) -> Image.Image:
    return Image.effect_noise((width, height), 60).convert("RGB")


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int, height: int, pixels: bytes, *, depth: int = 8, colour: int = 2, more: bytes = b"") -> bytes:
    """A PNG by hand; the header says what it is told to say."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = zlib.compress(pixels, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + more + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def with_orientation(number: int) -> bytes:
    """`plain`, stored so that this orientation makes it look as it is."""
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = plain().transpose(undo[number]) if number in undo else plain()
    exif = Image.Exif()
    exif[0x0112] = number
    return encoded(image, "JPEG", quality=95, subsampling=0, exif=exif)


def transparent_palette(kind: str) -> bytes:
    image = Image.new("P", (40, 20), 1)
    image.putpalette([0, 0, 0, *RED])
    image.paste(0, (0, 0, 10, 10))
    return encoded(image, kind, transparency=0)


def animation(kind: str) -> bytes:
    frames = [Image.new("RGB", (40, 20), colour) for colour in (BLUE, GREEN)]
    return encoded(plain(), kind, save_all=True, append_images=frames, duration=50, lossless=True)


def cases() -> Iterator[Case]:
    corners = {(2, 2): BLUE, (35, 15): RED}
    whole_png, whole_jpeg = encoded(noise(60, 60), "PNG"), encoded(noise(60, 60), "JPEG")
    # What is no image.
    yield Case(name="zero-bytes.png", data=b"", error="is empty")
    yield Case(name="one-byte.png", data=b"\x89", error="no image in a known format")
    yield Case(name="a-page.jpg", data=b"<!DOCTYPE html><title>404</title>", error="a web page, not an image")
    svg = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    yield Case(name="script.svg", data=svg, error="an SVG is a drawing")
    yield Case(name="paper.png", data=b"%PDF-1.7\n", error="a PDF")
    yield Case(name="icon.png", data=encoded(plain(), "ICO"), error="no image in a known format")
    # What is too large, or says so.
    yield Case(name="200-megapixels.png", data=png(20_000, 10_000, b"\0" * 60), error="20000 × 10000 pixels")
    yield Case(name="bomb.png", data=encoded(Image.new("L", (6300, 6300)), "PNG"), size=(2016, 2016), note="smaller")
    yield Case(name="more-than-it-says.png", data=png(4, 4, b"\0" * 60_000_000), size=(4, 4))
    text = chunk(b"zTXt", b"k\0\0" + zlib.compress(b"a" * 60_000_000, 1))
    yield Case(name="text-bomb.png", data=png(1, 1, b"\0" * 4, more=text), error="damaged")
    profile = chunk(b"iCCP", b"k\0\0" + zlib.compress(b"a" * 60_000_000, 1))
    small = png(40, 20, (b"\0" + bytes(RED) * 40) * 20, more=profile)
    yield Case(name="profile-bomb.png", data=small, error="damaged")
    huge_gif = bytearray(encoded(plain(), "GIF"))
    huge_gif[6:10] = b"\xff\xff\xff\xff"
    yield Case(name="huge-screen.gif", data=bytes(huge_gif), error="65535 × 65535 pixels")
    huge_jpeg = bytearray(whole_jpeg)
    start = huge_jpeg.index(b"\xff\xc0") + 5
    huge_jpeg[start : start + 4] = b"\xff\xdc\xff\xdc"
    yield Case(name="huge.jpg", data=bytes(huge_jpeg), error="65500 × 65500 pixels")
    huge_bmp = bytearray(encoded(plain(), "BMP"))
    huge_bmp[18:26] = struct.pack("<ii", 2_000_000_000, 2_000_000_000)
    yield Case(name="huge.bmp", data=bytes(huge_bmp), error="pixels")
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\0"
    for name, options, start, size, said in (
        ("lossy", {}, 26, b"\xff\x3f" * 2, "16383 × 16383"),
        ("lossless", {"lossless": True}, 21, b"\xff\xff\xff\x0f", "16384 × 16384"),
        ("extended", {"exif": exif}, 24, b"\xff\x3f\0" * 2, "16384 × 16384"),
    ):
        huge_webp = bytearray(encoded(plain(), "WEBP", **options))
        huge_webp[start : start + len(size)] = size
        yield Case(name=f"huge-{name}.webp", data=bytes(huge_webp), error=f"{said} pixels")
    yield Case(name="a-line.png", data=encoded(Image.new("RGB", (9000, 3)), "PNG"), error="100 times the other")
    # What is damaged.
    yield Case(name="cut-off.png", data=whole_png[: len(whole_png) // 2], error="damaged or cut off")
    yield Case(name="cut-off.jpg", data=whole_jpeg[: len(whole_jpeg) // 2], error="damaged or cut off")
    yield Case(name="header-alone.png", data=whole_png[:33], error="damaged or cut off")
    broken = bytearray(whole_png)
    broken[60:90] = b"\0" * 30
    yield Case(name="broken.png", data=bytes(broken), error="damaged or cut off")
    odd_exif = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\xff" * 40
    yield Case(name="odd-exif.jpg", data=encoded(plain(), "JPEG", exif=odd_exif, quality=95), pixels=corners)
    # What is whole, and easily shown wrong.
    yield Case(
        name="named-otherwise.jpg", data=encoded(plain(), "PNG"), pixels=corners, note="named .jpg, but it is PNG"
    )
    for kind in ("GIF", "PNG", "WEBP"):
        yield Case(name=f"animated.{kind.lower()}", data=animation(kind), pixels=corners, note="its first frame")
    grey = Image.new("I;16", (40, 20), 0x8080)
    yield Case(name="16-bit-grey.png", data=encoded(grey, "PNG"), pixels={(5, 5): (128, 128, 128)})
    deep = png(40, 20, (b"\0" + b"\xff\xff\x00\x00\x00\x00" * 40) * 20, depth=16)
    yield Case(name="16-bit-colour.png", data=deep, pixels={(5, 5): RED})
    yield Case(name="cmyk.jpg", data=encoded(plain().convert("CMYK"), "JPEG", quality=95), pixels=corners)
    for kind in ("PNG", "GIF"):
        shown = {(2, 2): WHITE, (35, 15): RED}
        yield Case(name=f"transparent-palette.{kind.lower()}", data=transparent_palette(kind), pixels=shown)
    half = Image.new("LA", (40, 20), (0, 0))
    yield Case(name="grey-alpha.png", data=encoded(half, "PNG"), pixels={(5, 5): WHITE}, note="transparent")
    keyed = png(40, 20, (b"\0" + bytes(RED) * 40) * 20, more=chunk(b"tRNS", b"\0\xff\0\0\0\0"))
    yield Case(name="transparent-colour.png", data=keyed, pixels={(5, 5): WHITE}, note="transparent")
    for number in range(1, 9):
        note = "turned upright" if number > 1 else ""
        yield Case(name=f"orientation-{number}.jpg", data=with_orientation(number), pixels=corners, note=note)
    yield Case(name="one-pixel.png", data=encoded(Image.new("RGB", (1, 1), RED), "PNG"), size=(1, 1))
    # What holds more than an image; nothing of it may stay.
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", "SECRET PLACE")
    polyglot = encoded(plain(), "PNG", pnginfo=info) + b"PK\x03\x04 SECRET PLACE <script>alert(1)</script>"
    yield Case(name="polyglot.png", data=polyglot, pixels=corners)
    described = Image.Exif()
    described[0x010E] = "SECRET PLACE"
    data = encoded(plain(), "JPEG", exif=described, quality=95)
    yield Case(name="where-it-was.jpg", data=data, pixels=corners)
