"""Training documents with a picture: a drawn screenshot, a question about it, and the answer, as a conversation.

A picture is resized and cut as the runtime does it (`m3_model.vision`), but one frame of its equal frames is kept, as
colours of 0 to 255: a seventh of the bytes of normalised patches.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from m3_model import reading
from m3_model.vision.config import VisionConfig
from m3_model.vision.images import resize
from m3_model.vision.resize import default_rule
from training.screens.canvas import Box
from training.screens.draw import Screen, screen
from training.screens.fonts import Split
from training.screens.strips import strip
from training.transcript import SEEN, TARGET, Encoder, Transcript

Patches = tuple[NDArray[np.uint8], NDArray[np.int16]]
QUESTIONS = {reading.READ: "read", reading.ERROR: "error", reading.LABEL: "label"}
"""Names of the questions, for logs."""
MAX_TOKENS = 2048
"""Of nano's window."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureSettings:
    """What the documents with pictures are like; shares are probabilities."""

    strips: float = 0.35
    """Small pictures of one to three rows, from which reading is learnt first."""
    asked: float = 0.5
    """Of the screenshots, the share that is also asked for its error or label; each is read as a whole."""


@dataclasses.dataclass(frozen=True)
class SeenExample:
    """A document: ids with their classes of loss as in `training.transcript`, and the patches that its image tokens
    stand for: uint8 [P, 588], with their row and column in the picture, int16 [P, 2]."""

    tokens: NDArray[np.uint16]
    classes: NDArray[np.uint8]
    patches: NDArray[np.uint8]
    places: NDArray[np.int16]
    image_start: int
    """Of its tokens."""
    question: str


def picture_examples(
    config: VisionConfig, *, seed: int, split: Split = "train", settings: PictureSettings | None = None
) -> Iterator[SeenExample]:
    """Documents without end, the same for the same seed; seeds apart by less than a billion share no picture."""
    chosen = settings or PictureSettings()
    rng = random.Random(seed)
    encoder = Encoder()
    while True:
        questions = [reading.READ]
        if rng.random() < chosen.strips:
            made = strip(rng, split)
        else:
            made = screen(rng.getrandbits(48), split)
            questions += [question_about(made)] * (rng.random() < chosen.asked)
        patches = cut(made.image, config)
        for question in questions:
            example = seen_example(encoder, config, made, question, patches)
            if len(example.tokens) <= MAX_TOKENS:
                yield example


def held_out_pictures(config: VisionConfig, count: int) -> list[SeenExample]:
    """Documents about the first pictures of the evaluation: each is read as a whole, and asked for its error or
    label."""
    encoder = Encoder()
    drawn = (screen(number, "held_out") for number in range(count))
    return [
        seen_example(encoder, config, made, question, patches)
        for made in drawn
        for patches in [cut(made.image, config)]
        for question in (reading.READ, question_about(made))
    ]


def question_about(made: Screen) -> str:
    """What is asked about a screenshot of this kind besides reading it."""
    return reading.LABEL if made.label else reading.ERROR


def seen_example(encoder: Encoder, config: VisionConfig, made: Screen, question: str, seen: Patches) -> SeenExample:
    """The document that asks this about a picture, which was cut into the patches that are `seen`."""
    patches, places = seen
    tokens = len(patches) // config.merge_size**2
    transcript = Transcript(encoder)
    start = transcript.user_with_image(tokens, question)
    transcript.say(answer(made, question))
    ids, classes = transcript.arrays()
    return SeenExample(
        ids, np.where(classes == TARGET, SEEN, classes).astype(np.uint8), patches, places, start, question
    )


def answer(made: Screen, question: str) -> str:
    if question == reading.READ:
        return "\n".join(rows(made.lines))
    if question == reading.LABEL:
        return made.label
    return f"{error_line(made)}\n{made.place}"


def rows(lines: tuple[tuple[str, Box], ...]) -> list[str]:
    """What stands in a picture as a person would copy it: rows from top to bottom, their pieces from left to right.

    Two pieces are of one row if their middles are less than half a line apart. Runs of spaces count as one.
    """
    found: list[list[tuple[str, Box]]] = []
    for text, box in sorted(lines, key=lambda line: line[1][1] + line[1][3]):
        if found:
            other = found[-1][0][1]
            if abs(box[1] + box[3] - other[1] - other[3]) < min(box[3] - box[1], other[3] - other[1]):
                found[-1].append((text, box))
                continue
        found.append([(text, box)])
    joined = (" ".join(text for text, _ in sorted(row, key=lambda line: line[1][0])) for row in found)
    return [text for row in joined if (text := " ".join(row.split()))]


def error_line(made: Screen) -> str:
    """The line that states the error, as it stands in the picture; the exception alone if only that is there."""
    texts = [re.sub(r"^E\s+", "", text) for text, _ in made.lines]
    return next((text for text in reversed(texts) if text.startswith(f"{made.exception}:")), made.exception)


def cut(image: Image.Image, config: VisionConfig) -> Patches:
    """The patches of a picture in the tower's order, and their places."""
    pixels = np.asarray(image.convert("RGB"))
    height, width = default_rule(config)(pixels.shape[0], pixels.shape[1], config.token_size)
    pixels_3HW = resize(pixels, (height, width))
    S, M = config.patch_size, config.merge_size
    split = pixels_3HW.reshape(3, height // (S * M), M, S, width // (S * M), M, S)
    patches = split.permute(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3 * S * S).numpy()
    axes = torch.meshgrid(torch.arange(height // S), torch.arange(width // S), indexing="ij")
    grid = torch.stack(axes, -1).view(height // (S * M), M, width // (S * M), M, 2)
    return patches, grid.permute(0, 2, 1, 3, 4).reshape(-1, 2).to(torch.int16).numpy()
