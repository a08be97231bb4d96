"""What one forward pass of the decoder reads besides weights and cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from m3_kernels.batch import AttentionBatch


@dataclass(frozen=True, kw_only=True)
class VisualInputs:
    """What stands in place of the embeddings of some new tokens: the parts of images and videos."""

    rows_N: Tensor
    """int64: rows among the new tokens."""
    vectors_NC: Tensor
    """What the vision encoder made of them, in the order of the rows."""
    elsewhere_M: Tensor | None = None
    """int64: rows whose vectors other ranks have; None where this is the only one."""


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """New tokens of some sequences, flattened. Legend: T new tokens, R rows whose logits are wanted."""

    token_ids_T: Tensor
    """int64."""
    slots_T: Tensor
    """int64: cache slot of each new token, page * page size + offset."""
    output_rows_R: Tensor
    """int64: rows among the T whose logits are wanted."""
    attention: AttentionBatch
    """Which rows belong to which sequence, and where its pages lie."""
    visual: VisualInputs | None = None
    """None where all new tokens are text."""

    @classmethod
    def build(
        cls,
        token_ids: Sequence[Sequence[int]],
        starts: Sequence[int],
        pages: Sequence[Sequence[int]],
        *,
        page_size: int = 128,
        output_rows: Sequence[int] | None = None,
        visual: VisualInputs | None = None,
        device: torch.device | str = "cpu",
    ) -> "ModelInputs":
        """Put sequences together that are at any stage: prompts, parts of prompts, single tokens.

        `token_ids` are the new tokens of each sequence (at least one), `starts` the tokens it has in the cache, `pages`
        the pages that hold or will hold them. `output_rows` defaults to the last row of each sequence.
        Errors: ValueError if a sequence's tokens, start and pages do not fit together.
        """
        if not len(token_ids) == len(starts) == len(pages):
            raise ValueError(
                f"{len(token_ids)} token lists, {len(starts)} starts, {len(pages)} page lists: give one each"
            )
        counts = [len(ids) for ids in token_ids]
        attention = AttentionBatch.build(
            counts,
            [start + count for start, count in zip(starts, counts, strict=True)],
            pages,
            page_size=page_size,
            device=device,
        )
        slots = [
            table[position // page_size] * page_size + position % page_size
            for table, start, count in zip(pages, starts, counts, strict=True)
            for position in range(start, start + count)
        ]
        if output_rows is None:
            output_rows = [first + count - 1 for first, count in zip(attention.first_rows, counts, strict=True)]
        return cls(
            token_ids_T=torch.tensor([i for ids in token_ids for i in ids], dtype=torch.int64, device=device),
            slots_T=torch.tensor(slots, dtype=torch.int64, device=device),
            output_rows_R=torch.tensor(list(output_rows), dtype=torch.int64, device=device),
            attention=attention,
            visual=visual,
        )

    @property
    def positions_T(self) -> Tensor:
        """int64: position of each new token in its sequence."""
        return self.attention.positions_T
