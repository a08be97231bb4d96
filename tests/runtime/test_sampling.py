"""Sampling: what may be drawn, how often, and that only the sequence itself decides."""

from __future__ import annotations

import collections
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from m3_runtime.request import SamplingParams
from m3_runtime.sampling import mask_logits, sample

logits = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=40)


@settings(max_examples=200, deadline=None)
@given(logits, st.integers(0, 45), st.floats(0.05, 1), st.floats(0.1, 3), st.integers(0, 99))
def test_a_drawn_token_is_within_top_k_and_top_p(
    values: list[float], top_k: int, top_p: float, temperature: float, seed: int
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    token = sample(torch.tensor(values), params, random.Random(seed))
    better = [v for v in values if v > values[token]]
    assert not top_k or len(better) < top_k
    # The tokens that are more likely must not reach top_p on their own, counted among the top_k.
    kept = sorted(values, reverse=True)[: top_k or None]
    total = math.fsum(math.exp((v - kept[0]) / temperature) for v in kept)
    mass = math.fsum(math.exp((v - kept[0]) / temperature) for v in better)
    assert mass / total < top_p + 1e-6


def test_frequencies_follow_the_distribution() -> None:
    row = torch.tensor([0.5, 0.3, 0.2]).log()
    generator = random.Random(1)
    counts = collections.Counter(sample(row, SamplingParams(), generator) for _ in range(4000))
    assert [counts[i] / 4000 for i in range(3)] == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


def test_greedy_takes_the_best_and_the_same_seed_repeats() -> None:
    row = torch.tensor([0.1, 2.0, 1.9])
    assert sample(row, SamplingParams(temperature=0), random.Random()) == 1
    draws = [[sample(row, SamplingParams(), r) for _ in range(20)] for r in (random.Random(5), random.Random(5))]
    assert draws[0] == draws[1]


def test_padding_ids_and_forbidden_ids_are_masked() -> None:
    class Even:
        def fill_mask(self, bits_W: object) -> None:
            bits_W[:] = 0x55555555  # type: ignore[index]

    masked = mask_logits(torch.zeros(2, 48), [None, Even()], vocab_size=40)  # type: ignore[list-item]
    assert masked[0].isfinite().nonzero().flatten().tolist() == list(range(40))
    assert masked[1].isfinite().nonzero().flatten().tolist() == list(range(0, 40, 2))


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"top_p": 0}, {"top_k": -2}, {"max_tokens": 0}])
def test_senseless_parameters_are_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        SamplingParams(**bad)  # type: ignore[arg-type]
