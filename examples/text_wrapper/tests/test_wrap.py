import pytest

from text_wrapper import split_paragraphs, wrap
from text_wrapper.wrap import shorten, split_word


def test_short_text_is_one_line():
    assert wrap("a b c", 20) == ["a b c"]


def test_nothing_gives_no_line():
    assert wrap("  ", 20) == []


def test_breaks_between_words():
    assert wrap("the quick brown fox", 10) == ["the quick", "brown fox"]


def test_a_line_may_be_full():
    assert wrap("abcd efgh ij", 9) == ["abcd efgh", "ij"]


def test_the_space_counts_too():
    assert wrap("abcde fghij k", 10) == ["abcde", "fghij k"]


def test_no_line_is_wider_than_asked():
    text = "when in doubt look at the widest line of them all"
    assert all(len(line) <= width for width in range(7, 30) for line in wrap(text, width))


def test_long_word_is_cut():
    assert wrap("abcdefgh", 3) == ["abc", "def", "gh"]
    assert split_word("abcd", 2) == ["ab", "cd"]


def test_no_width():
    with pytest.raises(ValueError, match="at least one"):
        wrap("a", 0)


def test_paragraphs():
    assert split_paragraphs("one\ntwo\n\n\n three\n") == ["one two", "three"]


def test_shorten():
    assert shorten("a  short one", 20) == "a short one"
    assert shorten("rather a long line", 10) == "rather..."
