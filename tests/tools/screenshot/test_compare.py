"""What changed between two pictures, where, and what is only moved."""

from __future__ import annotations

import io

from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from m3_tools.screenshot.compare import Region, compare
from m3_tools.screenshot.picture import Picture

Box = tuple[int, int, int, int]


def picture(image: Image.Image) -> Picture:
    file = io.BytesIO()
    image.save(file, "PNG")
    return Picture(name="p", media_type="image/png", data=file.getvalue(), width=image.width, height=image.height)


def striped(width: int = 120, height: int = 90) -> Image.Image:
    """No row is like another."""
    image = Image.new("RGB", (width, height))
    draw = ImageDraw.Draw(image)
    for row in range(height):
        draw.line((0, row, width, row), fill=(row * 37 % 256, row * 91 % 256, row * 151 % 256))
    return image


def test_equal_pictures_have_no_change() -> None:
    result = compare(picture(striped()), picture(striped()))
    assert (result.text, result.regions, result.changed_share) == ("nothing changed", (), 0.0)


@settings(max_examples=30, deadline=None)
@given(x=st.integers(0, 99), y=st.integers(0, 69), width=st.integers(1, 20), height=st.integers(1, 20))
def test_one_changed_rectangle_is_one_region_of_just_that_size(x: int, y: int, width: int, height: int) -> None:
    before = Image.new("RGB", (120, 90), (255, 255, 255))
    after = before.copy()
    after.paste((200, 0, 0), (x, y, x + width, y + height))
    result = compare(picture(before), picture(after))
    assert result.regions == (Region(x, y, width, height),)
    assert result.changed_share == width * height / (120 * 90)


def test_changes_far_from_each_other_are_regions_of_their_own_the_largest_first() -> None:
    after = striped()
    after.paste((255, 255, 255), (0, 0, 4, 4))
    after.paste((255, 255, 255), (80, 60, 100, 80))
    result = compare(picture(striped()), picture(after))
    assert result.regions == (Region(80, 60, 20, 20), Region(0, 0, 4, 4))
    assert result.text.startswith("2 regions changed")
    with Image.open(io.BytesIO(result.difference.data)) as difference:
        assert difference.size == (120, 90)


def test_what_an_inserted_block_only_moved_has_not_changed() -> None:
    before, after = striped(), Image.new("RGB", (120, 100), (9, 9, 9))
    after.paste(before.crop((0, 0, 120, 40)), (0, 0))
    after.paste(before.crop((0, 40, 120, 90)), (0, 50))
    assert compare(picture(before), picture(after)).regions == (Region(0, 40, 120, 10),)


def test_a_block_that_is_gone_is_a_change() -> None:
    before, after = striped(), Image.new("RGB", (120, 80))
    after.paste(before.crop((0, 0, 120, 40)), (0, 0))
    after.paste(before.crop((0, 50, 120, 90)), (0, 40))
    (region,) = compare(picture(before), picture(after)).regions
    assert region.y in (39, 40)
