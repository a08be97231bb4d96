"""Drawn screenshots: the truth is in the picture, a number gives the same one again, an evaluation shows others."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from PIL import ImageChops

from training.screens import draw, fonts
from training.screens.canvas import Canvas
from training.screens.draw import KINDS, Screen, screen, worn
from training.screens.fonts import FONTS, Split, collect, installed
from training.screens.layouts import TEXTS, WIDGETS

SPLITS: tuple[Split, ...] = ("train", "held_out")
COUNT = 48


@pytest.fixture(scope="module")
def drawn() -> dict[Split, list[Screen]]:
    """Pictures of both splits, as they are drawn: before they are scaled and compressed."""
    for split in SPLITS:
        for use in ("mono", "ui"):
            try:
                installed(use, split)
            except FileNotFoundError as error:
                pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "worn", lambda rng, image: image)
        return {split: [screen(number, split) for number in range(COUNT)] for split in SPLITS}


@pytest.mark.parametrize("split", SPLITS)
def test_every_text_of_the_truth_is_inside_the_picture_and_visible(drawn: Any, split: Split) -> None:
    for made in drawn[split]:
        width, height = made.image.size
        for text, (left, top, right, bottom) in made.lines:
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height
            low, high = made.image.crop((left, top, right, bottom)).convert("L").getextrema()
            assert high - low > 25 or not text.strip(), (made.kind, text)


@pytest.mark.parametrize("split", SPLITS)
def test_what_is_asked_for_stands_in_the_text(drawn: Any, split: Split) -> None:
    for made in drawn[split]:
        texts = [text for text, _ in made.lines]
        if made.kind in ("form", "dialog"):
            assert texts.count(made.label) >= 1
            assert not made.exception
            continue
        file, _, line = made.place.rpartition(":")
        assert any(text.startswith(made.exception) or f" {made.exception}" in text for text in texts)
        assert any(line in text for text in texts)
        assert any(file in text for text in texts)


def test_the_kinds_take_turns_and_every_layout_comes(drawn: Any) -> None:
    for split in SPLITS:
        assert [made.kind for made in drawn[split][:8]] == [*KINDS, *KINDS]
        layouts = {layout.__name__ for table in (TEXTS, WIDGETS) for some in table[split].values() for layout in some}
        assert {made.layout for made in drawn[split]} == layouts


def test_an_evaluation_shares_no_font_family_and_no_layout_with_the_training(drawn: Any) -> None:
    seen = {split: {(made.layout, made.font) for made in drawn[split]} for split in SPLITS}
    for part in (0, 1):
        assert not {pair[part] for pair in seen["train"]} & {pair[part] for pair in seen["held_out"]}
    families = {split: {font.file[:5] for font in FONTS if font.split == split} for split in SPLITS}
    assert not families["train"] & families["held_out"]
    assert all(font.licence and font.package for font in FONTS)


def test_the_same_number_gives_the_same_picture_and_another_one_another() -> None:
    for number in range(4):
        one, again, other = screen(number), screen(number), screen(number + 4)
        assert (one.image.tobytes(), one.text) == (again.image.tobytes(), again.text)
        assert one.text != other.text


def test_a_mark_is_around_the_widget_of_its_label_alone() -> None:
    """The same draw without a mark differs in the frame, and nowhere inside the fields and buttons."""
    canvas = Canvas(random.Random(3), "train", width=300, height=200, mono=False)
    before = canvas.image.copy()
    canvas.mark((50, 60, 150, 90), (230, 0, 0), 2)
    difference = ImageChops.difference(before, canvas.image)
    assert difference.getbbox() == (46, 56, 155, 95)
    assert difference.crop((50, 60, 150, 90)).getbbox() is None


def test_pictures_arrive_scaled_and_compressed() -> None:
    image = screen(0).image
    worn_ones = [worn(random.Random(number), image) for number in range(40)]
    sizes = {one.size for one in worn_ones}
    assert image.size in sizes
    assert len(sizes) > 3
    assert any(one.size == image.size and one.tobytes() != image.tobytes() for one in worn_ones)


def test_without_a_font_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.screens.fonts._files", dict)
    with pytest.raises(FileNotFoundError, match="install one of: fonts-liberation, fonts-inconsolata"):
        installed("mono", "held_out")


def test_collected_fonts_are_found_in_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = collect(tmp_path)
    fonts._files.cache_clear()
    monkeypatch.setattr("training.screens.fonts._places", lambda: iter([tmp_path]))
    try:
        assert set(fonts._files()) == {file.name for file in tmp_path.iterdir()}
        assert len(fonts._files()) == count
    finally:
        fonts._files.cache_clear()
