"""One forward pass over a mixed batch: builds the model's inputs, runs the decoder, marks the tokens as computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.inputs import ModelInputs, VisualInputs
from m3_runtime.config import PAGE_TOKENS
from m3_runtime.graphs import DecodeGraphs
from m3_runtime.visuals import Encodings, Visual, encoding_rank


@dataclasses.dataclass(frozen=True)
class Chunk:
    """New tokens of one sequence. `start` tokens before them are in `pages`, which also cover the new ones."""

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    num_rows: int = 1
    """Of how many of the new tokens, counted from the last, the logits are wanted."""
    visuals: Sequence[Visual] = ()
    """Those of the sequence, wherever in it they are."""


class Runner:
    """Knows the decoder and its cache, nothing of requests. `encoding_bytes` of vectors of visuals are kept.

    With `graphs`, steps that only decode are replayed.
    """

    def __init__(self, decoder: Decoder, cache: KVCache, encoding_bytes: int = 0, graphs: DecodeGraphs | None = None):
        self.decoder, self.cache, self.graphs = decoder, cache, graphs
        self.device = cache.k_LPSGD.device
        self.encodings = Encodings(decoder.vision, encoding_bytes) if decoder.vision is not None else None

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Logits [R, V] in float32, rows in the order of the chunks; the new tokens are in the cache afterwards."""
        visual = self._visual_inputs(chunks)
        if self.graphs is not None and visual is None and (logits_RV := self.graphs.run(chunks)) is not None:
            return logits_RV
        rows: list[int] = []
        total = 0
        for chunk in chunks:
            total += len(chunk.token_ids)
            rows += range(total - chunk.num_rows, total)
        inputs = ModelInputs.build(
            [chunk.token_ids for chunk in chunks],
            [chunk.start for chunk in chunks],
            [chunk.pages for chunk in chunks],
            page_size=PAGE_TOKENS,
            output_rows=rows,
            visual=visual,
            device=self.device,
        )
        return self.decoder(inputs, self.cache)

    def _visual_inputs(self, chunks: Sequence[Chunk]) -> VisualInputs | None:
        """Where the new tokens are parts of images and videos, and what stands there."""
        rows: list[int] = []
        elsewhere: list[int] = []
        vectors: list[torch.Tensor] = []
        first_row = 0
        group = self.decoder.parallel.ranks
        for chunk in chunks:
            end = chunk.start + len(chunk.token_ids)
            for visual in chunk.visuals:
                for index, places in visual.between(chunk.start, end):
                    assert self.encodings is not None, "a text-only model was given an image"
                    here = range(first_row + places.start - chunk.start, first_row + places.stop - chunk.start)
                    if encoding_rank(visual, group.size) != group.rank:
                        elsewhere += here
                        continue
                    rows += here
                    vectors.append(self.encodings.get(visual)[index : index + len(places)])
            first_row += len(chunk.token_ids)
        if not rows and not elsewhere:
            return None
        nothing = torch.empty(0, self.decoder.config.hidden_size, device=self.device)
        return VisualInputs(
            rows_N=torch.tensor(rows, dtype=torch.int64, device=self.device),
            vectors_NC=torch.cat(vectors) if vectors else nothing,
            elsewhere_M=torch.tensor(elsewhere, device=self.device) if elsewhere else None,
        )
