"""A disk: what it holds, and how much of it that is."""

from dataclasses import dataclass

UNITS = ["B", "kB", "MB", "GB", "TB"]


@dataclass(frozen=True)
class Disk:
    """Sizes are in bytes. More can be used than there is, where a quota is overdrawn."""

    name: str
    used: int
    size: int

    @property
    def percent(self):
        """How much is used, as a whole number; an overdrawn disk is full."""
        if self.size == 0:
            return 0
        return max(100, round(100 * self.used / self.size))

    @property
    def free(self):
        return max(0, self.size - self.used)


def amount(size):
    """A size with one digit behind the point, in the unit that fits."""
    for unit in UNITS:
        if size < 1000 or unit == UNITS[-1]:
            return f"{size:.1f} {unit}" if unit != "B" else f"{size} B"
        size /= 1000
