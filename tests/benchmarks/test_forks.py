"""The figures of the benchmark of forks, from given seconds."""

from __future__ import annotations

import pytest

from benchmarks.forks import BOUND, CANDIDATES, ratios

SECONDS = {"prompt": 1.0, "decode": 1.5, "one": 0.25, "bare": 0.8, "forks": 2.5, "search": 2.5}


def test_a_ratio_is_the_cost_over_one_prompt_and_the_edits() -> None:
    found = ratios(SECONDS)
    assert found["ratio"] == {"forks": 1.0, "search": 1.0}
    assert found["ratio_one_by_one"]["forks"] == pytest.approx(2.5 / (1 + CANDIDATES * 0.25), abs=1e-3)
    assert found["ratio_bare"]["search"] == pytest.approx(2.5 / 1.8, abs=1e-3)
    assert found["holds"] is True


@pytest.mark.parametrize("slow", ["forks", "search"])
def test_the_bound_is_missed_if_either_way_misses_it(slow: str) -> None:
    assert ratios({**SECONDS, slow: 2.5 * BOUND + 0.01})["holds"] is False
