"""Both rules for the size of an image: the published sizes, and what holds for every image."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers.models.minimax_m3_vl.image_processing_minimax_m3_vl import smart_resize

from m3_model.vision.config import VisionConfig
from m3_model.vision.resize import MOST_UNEQUAL, AreaRule, LongSideRule, ResizeRule, default_rule, num_tokens

AREA, LONG_SIDE = AreaRule(), LongSideRule()
SIDES = st.one_of(st.integers(1, 300), st.integers(1, 8000))


@pytest.mark.parametrize(
    ("height", "width", "area", "area_tokens", "long_side", "long_side_tokens"),
    [
        (224, 224, (224, 224), 64, (224, 224), 64),
        (672, 672, (672, 672), 576, (672, 672), 576),
        (1080, 1920, (504, 896), 576, (1092, 1932), 2691),
        (3024, 4032, (560, 756), 540, (1512, 2016), 3888),
        (100, 3000, (112, 2996), 428, (56, 2016), 144),
        (28, 28, (56, 56), 4, (112, 112), 16),
        (40, 30, (84, 56), 6, (140, 112), 20),
        (2016, 2016, (672, 672), 576, (2016, 2016), 5184),
    ],
)
def test_sizes_and_tokens_are_the_published_ones(
    height: int,
    width: int,
    area: tuple[int, int],
    area_tokens: int,
    long_side: tuple[int, int],
    long_side_tokens: int,
    released: VisionConfig,
) -> None:
    assert AREA(height, width, 28) == area
    assert LONG_SIDE(height, width, 28) == long_side
    assert default_rule(released) == LONG_SIDE
    assert num_tokens(*area, released) == area_tokens
    assert num_tokens(*long_side, released) == long_side_tokens


def test_frames_of_a_video_have_a_limit_of_their_own() -> None:
    for height, width in ((720, 1280), (1080, 1920)):
        assert AreaRule(max_pixels=602_112)(height, width, 28) == (560, 1008)


@given(SIDES, SIDES, st.sampled_from([451_584, 602_112]))
def test_the_area_rule_is_that_of_the_released_processor(height: int, width: int, most: int) -> None:
    assume(max(height, width) <= MOST_UNEQUAL * min(height, width))
    expected = smart_resize(height, width, factor=28, min_pixels=3136, max_pixels=most)
    assert AreaRule(max_pixels=most)(height, width, 28) == expected


@given(SIDES, SIDES)
def test_every_size_is_whole_tokens_within_the_limits(height: int, width: int) -> None:
    assume(max(height, width) <= MOST_UNEQUAL * min(height, width))
    for rule in (AREA, LONG_SIDE):
        new_height, new_width = rule(height, width, 28)
        assert new_height % 28 == new_width % 28 == 0
        assert min(new_height, new_width) >= 28
        assert rule(width, height, 28) == (new_width, new_height)
    assert max(new_height, new_width) <= 2016
    new_height, new_width = AREA(height, width, 28)
    assert new_height * new_width >= 3136
    assert new_height * new_width <= 451_584 or 28 in (new_height, new_width)


@given(SIDES, SIDES)
def test_the_long_side_rule_leaves_the_pixels_alone_between_its_limits(height: int, width: int) -> None:
    assume(max(height, width) <= MOST_UNEQUAL * min(height, width))
    new_height, new_width = LONG_SIDE(height, width, 28)
    if min(height, width) >= 112 and max(height, width) <= 2016:
        assert max(abs(new_height - height), abs(new_width - width)) <= 14
    if max(height, width) > 2016:
        assert max(new_height, new_width) == 2016


@pytest.mark.parametrize("rule", [AREA, LONG_SIDE])
@pytest.mark.parametrize(("height", "width"), [(1, 201), (10_000, 40), (0, 5)])
def test_an_image_like_a_thread_is_refused(rule: ResizeRule, height: int, width: int) -> None:
    with pytest.raises(ValueError, match=f"{width} x {height} pixels: one side may be at most 200 times"):
        rule(height, width, 28)


@pytest.mark.parametrize("limits", [{"long_side": 3585}, {"short_side": 0}, {"long_side": 100}])
def test_limits_that_no_image_has_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="give a long side up to 3584"):
        LongSideRule(**limits)
