import pytest

from text_wrapper import align, indent_block, layout
from text_wrapper.layout import bullet_list


def test_left():
    assert align("abc", 10, "left") == "abc"


def test_right():
    assert align("abc", 10, "right") == "       abc"


def test_right_in_a_full_line():
    assert align("abcdef", 6, "right") == "abcdef"


def test_center():
    assert align("abc", 10, "center") == "   abc"


def test_unknown_alignment():
    with pytest.raises(ValueError, match="left, right, center"):
        align("abc", 10, "middle")


def test_indent():
    assert indent_block(["a", "b", "c"], 4, 2) == ["    a", "  b", "  c"]


def test_bullets():
    assert bullet_list(["milk", "brown bread"], 8) == ["- milk", "- brown", "  bread"]


def test_layout_keeps_paragraphs_apart():
    assert layout("one two\n\nthree", 3) == "one\ntwo\n\nthr\nee"
