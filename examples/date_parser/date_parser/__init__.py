"""Dates as people write them."""

from date_parser.parse import UnknownDate, parse_date

__all__ = ["UnknownDate", "parse_date"]
