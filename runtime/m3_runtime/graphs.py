"""Decode steps as captured CUDA graphs: one launch for a step in place of hundreds, which take longer than their work.

A graph is captured for the longest context and for a number of rows, and replayed with what its static tensors hold
then. So kernels must read what changes from tensors, never from the host (m3_kernels.batch), and a step with fewer
sequences is filled up with sequences of one token in a scratch page.
Legend: B sequences, T rows, Q rows a sequence, N pages of the longest sequence, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from m3_kernels.batch import AttentionBatch
from m3_kernels.launch import new_stream
from m3_kernels.registry import reference_forced, triton_is_there
from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.inputs import ModelInputs
from m3_model.moe import MoE, StackedExperts
from m3_runtime.config import PAGE_TOKENS, SCRATCH_PAGES, EngineConfig, pages_for

if TYPE_CHECKING:
    from m3_runtime.runner import Chunk

_log = logging.getLogger(__name__)


class CaptureFailed(Exception):
    """A step could not be recorded; what it computes is not affected."""


class Recording(Protocol):
    """What a capture gives: calling it computes the step again, into the same result."""

    def __call__(self) -> Tensor: ...


Capture = Callable[[Callable[[], Tensor]], Recording]


class DecodeGraphs:
    """The graphs of one decoder and cache, each captured when it is first wanted.

    They cover steps of one new token for each sequence, and of a few for a single one with a draft. `capture` records a
    step; where that fails with an error that is `forgiven`, it is said once, and steps of that size are never captured.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        config: EngineConfig,
        capture: Capture,
        *,
        forgiven: type[Exception] = Exception,
    ):
        assert cache.num_pages >= config.num_pages + SCRATCH_PAGES, "captured steps need a scratch page"
        self._decoder, self._cache, self._config, self._capture = decoder, cache, config, capture
        self._forgiven = forgiven
        self._steps: dict[tuple[int, int], _Step | None] = {}
        """None for a size that could not be captured."""

    @classmethod
    def open(cls, decoder: Decoder, cache: KVCache, config: EngineConfig) -> DecodeGraphs | None:
        """Graphs where there can be any."""
        capture = cuda_capture(decoder, cache, config)
        return cls(decoder, cache, config, capture) if capture is not None else None

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Sequences and rows a sequence of every graph so far."""
        return tuple(size for size, step in self._steps.items() if step is not None)

    def run(self, chunks: Sequence[Chunk]) -> Tensor | None:
        """Logits of the wanted rows, float32 [R, V], or None if this step is none that is captured."""
        size = self._size(chunks)
        if size is None:
            return None
        if size not in self._steps:
            self._steps[size] = self._captured(size)
        step = self._steps[size]
        return step.run(chunks) if step is not None else None

    def _captured(self, size: tuple[int, int]) -> _Step | None:
        try:
            return _Step(self._decoder, self._cache, pages_for(self._config.max_context), size, self._capture)
        except self._forgiven as error:  # whatever the driver or a library has against it, steps run without
            if None not in self._steps.values():
                _log.warning("m3: decoding goes on without CUDA graphs: %s", str(error).split("\n")[0])
            return None

    def _size(self, chunks: Sequence[Chunk]) -> tuple[int, int] | None:
        """Sequences and rows a sequence of the graph for a step."""
        longest = max(len(chunk.token_ids) for chunk in chunks)
        room = pages_for(self._config.max_context) * PAGE_TOKENS - (longest if longest > 1 else 0)
        if any(chunk.start + len(chunk.token_ids) > room for chunk in chunks):
            return None  # what fills a step up needs a place, too
        if longest == 1 and len(chunks) <= self._config.max_rows:
            return 1 << (len(chunks) - 1).bit_length(), 1
        if len(chunks) == 1 and longest <= 1 + self._config.draft_tokens:
            return 1, min(1 << (longest - 1).bit_length(), 1 + self._config.draft_tokens)
        return None


class _Step:
    """One graph and the tensors that it reads."""

    def __init__(self, decoder: Decoder, cache: KVCache, num_pages: int, size: tuple[int, int], capture: Capture):
        B, Q = size
        T, device = B * Q, cache.k_LPSGD.device
        self._size, self._first_scratch = size, (cache.num_pages - 1) * PAGE_TOKENS
        self._numbers = torch.zeros(3 * T + 2 * B + 1, dtype=torch.int64, device=device)
        """Token ids, positions and slots of all rows, and then what `_ends` holds: what a step changes, in one copy."""
        self._on_host = torch.zeros_like(self._numbers, device="cpu", pin_memory=device.type == "cuda")
        self._copied: torch.cuda.Event | None = None
        """When the GPU has read what stands on the host."""
        ids_T, positions_T, slots_T = self._numbers[: 3 * T].view(3, T)
        self._ends = torch.zeros(2 * B + 1, dtype=torch.int32, device=device)
        """Where the rows of each sequence begin, where all of them end, and the sequences' lengths."""
        self._page_table_BN = torch.full((B, num_pages), cache.num_pages - 1, dtype=torch.int32, device=device)
        self._tables: list[list[int]] = [[] for _ in range(B)]
        """What the page table holds."""
        self._inputs = ModelInputs(
            token_ids_T=ids_T,
            slots_T=slots_T,
            output_rows_R=torch.arange(T, device=device),
            attention=AttentionBatch(
                query_starts=self._ends[: B + 1],
                lengths_B=self._ends[B + 1 :],
                page_table_BN=self._page_table_BN,
                positions_T=positions_T,
                page_size=PAGE_TOKENS,
                query_counts=(Q,) * B,
                lengths=(num_pages * PAGE_TOKENS,) * B,
                pages=(),
            ),
        )
        self._fill([])

        def step() -> Tensor:
            self._ends.copy_(self._numbers[3 * T :])
            return decoder(self._inputs, cache)

        self._recording = capture(step)

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        self._fill(chunks)
        first, end = 0, len(chunks)
        if self._size[1] > 1:
            end = len(chunks[0].token_ids)
            first = end - chunks[0].num_rows
        return self._recording()[first:end].clone()  # the next step writes over it

    def _fill(self, chunks: Sequence[Chunk]) -> None:
        """Write a step into the tensors. What it leaves free belongs to scratch: sequences of one token, or tokens that
        come behind those of the only sequence. So every row is one of a sequence, which kernels rely on.
        """
        B, Q = self._size
        scratch_page = self._first_scratch // PAGE_TOKENS
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        lengths: list[int] = []
        for b, chunk in enumerate(chunks):
            end = chunk.start + len(chunk.token_ids)
            ids += chunk.token_ids
            positions += range(chunk.start, end)
            slots += [chunk.pages[p // PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS for p in range(chunk.start, end)]
            lengths.append(end)
            self._set_pages(b, chunk.pages)
        missing = B * Q - len(ids)
        if chunks and Q > 1:
            end = lengths[0]
            positions += range(end, end + missing)
            lengths[0] += missing
            self._set_pages(0, [*chunks[0].pages[: pages_for(end)], scratch_page])
        else:
            positions += [i % Q for i in range(missing)]
            for b in range(len(chunks), B):
                lengths.append(Q)
                self._set_pages(b, [scratch_page])
        ids += [0] * missing
        slots += range(self._first_scratch, self._first_scratch + missing)
        if self._copied is not None:
            self._copied.synchronize()
        self._on_host.copy_(torch.tensor([*ids, *positions, *slots, *range(0, B * Q + 1, Q), *lengths]))
        self._numbers.copy_(self._on_host, non_blocking=True)
        if self._numbers.is_cuda:
            self._copied = torch.cuda.current_stream(self._numbers.device).record_event()

    def _set_pages(self, b: int, pages: Sequence[int]) -> None:
        """Pages of a sequence rarely change: of those that stand there already, none is written again."""
        pages = list(pages[: self._page_table_BN.shape[1]])
        known = self._tables[b]
        if pages == known:
            return
        same = next((i for i, (new, old) in enumerate(zip(pages, known, strict=False)) if new != old), None)
        first = min(len(pages), len(known)) if same is None else same
        if first < len(pages):
            changed = torch.tensor(pages[first:], dtype=torch.int32)
            self._page_table_BN[b, first : len(pages)].copy_(changed)
        self._tables[b] = pages


def cuda_capture(decoder: Decoder, cache: KVCache, config: EngineConfig) -> Capture | None:
    """What captures where there can be graphs: on a GPU, through kernels, with a scratch page in the cache."""
    device = cache.k_LPSGD.device
    if device.type != "cuda" or not config.cuda_graphs or cache.num_pages < config.num_pages + SCRATCH_PAGES:
        return None
    if reference_forced() or not triton_is_there():
        return None  # references read lengths and pages on the host
    mlps = [layer.mlp for layer in decoder.layers]
    if any(isinstance(mlp, MoE) and not isinstance(mlp.experts, StackedExperts) for mlp in mlps):
        return None  # and experts that are elsewhere are looked up there
    return _CudaCapture(device)


class _CudaCapture:
    """Records steps on a stream of its own, all into one pool of memory: they never run at the same time."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = new_stream(device)
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def __call__(self, step: Callable[[], Tensor]) -> Recording:
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(2):  # compiles kernels, and makes what they keep from launch to launch
                    step()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            shared = self._graphs[0].pool() if self._graphs else None
            try:
                # Other threads may ask events, as whoever watches several ranks does.
                with torch.cuda.graph(graph, pool=shared, stream=self._stream, capture_error_mode="thread_local"):
                    result = step()
            except Exception as error:
                raise CaptureFailed(str(error)) from error
            self._graphs.append(graph)

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay
