"""How much an engine may hold and do at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from m3_kernels.batch import DECODE_QUERIES

PAGE_TOKENS = 128
SCRATCH_PAGES = 1
"""Pages of a cache behind those of its pool, where captured steps put tokens that nobody asked for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Limits of one engine. All units are tokens, rows or pages; wrong values raise ValueError."""

    num_pages: int
    """Pages of 128 tokens in the cache."""
    max_context: int
    """Longest sequence, prompt and answer together."""
    vocab_size: int
    """Assigned token ids; logits of ids from here on are padding and never sampled."""
    prefill_chunk: int = 512
    """Most new tokens in one step, over all sequences."""
    max_rows: int = 64
    """Most sequences in one step."""
    draft_tokens: int = 7
    """Most tokens that a step guesses and checks while one sequence runs alone (m3_runtime.speculation); 0 for none."""
    cuda_graphs: bool = True
    """Replay captured decode steps on a GPU (m3_runtime.graphs), where the cache has a scratch page."""
    prefix_cache: bool = True
    """Keep finished pages and give them to later prompts that start with the same tokens and images."""
    encoding_bytes: int = 256 * 2**20
    """Vectors of images and videos that are kept, about; a prompt is read in steps, and each needs them."""

    def __post_init__(self) -> None:
        for name in ("num_pages", "max_context", "vocab_size", "prefill_chunk", "max_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give a number of at least 1")
        if not 0 <= self.draft_tokens < DECODE_QUERIES:
            raise ValueError(f"draft_tokens is {self.draft_tokens}; give 0 (off) to {DECODE_QUERIES - 1}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiskConfig:
    """Where the pages of prompts are kept for later runs; see m3_runtime.disk_cache."""

    folder: Path
    """Shared by all models and processes; made when the first page is saved."""
    max_bytes: int
    """Size of the folder, about; the least recently used pages go first. 0 keeps nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RanksConfig:
    """Over how many processes a model is spread, with a device each; see m3_runtime.parallel."""

    size: int
    """This process included; 1 is one GPU."""
    on_cpu: bool = False
    """For trials without GPUs: the processes share the CPU."""
    by_torchrun: bool = False
    """Whether the others were started already."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"{self.size} GPUs are no place for a model; give 1 or more")


def pages_for(num_tokens: int) -> int:
    """Pages that hold `num_tokens` tokens."""
    return -(-num_tokens // PAGE_TOKENS)
