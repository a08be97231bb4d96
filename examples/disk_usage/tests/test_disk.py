import pytest

from disk_usage.disk import Disk, amount


@pytest.mark.parametrize(("used", "percent"), [(0, 0), (250, 25), (999, 100), (1000, 100)])
def test_percent(used, percent):
    assert Disk("a", used, 1000).percent == percent


def test_an_overdrawn_disk_is_full():
    disk = Disk("a", 1200, 1000)
    assert (disk.percent, disk.free) == (100, 0)


def test_a_disk_without_size_is_empty():
    assert Disk("a", 0, 0).percent == 0


@pytest.mark.parametrize(
    ("size", "text"), [(999, "999 B"), (1500, "1.5 kB"), (78_000_000_000, "78.0 GB"), (4 * 10**15, "4000.0 TB")]
)
def test_amount(size, text):
    assert amount(size) == text
