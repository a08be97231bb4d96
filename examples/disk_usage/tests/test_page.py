from disk_usage import Disk, render
from disk_usage.page import colour

PAGE = render([Disk("backup", 250, 1000), Disk("video", 970, 1000), Disk("<b>", 0, 0)])


def test_a_bar_is_as_long_as_the_disk_is_full():
    assert '<div class="bar ok" style="width: 25%"></div>' in PAGE
    assert '<div class="bar alarm" style="width: 97%"></div>' in PAGE


def test_the_least_free_disk_comes_first():
    assert PAGE.index("video") < PAGE.index("backup")


def test_a_name_is_text():
    assert "&lt;b&gt;" in PAGE
    assert "<b>" not in PAGE


def test_colours():
    assert [colour(percent) for percent in (0, 69, 70, 89, 90, 100)] == ["ok", "ok", "warn", "warn", "alarm", "alarm"]
