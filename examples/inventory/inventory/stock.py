"""What lies on the shelf: items with a count, and the two ways the count changes."""

from dataclasses import dataclass, field


class OutOfStock(Exception):
    """More was asked for than is on the shelf."""


@dataclass
class Item:
    """One article. Prices are whole cents."""

    sku: str
    name: str
    price: int
    reorder_level: int = 0
    pack_size: int = 1


@dataclass
class Stock:
    """All items by their number, and how many of each there are."""

    items: dict = field(default_factory=dict)
    counts: dict = field(default_factory=dict)

    def add_item(self, item):
        """Make a new item known, with nothing on the shelf yet."""
        if item.sku in self.items:
            raise ValueError(f"item {item.sku} is already known")
        self.items[item.sku] = item
        self.counts[item.sku] = 0

    def receive(self, sku, quantity):
        """A delivery came in."""
        if quantity <= 0:
            raise ValueError("a delivery has at least one piece")
        self._require_known(sku)
        self.counts[sku] += quantity

    def sell(self, sku, quantity=1):
        """Take pieces from the shelf; refuses when there are too few."""
        if quantity <= 0:
            raise ValueError("a sale has at least one piece")
        available = self.level(sku)
        if quantity > available:
            raise OutOfStock(f"{quantity} of {sku} wanted, {available} there")
        self.counts[sku] -= quantity

    def level(self, sku):
        """How many pieces of the item are on the shelf."""
        self._require_known(sku)
        return self.counts[sku]

    def needs_reorder(self, sku):
        """Whether the item has come down to its reorder level."""
        item = self.items[sku]
        return self.level(sku) < item.reorder_level

    def _require_known(self, sku):
        if sku not in self.items:
            raise KeyError(f"no item {sku}")
