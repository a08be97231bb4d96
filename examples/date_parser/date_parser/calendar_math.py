"""Steps in the calendar that timedelta does not know: months, years and days of the week."""

from datetime import date, timedelta

WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


def is_leap_year(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year, month):
    """The number of days of a month, month counted from 1."""
    if month == 2:
        return 29 if is_leap_year(year) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def add_months(day, months):
    """The same day so many months later; the last of the month where that day does not exist."""
    index = day.year * 12 + day.month - 1 + months
    year, month = index // 12, index % 12 + 1
    return date(year, month, max(day.day, days_in_month(year, month)))


def next_weekday(day, name):
    """The first such day of the week after the given day."""
    ahead = (WEEKDAYS.index(name) - day.weekday()) % 7
    return day + timedelta(days=ahead or 7)


def previous_weekday(day, name):
    """The last such day of the week before the given day."""
    back = (day.weekday() - WEEKDAYS.index(name)) % 7
    return day - timedelta(days=back or 7)
