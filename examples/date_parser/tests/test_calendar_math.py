from datetime import date

import pytest

from date_parser.calendar_math import add_months, days_in_month, is_leap_year, next_weekday, previous_weekday


@pytest.mark.parametrize(("year", "leap"), [(2024, True), (2023, False), (1900, False), (2000, True)])
def test_leap_years(year, leap):
    assert is_leap_year(year) == leap


def test_lengths_of_months():
    assert [days_in_month(2023, month) for month in range(1, 13)] == [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def test_a_month_later_is_the_same_day():
    assert add_months(date(2024, 4, 10), 1) == date(2024, 5, 10)


def test_a_shorter_month_ends_sooner():
    assert add_months(date(2024, 1, 31), 1) == date(2024, 2, 29)


def test_the_last_day_stays_the_last_day():
    assert add_months(date(2023, 3, 31), 2) == date(2023, 5, 31)


def test_next_weekday():
    wednesday = date(2024, 5, 15)
    assert next_weekday(wednesday, "friday") == date(2024, 5, 17)
    assert next_weekday(wednesday, "wednesday") == date(2024, 5, 22)


def test_previous_weekday():
    wednesday = date(2024, 5, 15)
    assert previous_weekday(wednesday, "friday") == date(2024, 5, 10)
    assert previous_weekday(wednesday, "wednesday") == date(2024, 5, 8)
