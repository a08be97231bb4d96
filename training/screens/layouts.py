"""How a screen is arranged. Each function draws one layout; those of `HELD_OUT` are only for an evaluation."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

from training.screens.canvas import Box, Canvas
from training.screens.fonts import Split
from training.screens.words import Traceback, button, code, label, module, name, sentence

Kind = Literal["terminal", "editor", "form", "dialog"]
Texts = Callable[[Canvas, random.Random, Traceback], None]
Widgets = Callable[[Canvas, random.Random], list[tuple[str, Box]]]
"""Draws, and returns what can be marked: labels and the boxes of their widgets."""


def terminal_bare(canvas: Canvas, rng: random.Random, shown: Traceback) -> None:
    _lines_from(canvas, 6, 6, canvas.height - 6, _with_prompt(rng, shown), shown)


def terminal_window(canvas: Canvas, rng: random.Random, shown: Traceback) -> None:
    bar = canvas.line_height + 8
    canvas.box((0, 0, canvas.width - 1, bar), fill=canvas.theme.frame)
    for number, colour in enumerate(((255, 95, 86), (255, 189, 46), (39, 201, 63))):
        canvas.draw.ellipse((10 + 18 * number, bar // 2 - 5, 20 + 18 * number, bar // 2 + 5), fill=colour)
    _lines_from(canvas, 8, bar + 6, canvas.height - 6, _with_prompt(rng, shown), shown)


def terminal_status(canvas: Canvas, rng: random.Random, shown: Traceback) -> None:
    bottom = canvas.height - canvas.line_height - 4
    canvas.draw.rectangle((0, bottom, canvas.width, canvas.height), fill=canvas.theme.accent)
    canvas.write(6, bottom + 1, canvas.cut(6, f"[0] {name(rng)}"), canvas.theme.background)
    _lines_from(canvas, 6, 6, bottom - 2, _with_prompt(rng, shown), shown)


def terminal_split(canvas: Canvas, rng: random.Random, shown: Traceback) -> None:
    middle = canvas.height * 2 // 5
    _lines_from(canvas, 6, 4, middle - 4, code(rng, 30), None)
    canvas.draw.line((0, middle, canvas.width, middle), fill=canvas.theme.frame, width=2)
    _lines_from(canvas, 6, middle + 4, canvas.height - 4, list(shown.lines), shown)


def editor_gutter(canvas: Canvas, rng: random.Random, shown: Traceback) -> None:
    _source(canvas, rng, shown, left=0, top=4, bottom=canvas.height - 4)


def editor_tabs(canvas: Canvas, rng: random.Random, shown: Traceback) -> None:
    x, bar = 6, canvas.line_height + 8
    for text in (shown.place.partition(":")[0], module(rng)):
        if canvas.fits(x + 8, text):
            canvas.box((x, 2, x + canvas.length(text) + 12, bar), fill=None)
            x = canvas.write(x + 6, 4, text)[2] + 14
    _source(canvas, rng, shown, left=0, top=bar + 6, bottom=canvas.height - 4)


def editor_sidebar(canvas: Canvas, rng: random.Random, shown: Traceback) -> None:
    side = canvas.width // 4
    canvas.draw.rectangle((0, 0, side, canvas.height), fill=canvas.theme.frame)
    y = 6
    while y + canvas.line_height < canvas.height - 4:
        text = module(rng).rpartition("/")[2]
        if 6 + canvas.length(text) < side - 4:
            canvas.write(6, y, text)
        y += canvas.line_height
    _source(canvas, rng, shown, left=side + 4, top=4, bottom=canvas.height - 4)


def form_left(canvas: Canvas, rng: random.Random) -> list[tuple[str, Box]]:
    labels = [label(rng) for _ in range(rng.randint(2, 6))]
    column = 16 + max(canvas.length(text) for text in labels)
    return _fields(canvas, rng, [(16, text, column + 12) for text in labels], below=False)


def form_above(canvas: Canvas, rng: random.Random) -> list[tuple[str, Box]]:
    return _fields(canvas, rng, [(16, label(rng), 16) for _ in range(rng.randint(2, 4))], below=True)


def form_columns(canvas: Canvas, rng: random.Random) -> list[tuple[str, Box]]:
    found, step = [], canvas.line_height + 10
    half = canvas.width // 2
    for row in range(rng.randint(2, 4)):
        for left in (12, half + 6):
            y = 12 + 2 * step * row
            text = label(rng)
            if y + 2 * step > canvas.height - 8 or left + canvas.length(text) > left + half - 24:
                continue
            canvas.write(left, y, text)
            field = (left, y + canvas.line_height + 2, left + half - 24, y + 2 * canvas.line_height + 6)
            canvas.box(field, radius=3)
            found.append((text, field))
    return found


def dialog_right(canvas: Canvas, rng: random.Random) -> list[tuple[str, Box]]:
    return _dialog(canvas, rng, "right")


def dialog_centre(canvas: Canvas, rng: random.Random) -> list[tuple[str, Box]]:
    return _dialog(canvas, rng, "centre")


def dialog_stacked(canvas: Canvas, rng: random.Random) -> list[tuple[str, Box]]:
    return _dialog(canvas, rng, "stacked")


TEXTS: dict[Split, dict[Kind, tuple[Texts, ...]]] = {
    "train": {"terminal": (terminal_bare, terminal_window, terminal_status), "editor": (editor_gutter, editor_tabs)},
    "held_out": {"terminal": (terminal_split,), "editor": (editor_sidebar,)},
}
WIDGETS: dict[Split, dict[Kind, tuple[Widgets, ...]]] = {
    "train": {"form": (form_left, form_above), "dialog": (dialog_right, dialog_centre)},
    "held_out": {"form": (form_columns,), "dialog": (dialog_stacked,)},
}


def _with_prompt(rng: random.Random, shown: Traceback) -> list[str]:
    sign = rng.choice(["$", ">", "%", f"{rng.choice(['dev', 'ci', 'box'])}:~$"])
    return [f"{sign} python {module(rng)}" if rng.random() < 0.7 else "", *shown.lines]


def _lines_from(canvas: Canvas, x: int, top: int, bottom: int, lines: list[str], shown: Traceback | None) -> None:
    """The last lines that fit, as a terminal that has scrolled; the end of a traceback in colour where there is any."""
    rows = max(0, (bottom - top) // canvas.line_height)
    first = max(0, len(lines) - rows) if shown else 0
    for number, line in enumerate(lines[first : first + rows]):
        is_error = shown is not None and line == shown.lines[-1]
        canvas.write(
            x, top + number * canvas.line_height, canvas.cut(x, line), canvas.theme.accent if is_error else None
        )


def _source(canvas: Canvas, rng: random.Random, shown: Traceback, *, left: int, top: int, bottom: int) -> None:
    """Numbered lines around the place of the error, whose line is marked and has the message below it."""
    rows = (bottom - top) // canvas.line_height
    wrong = int(shown.place.rpartition(":")[2])
    lines, at = code(rng, rows), rng.randint(0, max(0, rows - 2))
    first = max(1, wrong - at)
    edge = left + canvas.length("0000") + 10
    y = top
    for number, line in enumerate(lines, start=first):
        if y + 2 * canvas.line_height > bottom:
            break
        if number == wrong:
            canvas.draw.rectangle((left, y, canvas.width, y + canvas.line_height), fill=canvas.theme.frame)
        canvas.write(left + 4, y, f"{number:>4}", canvas.theme.faint)
        canvas.write(edge, y, canvas.cut(edge, line))
        y += canvas.line_height
        if number == wrong:
            canvas.write(edge, y, canvas.cut(edge, shown.lines[-1]), canvas.theme.accent)
            y += canvas.line_height


def _fields(
    canvas: Canvas, rng: random.Random, rows: list[tuple[int, str, int]], *, below: bool
) -> list[tuple[str, Box]]:
    """Rows of a label at its x and a field at its own, and a button at the end."""
    found, y = [], 14
    for x, text, left in rows:
        height = canvas.line_height * (2 if below else 1) + 16
        if y + height + canvas.line_height + 16 > canvas.height or not canvas.fits(x, text):
            break
        canvas.write(x, y + (0 if below else 4), text)
        top = y + canvas.line_height + 2 if below else y
        field = (left, top, max(left + 40, canvas.width - 16), top + canvas.line_height + 8)
        if field[2] >= canvas.width:
            break
        canvas.box(field, radius=rng.choice([0, 3]))
        if rng.random() < 0.4:
            value = canvas.cut(left + 6, label(rng))
            canvas.write(left + 6, top + 3, value, canvas.theme.faint)
        found.append((text, field))
        y += height
    text = button(rng)
    if canvas.fits(28, text):
        found.append((text, _button(canvas, 16, y, text)))
    return found


def _button(canvas: Canvas, x: int, y: int, text: str) -> Box:
    box = (x, y, x + canvas.length(text) + 24, y + canvas.line_height + 10)
    canvas.box(box, fill=canvas.theme.frame, radius=4)
    canvas.write(x + 12, y + 4, text)
    return box


def _dialog(canvas: Canvas, rng: random.Random, place: Literal["right", "centre", "stacked"]) -> list[tuple[str, Box]]:
    texts = [canvas.cut(40, sentence(rng)), *(button(rng) for _ in range(rng.randint(2, 3)))]
    canvas.box((8, 8, canvas.width - 9, canvas.height - 9), radius=6)
    canvas.write(20, 18, canvas.cut(20, label(rng)), canvas.theme.accent)
    canvas.write(20, 26 + canvas.line_height, texts[0])
    buttons = list(dict.fromkeys(texts[1:]))
    top, step = 44 + 2 * canvas.line_height, canvas.line_height + 18
    if place == "stacked":
        rows = [(text, 20, top + step * number) for number, text in enumerate(buttons)]
    else:
        widths = [canvas.length(text) + 34 for text in buttons]
        x = canvas.width - 20 - sum(widths) if place == "right" else (canvas.width - sum(widths)) // 2
        rows = []
        for text, width in zip(buttons, widths, strict=True):
            rows.append((text, x, top))
            x += width
    return [
        (text, _button(canvas, x, y, text))
        for text, x, y in rows
        if x >= 12 and x + canvas.length(text) + 24 < canvas.width - 10 and y + step < canvas.height - 4
    ]
