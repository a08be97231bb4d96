"""One screenshot by its number: the same number gives the same picture, on a machine with the same fonts."""

from __future__ import annotations

import dataclasses
import io
import random

from PIL import Image

from training.screens.canvas import MARKS, Box, Canvas
from training.screens.fonts import Split
from training.screens.layouts import TEXTS, WIDGETS, Kind
from training.screens.words import Traceback, traceback

KINDS: tuple[Kind, ...] = ("terminal", "editor", "form", "dialog")
TRIES = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Screen:
    """A picture and its truth. A traceback has `exception` and `place` (file:line), a marked widget its `label`."""

    kind: Kind
    image: Image.Image
    lines: tuple[tuple[str, Box], ...]
    """Every text that was drawn, in the order of drawing, with its box in the picture before scaling."""
    layout: str
    font: str
    exception: str = ""
    place: str = ""
    label: str = ""

    @property
    def text(self) -> str:
        return "\n".join(text for text, _ in self.lines)


def screen(number: int, split: Split = "train", kind: Kind | None = None) -> Screen:
    """The screenshot of this number. What it asks for is whole and in the picture."""
    rng = random.Random(f"{split} {kind} {number}")
    chosen = kind or KINDS[number % len(KINDS)]
    for _ in range(TRIES):
        drawn = _text(rng, split, chosen) if chosen in TEXTS[split] else _widget(rng, split, chosen)
        if drawn is not None:
            return dataclasses.replace(drawn, image=worn(rng, drawn.image))
    raise AssertionError(f"no {chosen} of {TRIES} had room for what it asks for")


def _text(rng: random.Random, split: Split, kind: Kind) -> Screen | None:
    canvas = Canvas(rng, split, width=rng.randrange(420, 900, 4), height=rng.randrange(180, 480, 4), mono=True)
    layout, shown = rng.choice(TEXTS[split][kind]), traceback(rng)
    layout(canvas, rng, shown)
    texts = [text for text, _ in canvas.shown]
    if not _is_legible(texts, shown, kind):
        return None
    place = shown.place if kind == "terminal" else shown.place.rpartition(":")[2]
    return Screen(
        kind=kind, image=canvas.image, lines=tuple(canvas.shown), layout=layout.__name__, font=canvas.font.file,
        exception=shown.exception, place=place,
    )  # fmt: skip


def _is_legible(texts: list[str], shown: Traceback, kind: Kind) -> bool:
    """Whether the error and its place were not cut off."""
    file, _, line = shown.place.rpartition(":")
    if shown.lines[-1] not in texts:
        return False
    if kind == "editor":
        return f"{int(line):>4}" in texts
    frame = f'File "{file}", line {line},'
    return any(frame in text or text.startswith(shown.place) for text in texts)


def _widget(rng: random.Random, split: Split, kind: Kind) -> Screen | None:
    canvas = Canvas(rng, split, width=rng.randrange(280, 640, 4), height=rng.randrange(200, 420, 4), mono=False)
    layout = rng.choice(WIDGETS[split][kind])
    found = layout(canvas, rng)
    once = [(text, box) for text, box in found if [one for one, _ in found].count(text) == 1]
    if not once:
        return None
    text, box = rng.choice(once)
    canvas.mark(box, rng.choice(MARKS), rng.randint(2, 4))
    return Screen(
        kind=kind,
        image=canvas.image,
        lines=tuple(canvas.shown),
        layout=layout.__name__,
        font=canvas.font.file,
        label=text,
    )


def worn(rng: random.Random, image: Image.Image) -> Image.Image:
    """The picture as it arrives: scaled as a screen or a chat does it, and through JPEG."""
    if rng.random() < 0.4:
        scale = rng.choice([0.8, 0.9, 1.1, 1.25, 1.5, 2.0])
        resample = rng.choice([Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS])
        image = image.resize((round(image.width * scale), round(image.height * scale)), resample)
    if rng.random() < 0.4:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=rng.randint(40, 95))
        image = Image.open(file).convert("RGB")
    return image
