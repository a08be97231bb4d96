"""Text to date. Each form has its own small parser; the first one that knows the text wins."""

import re
from datetime import date, timedelta

from date_parser.calendar_math import WEEKDAYS, add_months, next_weekday, previous_weekday

MONTHS = [
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
]  # fmt: skip


class UnknownDate(ValueError):
    """The text is no date in any form that is known here."""


def parse_date(text, today):
    """The date that the text means, seen from `today`."""
    words = " ".join(text.lower().replace(",", " ").split())
    for parser in (parse_iso, parse_long, parse_named, parse_weekday, parse_relative):
        found = parser(words, today)
        if found is not None:
            return found
    raise UnknownDate(f"cannot read {text!r} as a date")


def parse_iso(words, today):
    """2024-03-09"""
    match = re.fullmatch(r"(\d{4})-(\d{1,2})-(\d{1,2})", words)
    if match is None:
        return None
    year, month, day = map(int, match.groups())
    return date(year, month, day)


def parse_long(words, today):
    """9 March 2024, or 9 mar; without a year it is this year's."""
    match = re.fullmatch(r"(\d{1,2})\.? ([a-z]{3,9})(?: (\d{4}))?", words)
    if match is None:
        return None
    day, name, year = match.groups()
    for number, month in enumerate(MONTHS, start=1):
        if month.startswith(name):
            return date(int(year) if year else today.year, number, int(day))
    return None


def parse_named(words, today):
    """yesterday, today, tomorrow"""
    offsets = {"yesterday": -1, "today": 0, "tomorrow": 1}
    if words not in offsets:
        return None
    return today + timedelta(days=offsets[words])


def parse_weekday(words, today):
    """next friday, last monday"""
    direction, _, name = words.partition(" ")
    if name not in WEEKDAYS:
        return None
    if direction == "next":
        return next_weekday(today, name)
    if direction == "last":
        return previous_weekday(today, name)
    return None


def parse_relative(words, today):
    """3 days ago, in 2 weeks, 1 month ago, in 5 years"""
    match = re.fullmatch(r"(in )?(\d+) (day|week|month|year)s?( ago)?", words)
    if match is None or bool(match[1]) == bool(match[4]):
        return None
    amount = int(match[2])
    if match[4]:
        amount = -amount
    return step(today, amount, match[3])


def step(day, amount, unit):
    """The day so many units later, or earlier when the amount is negative."""
    if unit == "day":
        return day + timedelta(days=amount)
    if unit == "week":
        return day + timedelta(weeks=amount)
    return add_months(day, amount * 12 if unit == "year" else amount)
