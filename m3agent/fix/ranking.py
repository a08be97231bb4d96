"""Orders: several rankings of suspects as one, and proposals by their score."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from m3agent.fix.candidates import Proposal


def fused_log_shares(*rankings: Sequence[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """One weight from several rankings of the same things: the sum of reciprocal ranks, as the logarithm of its share.

    The model's order and that of the tests' trace err in different ways, and neither's scores are probabilities.
    """
    weights: dict[tuple[str, str], float] = {}
    for ranking in rankings:
        for rank, thing in enumerate(ranking, 1):
            weights[thing] = weights.get(thing, 0.0) + 1 / rank
    total = sum(weights.values())
    return {thing: math.log(weight / total) for thing, weight in weights.items()}


class Ranked:
    """Proposals, best score first; of equal scores the earlier one."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Proposal]] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def best(self) -> float:
        """The best score; minus infinity if empty."""
        return -self._heap[0][0] if self._heap else float("-inf")

    def push(self, proposal: Proposal) -> None:
        self._count += 1
        heapq.heappush(self._heap, (-proposal.score, self._count, proposal))

    def pop(self) -> Proposal:
        return heapq.heappop(self._heap)[2]
