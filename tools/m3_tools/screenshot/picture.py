"""A picture that is safe to keep: decoded and encoded anew, upright, opaque, without metadata."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Literal

from m3_tools.base import EncodedImage, PictureBlock, ToolError

Theme = Literal["light", "dark"]
LONGEST_SIDE = 2016
"""Pixels of a longer side; M3 reads no more of a picture."""


class PictureError(ToolError):
    """There is no picture, or it cannot be read: one line that says why and what to do."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture(EncodedImage):
    """An encoded picture: PNG, or JPEG where its source was one. `notes` say what was done to it."""

    name: str
    width: int
    height: int
    notes: tuple[str, ...] = ()


def keep(picture: Picture, folder: Path, stem: str) -> PictureBlock:
    """Save the picture as `stem-NUMBER` in the folder, under the first number that is free."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    suffix = ".jpg" if picture.media_type == "image/jpeg" else ".png"
    for number in itertools.count(1):
        path = folder / f"{stem}-{number}{suffix}"
        try:
            with path.open("xb") as file:
                file.write(picture.data)
        except FileExistsError:
            continue
        return PictureBlock(title=picture.name, path=str(path), width=picture.width, height=picture.height)
    raise AssertionError("unreachable")
