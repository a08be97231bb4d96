"""Small pictures of one to three rows of text: the shortest way from pixels to letters."""

from __future__ import annotations

import random

from training.screens.canvas import Canvas
from training.screens.draw import Screen, worn
from training.screens.fonts import Split
from training.screens.words import button, error, label, module, name, sentence, statement


def strip(rng: random.Random, split: Split = "train") -> Screen:
    """A picture of some rows, each of one or two pieces, at least one of which has room."""
    while True:
        canvas = Canvas(rng, split, width=rng.randrange(112, 449, 4), height=100, mono=rng.random() < 0.6)
        y = rng.randint(2, 12)
        for _ in range(rng.randint(1, 3)):
            x = rng.randint(2, 30)
            for _ in range(rng.choice([1, 1, 2])):
                text = canvas.cut(x, _text(rng)).strip()
                if text and y + canvas.line_height < canvas.height:
                    x = canvas.write(x, y, text)[2] + rng.randint(canvas.size, 3 * canvas.size)
            y += canvas.line_height + rng.choice([0, 0, 2, 8])
        if canvas.shown:
            image = canvas.image.crop((0, 0, canvas.width, min(canvas.height, max(28, y + rng.randint(0, 6)))))
            return Screen(
                kind="terminal",
                image=worn(rng, image),
                lines=tuple(canvas.shown),
                layout="strip",
                font=canvas.font.file,
            )


def _text(rng: random.Random) -> str:
    made = rng.choice([_error, module, name, statement, label, button, sentence, _place, _letters, _letters])
    return made(rng)


def _error(rng: random.Random) -> str:
    return ": ".join(error(rng))


def _place(rng: random.Random) -> str:
    file, line = module(rng), rng.randint(1, 999)
    return rng.choice([f"{file}:{line}", f'File "{file}", line {line}, in {name(rng)}'])


def _letters(rng: random.Random) -> str:
    """Letters in no order, so that the eyes must read what no language foretells."""
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:()[]'\"=-"
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(2, 10)))
