"""The plan over shared pages: every key is read for every row exactly once, and shared pages are read once."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from m3_kernels.batch import AttentionBatch
from m3_kernels.shared_pages import SharedPages


@st.composite
def forks(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int]]:
    """Page tables that form a random tree, with lengths and new tokens; S is 4."""
    fresh = iter(draw(st.permutations(range(80))))
    tables: list[list[int]] = []
    for _ in range(draw(st.integers(1, 7))):
        trunk = draw(st.sampled_from(tables)) if tables else []
        kept = trunk[: draw(st.integers(0, len(trunk)))]
        tables.append([*kept, *[next(fresh) for _ in range(draw(st.integers(0 if kept else 1, 4)))]])
    lengths = [draw(st.integers(4 * len(t) - 3, 4 * len(t))) for t in tables]
    counts = [draw(st.integers(1, min(length, 5))) for length in lengths]
    return tables, lengths, counts


@settings(max_examples=200, deadline=None, derandomize=True)
@given(forks())
def test_each_visible_key_is_one_column_of_the_row(drawn: tuple[list[list[int]], list[int], list[int]]) -> None:
    """The cache holds its own slot numbers; the scores of a row are then the slots that the row sees."""
    tables, lengths, counts = drawn
    batch = AttentionBatch.build(counts, lengths, tables, page_size=4)
    plan = batch.decoding
    assert plan is not None
    slots = torch.arange(80.0 * 4).view(80, 4, 1, 1)
    T = sum(counts)
    scores = plan.scores(torch.ones(1, T, 1, 1), slots)[0, :, 0]
    seen = torch.empty(T, scores.shape[1])
    plan.put(seen, scores)
    row = 0
    for table, length, count in zip(tables, lengths, counts, strict=True):
        for i in range(count):
            expected = [table[j // 4] * 4 + j % 4 for j in range(length - count + i + 1)]
            assert sorted(s for s in seen[row].tolist() if s != float("-inf")) == sorted(expected)
            row += 1
    ones = torch.where(scores.isinf(), 0.0, 1.0)[None, :, None]
    totals = plan.values(ones, slots)[0, :, 0, 0]
    torch.testing.assert_close(totals, torch.where(scores.isinf(), 0.0, scores).sum(-1))


def test_forks_read_the_common_pages_once() -> None:
    tables = [[7, 8, 9, 20 + i] for i in range(5)]
    plan = plan_of(tables, [15] * 5)
    assert [(run.first_row, run.end_row, run.pages) for run in plan.runs] == [(0, 5, slice(7, 10))]
    assert plan.own_pages == (slice(20, 25),)


def test_forks_of_forks_read_the_inner_common_pages_once_too() -> None:
    tables = [[1, 2, 5, 10], [1, 2, 6, 11], [1, 2, 5, 12], [1, 2, 6, 13]]
    plan = plan_of(tables, [16] * 4)
    assert plan.rows_T.tolist() == [0, 2, 1, 3]
    assert [(run.first_row, run.end_row, run.pages) for run in plan.runs] == [
        (0, 4, slice(1, 3)),
        (0, 2, slice(5, 6)),
        (2, 4, slice(6, 7)),
    ]


def test_a_single_sequence_is_one_run_without_a_copy() -> None:
    plan = plan_of([[3, 4, 5]], [10])
    assert [run.pages for run in plan.runs] == [slice(3, 6)]
    assert plan.own_pages == ()
    assert plan.hidden_TC is None


def test_pages_that_are_no_neighbours_become_a_run_for_each_stretch() -> None:
    plan = plan_of([[3, 4, 9, 5]], [15])
    assert [(run.first_column, run.end_column, run.pages) for run in plan.runs] == [
        (0, 8, slice(3, 5)),
        (8, 12, slice(9, 10)),
        (12, 15, slice(5, 6)),
    ]


def plan_of(tables: Any, lengths: Any) -> SharedPages:
    plan = AttentionBatch.build([1] * len(tables), lengths, tables, page_size=4).decoding
    assert plan is not None
    return plan
