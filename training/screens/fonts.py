"""The fonts, all freely licensed, as Debian packages them; those of an evaluation are of families never trained on.

`python -m training.screens.fonts --to .data/fonts` copies those of this machine to where a machine without any finds
them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from PIL import ImageFont

Use = Literal["mono", "ui"]
Split = Literal["train", "held_out"]
CARRIED = Path(__file__).parents[2] / ".data/fonts"
"""Where fonts lie on a machine that has no others."""


@dataclasses.dataclass(frozen=True)
class Font:
    """A file, where it comes from, and what may be done with it."""

    file: str
    use: Use
    split: Split
    package: str
    licence: str


FONTS = (
    Font("DejaVuSansMono.ttf", "mono", "train", "fonts-dejavu-core, matplotlib's wheel", "Bitstream Vera"),
    Font("DejaVuSansMono-Bold.ttf", "mono", "train", "fonts-dejavu-core, matplotlib's wheel", "Bitstream Vera"),
    Font("JetBrainsMono-Regular.ttf", "mono", "train", "fonts-jetbrains-mono", "OFL-1.1"),
    Font("NotoSansMono-Regular.ttf", "mono", "train", "fonts-noto-mono", "OFL-1.1"),
    Font("Hack-Regular.ttf", "mono", "train", "fonts-hack", "MIT and Bitstream Vera"),
    Font("FiraCode-Regular.ttf", "mono", "train", "fonts-firacode", "OFL-1.1"),
    Font("mononoki-Regular.ttf", "mono", "train", "fonts-mononoki", "OFL-1.1"),
    Font("Go-Mono.ttf", "mono", "train", "fonts-go", "BSD-3-Clause"),
    Font("Anonymous Pro.ttf", "mono", "train", "fonts-anonymous-pro", "OFL-1.1"),
    Font("FantasqueSansMono-Regular.ttf", "mono", "train", "fonts-fantasque-sans", "OFL-1.1"),
    Font("DejaVuSans.ttf", "ui", "train", "fonts-dejavu-core, matplotlib's wheel", "Bitstream Vera"),
    Font("DejaVuSansCondensed.ttf", "ui", "train", "fonts-dejavu-extra", "Bitstream Vera"),
    Font("Roboto-Regular.ttf", "ui", "train", "fonts-roboto-unhinted", "Apache-2.0"),
    Font("Inter-Regular.otf", "ui", "train", "fonts-inter", "OFL-1.1"),
    Font("Lato-Regular.ttf", "ui", "train", "fonts-lato", "OFL-1.1"),
    Font("Cantarell-Regular.otf", "ui", "train", "fonts-cantarell", "OFL-1.1"),
    Font("Go-Regular.ttf", "ui", "train", "fonts-go", "BSD-3-Clause"),
    Font("LiberationMono-Regular.ttf", "mono", "held_out", "fonts-liberation", "OFL-1.1"),
    Font("Inconsolata.otf", "mono", "held_out", "fonts-inconsolata", "OFL-1.1"),
    Font("LiberationSans-Regular.ttf", "ui", "held_out", "fonts-liberation", "OFL-1.1"),
    Font("OpenSans-Regular.ttf", "ui", "held_out", "fonts-open-sans", "OFL-1.1"),
)


def installed(use: Use, split: Split) -> tuple[Font, ...]:
    """Those of the table that this machine has. Errors: FileNotFoundError, with packages to install, for none."""
    wanted = [font for font in FONTS if (font.use, font.split) == (use, split)]
    found = tuple(font for font in wanted if font.file in _files())
    if not found:
        packages = ", ".join(dict.fromkeys(font.package for font in wanted))
        raise FileNotFoundError(f"no {use} font of the {split} set is installed; install one of: {packages}")
    return found


@functools.cache
def loaded(font: Font, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_files()[font.file], size, layout_engine=ImageFont.Layout.BASIC)


@functools.cache
def _files() -> dict[str, str]:
    """The path of every font file of the table that lies in the usual places."""
    names = {font.file for font in FONTS}
    return {
        name: os.path.join(folder, name)
        for place in _places()
        for folder, _, files in os.walk(place)
        for name in names.intersection(files)
    }


def _places() -> Iterator[Path]:
    yield CARRIED
    yield Path("/usr/local/share/fonts")
    yield Path("/usr/share/fonts")
    yield Path.home() / ".local/share/fonts"
    if (spec := importlib.util.find_spec("matplotlib")) is not None and spec.origin:
        yield Path(spec.origin).parent / "mpl-data/fonts/ttf"


def collect(folder: Path) -> int:
    """Copy every font of the table that this machine has into one folder; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in _files().items():
        if Path(path).parent != folder:
            shutil.copyfile(path, folder / name)
    return len(_files())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.screens.fonts", description="Collect the fonts.")
    parser.add_argument("--to", type=Path, default=CARRIED)
    chosen = parser.parse_args()
    print(f"{collect(chosen.to.absolute())} of {len(FONTS)} fonts lie in {chosen.to}")


if __name__ == "__main__":
    main()
