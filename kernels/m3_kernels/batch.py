"""What all attention operations share: which tokens belong to which sequence, and where their keys lie.

Legend: B sequences, T new tokens of all sequences, N pages of the longest sequence, S tokens a page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from m3_kernels.shared_pages import SharedPages

DECODE_QUERIES = 16
"""A sequence with at most so many new tokens counts as decoding (one token, or a few to verify)."""


@dataclass(frozen=True, kw_only=True)
class AttentionBatch:
    """One step's sequences, planned once and read by every layer.

    Tensors are what kernels read; the tuples hold the same facts on the host, for planning and for the references.
    A kernel must not read the tuples: a captured graph is replayed with other tensors' contents.
    """

    query_starts: Tensor
    """int32 [B + 1]: new tokens of sequence b are rows query_starts[b] to query_starts[b + 1]."""
    lengths_B: Tensor
    """int32: tokens of each sequence after this step; its new tokens are the last ones."""
    page_table_BN: Tensor
    """int32: page ids in order, -1 after the last page in use."""
    positions_T: Tensor
    """int64: position of each new token in its sequence."""
    page_size: int
    """S."""
    query_counts: tuple[int, ...]
    """New tokens of each sequence, at least 1."""
    lengths: tuple[int, ...]
    """lengths_B on the host."""
    pages: tuple[tuple[int, ...], ...]
    """The pages in use of each sequence."""

    @classmethod
    def build(
        cls,
        query_counts: Sequence[int],
        lengths: Sequence[int],
        pages: Sequence[Sequence[int]],
        *,
        page_size: int,
        device: torch.device | str = "cpu",
    ) -> "AttentionBatch":
        """Plan a step from host values; longer page lists than a sequence needs are cut.

        Errors: ValueError naming the sequence whose counts, length or pages do not fit together.
        """
        if not len(query_counts) == len(lengths) == len(pages):
            raise ValueError(
                f"{len(query_counts)} query counts, {len(lengths)} lengths, {len(pages)} page lists: give one each"
            )
        used: list[tuple[int, ...]] = []
        positions: list[int] = []
        starts = [0]
        for b, (count, length, table) in enumerate(zip(query_counts, lengths, pages, strict=True)):
            needed = -(-length // page_size)
            if not 1 <= count <= length:
                raise ValueError(
                    f"sequence {b}: {count} new tokens with a length of {length}; expected 1 to the length"
                )
            if len(table) < needed:
                raise ValueError(f"sequence {b}: {length} tokens need {needed} pages of {page_size}, got {len(table)}")
            used.append(tuple(table[:needed]))
            positions.extend(range(length - count, length))
            starts.append(starts[-1] + count)
        width = max((len(table) for table in used), default=0)
        padded = [[*table, *[-1] * (width - len(table))] for table in used]
        return cls(
            query_starts=torch.tensor(starts, dtype=torch.int32, device=device),
            lengths_B=torch.tensor(lengths, dtype=torch.int32, device=device),
            page_table_BN=torch.tensor(padded, dtype=torch.int32, device=device).view(len(used), width),
            positions_T=torch.tensor(positions, dtype=torch.int64, device=device),
            page_size=page_size,
            query_counts=tuple(query_counts),
            lengths=tuple(lengths),
            pages=tuple(used),
        )

    @cached_property
    def max_queries(self) -> int:
        """New tokens of the sequence that has most."""
        return max(self.query_counts, default=0)

    @cached_property
    def max_length(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths, default=0)

    @cached_property
    def first_rows(self) -> tuple[int, ...]:
        """First row of each sequence (query_starts on the host)."""
        starts = [0]
        for count in self.query_counts:
            starts.append(starts[-1] + count)
        return tuple(starts[:-1])

    @cached_property
    def prefilling(self) -> tuple[int, ...]:
        """Sequences with more new tokens than a decode has."""
        return tuple(b for b, count in enumerate(self.query_counts) if count > DECODE_QUERIES)

    @cached_property
    def decoding(self) -> SharedPages | None:
        """The plan for all other sequences together, in which a page that several of them share is read once."""
        chosen = [b for b, count in enumerate(self.query_counts) if count <= DECODE_QUERIES]
        if not chosen:
            return None
        return SharedPages.plan(
            rows=[range(self.first_rows[b], self.first_rows[b] + self.query_counts[b]) for b in chosen],
            lengths=[self.lengths[b] for b in chosen],
            pages=[self.pages[b] for b in chosen],
            page_size=self.page_size,
            device=self.positions_T.device,
        )


def sequence_pages(cache_PSX: Tensor, pages: Sequence[int], length: int) -> Tensor:
    """The first `length` cached entries of a sequence, [length, ...]; a view where its pages are neighbours."""
    first, count = pages[0], len(pages)
    if all(page == first + i for i, page in enumerate(pages)):
        chosen = cache_PSX[first : first + count]
    else:
        chosen = cache_PSX[torch.tensor(pages, device=cache_PSX.device)]
    return chosen.flatten(0, 1)[:length]
