"""Bytes from anywhere to a picture. The decoders are libraries in C that read what strangers made, so they run in a
process of their own that ends after some seconds and can take neither much memory nor much disk.

Not covered: the memory limit on macOS, whose kernel does not hold it; colour profiles, which are left out.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from m3_tools.files import open_regular
from m3_tools.screenshot.picture import LONGEST_SIDE, Picture, PictureError, Theme

MAX_BYTES = 64 * 2**20
"""Of an encoded image."""
MAX_PIXELS = 40_000_000
"""Of an image before it is made smaller. A screen of 8K has 33 million."""
MAX_MEMORY_BYTES = 900 * 2**20
TIMEOUT_S = 4.5
BACKGROUNDS: dict[Theme, tuple[int, int, int]] = {"light": (255, 255, 255), "dark": (18, 18, 18)}
"""What shows through where a picture is transparent."""
_WORKER = Path(__file__).with_name("decode_worker.py")


def read_picture(path: Path, *, theme: Theme = "light") -> Picture:
    """The picture in a file. Errors: PictureError, and ToolError for what is no regular file."""
    name = path.name
    with os.fdopen(open_regular(path, str(path)), "rb") as file:
        data = file.read(MAX_BYTES + 1)
    return decode(data, name=name, theme=theme)


def decode(data: bytes, *, name: str, theme: Theme = "light") -> Picture:
    """The picture that `data` encodes, whatever `name` says. At most `TIMEOUT_S` seconds and `MAX_MEMORY_BYTES`.

    It is turned as its EXIF data asks, what is transparent shows the background of `theme`, of an animation the first
    frame is taken, and a side longer than `LONGEST_SIDE` is shrunk. Errors: PictureError.
    """
    if not data:
        raise PictureError(f"{name} is empty; take the screenshot again.")
    if len(data) > MAX_BYTES:
        raise PictureError(f"{name} is larger than {MAX_BYTES // 2**20} MiB; give a smaller picture.")
    head, encoded = _run(data, name, theme)
    if problem := head.get("problem"):
        raise PictureError(f"{name}: {problem}.")
    notes = list(head["notes"])
    kind, suffix = head["format"], Path(name).suffix.lower()
    if suffix and suffix not in head["suffixes"]:
        notes.insert(0, f"named {suffix}, but it is {kind}")
    return Picture(
        name=name,
        media_type=head["media_type"],
        data=encoded,
        width=head["width"],
        height=head["height"],
        notes=tuple(notes),
    )


def _run(data: bytes, name: str, theme: Theme) -> tuple[dict[str, Any], bytes]:
    """What the worker says of the image, and the picture. Whatever ends the worker is a problem of the image."""
    limits = {
        "background": BACKGROUNDS[theme],
        "longest_side": LONGEST_SIDE,
        "max_pixels": MAX_PIXELS,
        "memory_bytes": MAX_MEMORY_BYTES,
        "output_bytes": MAX_BYTES,
        "time_s": math.ceil(TIMEOUT_S),
    }
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as result:
        source.write(data)
        source.seek(0)
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(_WORKER), json.dumps(limits)],
                stdin=source,
                stdout=result,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PictureError(f"{name} took longer than {TIMEOUT_S} s to decode; give a smaller one.") from None
        result.seek(0)
        head, _, encoded = result.read().partition(b"\n")
    try:
        return json.loads(head), encoded
    except ValueError:
        raise PictureError(f"{name} cannot be decoded: its decoder ended with {done.returncode}.") from None
