"""Bookings of meeting rooms."""

from room_booking.bookings import Bookings, Conflict
from room_booking.span import Span

__all__ = ["Bookings", "Conflict", "Span"]
