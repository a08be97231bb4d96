"""Stock keeping for a small shop."""

from inventory.stock import Item, OutOfStock, Stock
from inventory.report import purchase_list, stock_value

__all__ = ["Item", "OutOfStock", "Stock", "purchase_list", "stock_value"]
