"""The benchmark of screenshots counts what is right, and a reading that runs on does not outweigh all others."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.screens import Read, distance, summary

RIGHT = Read(
    number=0, kind="terminal", text="abcd", truth="abcd", errors=0, answered="KeyError: 'x'\na.py:1",
    expected="KeyError: 'x'\na.py:1", exception_right=True, place_right=True, label_right=None, seconds=1.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("", "", 0), ("abc", "abc", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)],
)
def test_the_distance_counts_single_edits(one: str, other: str, expected: int) -> None:
    assert distance(one, other) == expected


def test_shares_are_of_the_pictures_that_were_asked() -> None:
    endless = dataclasses.replace(RIGHT, text="x" * 4000, errors=4000, place_right=False)
    label = dataclasses.replace(RIGHT, exception_right=None, place_right=None, label_right=True)
    assert summary([RIGHT, endless, label, label]) == {
        "pictures": 4,
        "exception_right": 1.0,
        "place_right": 0.5,
        "label_right": 1.0,
        "exception_and_place_right": 0.5,
        "character_error": 0.25,
    }
