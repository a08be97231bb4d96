import pytest

from inventory import Item, OutOfStock, Stock


@pytest.fixture
def stock():
    stock = Stock()
    stock.add_item(Item("M-1", "blue mug", 650, reorder_level=12))
    stock.receive("M-1", 20)
    return stock


def test_receive_and_sell(stock):
    stock.sell("M-1", 3)
    assert stock.level("M-1") == 17


def test_selling_too_much_is_refused(stock):
    with pytest.raises(OutOfStock):
        stock.sell("M-1", 21)
    assert stock.level("M-1") == 20


def test_unknown_item(stock):
    with pytest.raises(KeyError):
        stock.level("M-2")


def test_item_known_twice(stock):
    with pytest.raises(ValueError, match="already known"):
        stock.add_item(Item("M-1", "red mug", 650))


def test_enough_on_the_shelf(stock):
    assert not stock.needs_reorder("M-1")


def test_below_the_level(stock):
    stock.sell("M-1", 9)
    assert stock.needs_reorder("M-1")


def test_exactly_at_the_level(stock):
    stock.sell("M-1", 8)
    assert stock.needs_reorder("M-1")
