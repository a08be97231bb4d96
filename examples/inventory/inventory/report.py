"""Lists and sums over the whole stock."""

from inventory.stock import Stock


def packs_for(missing, pack_size):
    """The smallest number of full packs that holds the missing pieces."""
    full, rest = divmod(missing, pack_size)
    return full + 1 if rest else full


def purchase_list(stock: Stock, target=2):
    """What to order, as (sku, packs) in the order of the item numbers.

    Each item that needs it is filled up to `target` times its reorder level.
    """
    orders = []
    for sku in sorted(stock.items):
        if not stock.needs_reorder(sku):
            continue
        item = stock.items[sku]
        missing = target * item.reorder_level - stock.level(sku)
        orders.append((sku, packs_for(missing, item.pack_size)))
    return orders


def stock_value(stock: Stock):
    """The worth of everything on the shelf, in cents."""
    return sum(item.price * stock.level(sku) for sku, item in stock.items.items())


def format_price(cents):
    """Cents as text for people: 1250 becomes 12.50."""
    return f"{cents // 100}.{cents % 100:02d}"


def stock_table(stock: Stock):
    """One line an item: number, name, count and price."""
    lines = []
    for sku, item in sorted(stock.items.items()):
        lines.append(f"{sku:<8}{item.name:<20}{stock.level(sku):>5}{format_price(item.price):>10}")
    return "\n".join(lines)
