"""The seam to other ranks: what the model asks of them, and how the rows of a step lie on them.

A rank is one process with one device. The model computes its share of heads, experts and rows and leaves it to a group
to put the shares together; for a model on one device the group is ALONE, which gives everything back as it is.
Legend: T rows of a step, S rows of one rank, C hidden size, P ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Group(Protocol):
    """Ranks that call the same operations in the same order, with tensors of the same shapes."""

    @property
    def rank(self) -> int:
        """Which of them this is."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all ranks' tensors, on each of them; x may be overwritten."""
        ...

    def sum_rows(self, x_TC: Tensor) -> Tensor:
        """This rank's rows of that sum, [T / P, C]; T is a multiple of P."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """All ranks' tensors, [P, ...], on each of them."""
        ...

    def exchange(self, x_TC: Tensor, counts: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Send the first counts[0] rows to rank 0, the next counts[1] to rank 1, and so on; counts may differ by rank.

        Returns: the rows that came, by the rank that sent them, and how many came from each.
        """
        ...


class Alone:
    """The group of one rank."""

    rank = 0
    size = 1

    def sum(self, x: Tensor) -> Tensor:
        return x

    def sum_rows(self, x_TC: Tensor) -> Tensor:
        return x_TC

    def gather(self, x: Tensor) -> Tensor:
        return x[None]

    def exchange(self, x_TC: Tensor, counts: Sequence[int]) -> tuple[Tensor, list[int]]:
        return x_TC, list(counts)


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """The groups that a rank belongs to, and from which size on a step's rows are spread over them."""

    ranks: Group = field(default_factory=Alone)
    """All of them."""
    replicas: Group = field(default_factory=Alone)
    """Those that hold the same key and index heads; they share the scoring of blocks."""
    spread_rows: int = 1 << 62
    """New tokens of a step from which on norms and experts compute each row on one rank alone."""
    shared_blocks: int = 1 << 62
    """Blocks of a prompt from which on replicas share the scoring."""

    def rows(self, num_rows: int) -> "Rows":
        return Rows(self.ranks, num_rows, spread=self.ranks.size > 1 and num_rows >= self.spread_rows)


ALONE = Parallel()


@dataclass(frozen=True)
class Rows:
    """Where the hidden states of a step are between its layers' parts: all on every rank, or a share on each.

    A share has ceil(T / P) rows; what the last ranks have too much of is zero.
    """

    group: Group
    num_rows: int
    spread: bool

    def gather(self, x_SC: Tensor) -> Tensor:
        """All rows, [T, C], from what lies here."""
        return self.group.gather(x_SC).flatten(0, 1)[: self.num_rows] if self.spread else x_SC

    def own(self, x_TC: Tensor) -> Tensor:
        """What lies here of rows that every rank has."""
        if not self.spread:
            return x_TC
        count = -(-self.num_rows // self.group.size)
        own_SC = x_TC[self.group.rank * count : (self.group.rank + 1) * count]
        return F.pad(own_SC, (0, 0, 0, count - len(own_SC)))

    def sum(self, x_TC: Tensor) -> Tensor:
        """What lies here of the sum of all ranks' [T, C]."""
        if not self.spread:
            return self.group.sum(x_TC)
        missing = -self.num_rows % self.group.size
        return self.group.sum_rows(F.pad(x_TC, (0, 0, 0, missing)) if missing else x_TC)


def gather_columns(x_RX: Tensor, widths: Sequence[int], group: Group) -> Tensor:
    """The columns of all ranks side by side; rank i has widths[i] of them."""
    if group.size == 1:
        return x_RX
    padded = F.pad(x_RX, (0, max(widths) - x_RX.shape[1]))
    parts = group.gather(padded)
    return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)
