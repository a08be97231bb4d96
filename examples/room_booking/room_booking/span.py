"""A span of time within one day, in minutes since midnight."""

from dataclasses import dataclass


def minutes(clock):
    """09:30 as minutes since midnight."""
    hours, _, rest = clock.partition(":")
    if not (hours.isdigit() and rest.isdigit() and int(hours) <= 24 and int(rest) < 60):
        raise ValueError(f"not a time: {clock}")
    return int(hours) * 60 + int(rest)


def clock(total):
    """Minutes since midnight as text: 570 becomes 09:30."""
    return f"{total // 60:02d}:{total % 60:02d}"


@dataclass(frozen=True, order=True)
class Span:
    """From `start` up to, and without, `end`."""

    start: int
    end: int

    def __post_init__(self):
        if self.start >= self.end:
            raise ValueError("a span ends after it starts")

    @classmethod
    def parse(cls, text):
        """10:00-12:30"""
        start, _, end = text.partition("-")
        return cls(minutes(start), minutes(end))

    @property
    def length(self):
        return self.end - self.start

    def overlaps(self, other):
        """Whether both have some minute in common."""
        return self.start < other.end and other.end < self.end

    def contains(self, minute):
        return self.start <= minute < self.end

    def __str__(self):
        return f"{clock(self.start)}-{clock(self.end)}"
