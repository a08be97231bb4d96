from datetime import date

import pytest

from date_parser import UnknownDate, parse_date

TODAY = date(2024, 5, 15)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-03-09", date(2024, 3, 9)),
        ("9 March 2024", date(2024, 3, 9)),
        ("9. mar", date(2024, 3, 9)),
        ("yesterday", date(2024, 5, 14)),
        ("Tomorrow", date(2024, 5, 16)),
        ("next friday", date(2024, 5, 17)),
        ("last monday", date(2024, 5, 13)),
        ("3 days ago", date(2024, 5, 12)),
        ("in 2 weeks", date(2024, 5, 29)),
        ("3 weeks ago", date(2024, 4, 24)),
    ],
)
def test_forms(text, expected):
    assert parse_date(text, TODAY) == expected


def test_one_month_ago():
    assert parse_date("1 month ago", TODAY) == date(2024, 4, 15)


def test_in_two_years():
    assert parse_date("in 2 years", TODAY) == date(2026, 5, 15)


@pytest.mark.parametrize("text", ["", "soon", "friday", "in 3 days ago", "12 blah 2024"])
def test_unknown(text):
    with pytest.raises(UnknownDate):
        parse_date(text, TODAY)
