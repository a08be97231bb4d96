import pytest

from inventory import Item, Stock, purchase_list, stock_value
from inventory.report import format_price, packs_for, stock_table


@pytest.fixture
def stock():
    stock = Stock()
    stock.add_item(Item("B-7", "bowl", 900, reorder_level=10, pack_size=6))
    stock.add_item(Item("M-1", "blue mug", 650, reorder_level=12, pack_size=4))
    stock.receive("B-7", 30)
    stock.receive("M-1", 12)
    return stock


@pytest.mark.parametrize(("missing", "packs"), [(0, 0), (1, 1), (6, 1), (7, 2)])
def test_packs(missing, packs):
    assert packs_for(missing, 6) == packs


def test_purchase_list_holds_an_item_at_its_level(stock):
    assert purchase_list(stock) == [("M-1", 3)]


def test_purchase_list_of_items_below_their_level(stock):
    stock.sell("B-7", 25)
    stock.sell("M-1", 5)
    assert purchase_list(stock) == [("B-7", 3), ("M-1", 5)]


def test_value(stock):
    assert stock_value(stock) == 30 * 900 + 12 * 650


def test_price_text():
    assert format_price(1205) == "12.05"


def test_table_has_a_line_an_item(stock):
    lines = stock_table(stock).splitlines()
    assert [line.split()[0] for line in lines] == ["B-7", "M-1"]
