"""Who has which room when."""

from room_booking.span import Span, minutes

OPENING = Span.parse("08:00-18:00")


class Conflict(Exception):
    """The room is taken at that time."""


class Bookings:
    """The bookings of one day, by room."""

    def __init__(self, rooms):
        self.by_room = {room: {} for room in rooms}

    def book(self, room, span, team):
        """Give the room to the team; refuses when somebody has it for a part of that time."""
        taken = self.by_room[room]
        for other, owner in taken.items():
            if other.overlaps(span):
                raise Conflict(f"{room} belongs to {owner} at {other}")
        taken[span] = team

    def cancel(self, room, span):
        """Give a booking back."""
        if span not in self.by_room[room]:
            raise KeyError(f"no booking of {room} at {span}")
        del self.by_room[room][span]

    def owner_at(self, room, time):
        """The team that has the room at a time such as 11:00, or None."""
        for span, team in self.by_room[room].items():
            if span.contains(minutes(time)):
                return team
        return None

    def free_rooms(self, span):
        """The rooms that nobody has during the span."""
        free = []
        for room, taken in self.by_room.items():
            if not any(other.overlaps(span) for other in taken):
                free.append(room)
        return free

    def free_spans(self, room):
        """The gaps between the bookings of a room during opening hours."""
        gaps = []
        start = OPENING.start
        for span in sorted(self.by_room[room]):
            if start < span.start:
                gaps.append(Span(start, span.start))
            start = max(start, span.end)
        if start < OPENING.end:
            gaps.append(Span(start, OPENING.end))
        return gaps

    def load(self, room):
        """The share of the opening hours for which the room is taken."""
        return sum(span.length for span in self.by_room[room]) / OPENING.length
