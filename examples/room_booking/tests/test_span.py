import pytest

from room_booking import Span
from room_booking.span import clock, minutes


def test_clock_and_minutes():
    assert minutes("09:30") == 570
    assert clock(570) == "09:30"


@pytest.mark.parametrize("text", ["9", "25:00", "10:60", "a:b"])
def test_no_time(text):
    with pytest.raises(ValueError, match="not a time"):
        minutes(text)


def test_text_of_a_span():
    assert str(Span.parse("10:00-12:30")) == "10:00-12:30"


def test_a_span_has_a_length():
    assert Span.parse("10:00-12:30").length == 150
    with pytest.raises(ValueError, match="after it starts"):
        Span.parse("10:00-10:00")


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ("08:00-09:00", False),
        ("08:00-10:00", False),
        ("10:30-11:00", True),
        ("11:00-13:00", True),
        ("10:00-12:00", True),
        ("12:00-13:00", False),
        ("15:00-16:00", False),
    ],
)
def test_overlap(other, expected):
    assert Span.parse("10:00-12:00").overlaps(Span.parse(other)) == expected


def test_the_end_is_not_part_of_it():
    span = Span.parse("10:00-12:00")
    assert span.contains(600)
    assert not span.contains(720)
