"""One forward pass over a mixed batch: builds the model's inputs, runs the decoder, marks the tokens as computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.inputs import ModelInputs
from m3_runtime.config import PAGE_TOKENS


@dataclasses.dataclass(frozen=True)
class Chunk:
    """New tokens of one sequence. `start` tokens before them are in `pages`, which also cover the new ones."""

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    all_rows: bool = False
    """Whether the logits of every new token are wanted; otherwise of the last one."""


class Runner:
    """Knows the decoder and its cache, nothing of requests."""

    def __init__(self, decoder: Decoder, cache: KVCache):
        self.decoder, self.cache = decoder, cache
        self.device = cache.k_LPSGD.device

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Logits [R, V] in float32, rows in the order of the chunks; the new tokens are in the cache afterwards."""
        rows: list[int] = []
        total = 0
        for chunk in chunks:
            count = len(chunk.token_ids)
            rows += range(total, total + count) if chunk.all_rows else [total + count - 1]
            total += count
        inputs = ModelInputs.build(
            [chunk.token_ids for chunk in chunks],
            [chunk.start for chunk in chunks],
            [chunk.pages for chunk in chunks],
            page_size=PAGE_TOKENS,
            output_rows=rows,
            device=self.device,
        )
        return self.decoder(inputs, self.cache)
