"""Near-duplicates share a key, different texts do not."""

from __future__ import annotations

import random

import numpy as np

from training.near import band_keys
from training.transcript import Encoder


def keys(encoder: Encoder, text: str) -> set[int]:
    return set(band_keys(np.array(encoder.content(text), dtype=np.uint16)))


def test_different_functions_share_no_key(encoder: Encoder, library_functions: list[str]) -> None:
    distinct = sorted({f for f in library_functions if len(f) > 400})
    found = [keys(encoder, text) for text in distinct]
    pairs = [(a, b) for a in range(len(found)) for b in range(a)]
    assert sum(not found[a].isdisjoint(found[b]) for a, b in pairs) <= len(pairs) // 500


def test_a_function_with_one_changed_name_shares_a_key_with_the_original(
    encoder: Encoder, library_functions: list[str]
) -> None:
    rng = random.Random(2)
    shared = total = 0
    for text in library_functions:
        if len(text) > 1500:
            words = text.split(" ")
            at = rng.choice([i for i, w in enumerate(words) if w.isidentifier()])
            words[at] = "changed"
            total += 1
            shared += not keys(encoder, text).isdisjoint(keys(encoder, " ".join(words)))
    assert total > 20
    assert shared / total > 0.8


def test_equal_texts_have_equal_keys_and_short_ones_none(encoder: Encoder) -> None:
    text = "def f(a, b):\n    return a + b\n"
    assert keys(encoder, text) == keys(encoder, text)
    assert band_keys(np.zeros(4, dtype=np.uint16)) == ()
