import pytest

from room_booking import Bookings, Conflict, Span


@pytest.fixture
def bookings():
    bookings = Bookings(["garden", "tower"])
    bookings.book("garden", Span.parse("10:00-12:00"), "support")
    return bookings


def test_owner(bookings):
    assert bookings.owner_at("garden", "11:00") == "support"
    assert bookings.owner_at("garden", "12:00") is None


def test_a_booking_inside_another_is_refused(bookings):
    with pytest.raises(Conflict, match="support"):
        bookings.book("garden", Span.parse("10:30-11:00"), "sales")


def test_a_booking_that_begins_during_another_is_refused(bookings):
    with pytest.raises(Conflict, match="10:00-12:00"):
        bookings.book("garden", Span.parse("11:00-13:00"), "sales")


def test_one_after_the_other(bookings):
    bookings.book("garden", Span.parse("12:00-13:00"), "sales")
    assert bookings.owner_at("garden", "12:30") == "sales"


def test_cancelled_time_is_free_again(bookings):
    bookings.cancel("garden", Span.parse("10:00-12:00"))
    assert bookings.owner_at("garden", "11:00") is None
    with pytest.raises(KeyError):
        bookings.cancel("garden", Span.parse("10:00-12:00"))


def test_free_rooms(bookings):
    assert bookings.free_rooms(Span.parse("09:00-10:00")) == ["garden", "tower"]
    assert bookings.free_rooms(Span.parse("11:30-12:30")) == ["tower"]


def test_gaps(bookings):
    gaps = bookings.free_spans("garden")
    assert [str(gap) for gap in gaps] == ["08:00-10:00", "12:00-18:00"]


def test_load(bookings):
    assert bookings.load("garden") == pytest.approx(0.2)
    assert bookings.load("tower") == 0
