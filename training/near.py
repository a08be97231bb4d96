"""Near-duplicates: MinHash over shingles of token ids, in bands, so that two like texts share a key.

Each of the `HASHES` hashes keeps its smallest value over the shingles of a text; two texts agree in one with the
probability of their Jaccard similarity. A key is made of the hashes of one band: with three bands of eight, texts of
similarity 0.95 share a key in 96 of 100 cases, of 0.8 in 42, of 0.5 in one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHINGLE = 5
BANDS, ROWS = 3, 8
HASHES = BANDS * ROWS
_random = np.random.default_rng(11)
_FACTORS = _random.integers(1, 2**63, size=(HASHES, 1), dtype=np.uint64) | np.uint64(1)
_SHIFTS = _random.integers(0, 2**63, size=(HASHES, 1), dtype=np.uint64)
_POWERS = np.array([1, 1_000_003, 998_244_353, 1_000_000_007, 2_147_483_647], dtype=np.uint64)
_MIX = np.uint64(0x9E3779B97F4A7C15)


def band_keys(ids: NDArray[np.uint16]) -> tuple[int, ...]:
    """The text's keys, one a band; none for a text shorter than a shingle."""
    if len(ids) < SHINGLE:
        return ()
    windows = np.lib.stride_tricks.sliding_window_view(ids.astype(np.uint64) + np.uint64(1), SHINGLE)
    shingles = np.unique((windows * _POWERS).sum(axis=1, dtype=np.uint64) * _MIX)
    shingles ^= shingles >> np.uint64(29)
    smallest = (shingles * _FACTORS + _SHIFTS).min(axis=1).reshape(BANDS, ROWS)
    return tuple(hash((band, *row)) for band, row in enumerate(smallest.tolist()))
