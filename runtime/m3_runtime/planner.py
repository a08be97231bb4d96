"""Where a model computes on this machine: on its GPU if it fits there, else on the CPU."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch

from m3_model.config import M3Config
from m3_model.sizes import cache_bytes_per_token, count_parameters, weight_bytes
from m3_runtime.config import PAGE_TOKENS

Wanted = Literal["auto", "cpu", "cuda"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SMALL_BYTES = 2**30
"""Weights up to this size stay float32 on a GPU, where they give the same tokens as on a CPU."""
CHUNKS = {"cpu": 512, "cuda": 8192}
"""New tokens in one step: on a GPU so many that experts are bound by arithmetic and not by reading their weights."""
_ROWS = 64
"""Rows of logits in one step, at most."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU as torch sees it."""

    name: str
    free_bytes: int

    @classmethod
    def find(cls) -> Gpu | None:
        """The current one, if there is any."""
        if not torch.cuda.is_available():
            return None
        return cls(torch.cuda.get_device_name(), torch.cuda.mem_get_info()[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleDevicePlan:
    """One device that holds all of a model and its cache. Build it with `choose`."""

    device: Literal["cpu", "cuda"]
    dtype: str
    prefill_chunk: int
    """New tokens in one step."""
    sentence: str
    """What was chosen and why, in one line."""
    was_a_choice: bool
    """Whether there was anything to choose: without a GPU, auto is the CPU and needs no words."""

    @classmethod
    def choose(
        cls, config: M3Config, *, wanted: str, dtype: str, cache_tokens: int, gpu: Gpu | None
    ) -> SingleDevicePlan:
        """The plan for a cache of `cache_tokens`. `dtype` "auto" is float32 on a CPU and for small models.

        Errors: ValueError for names that are no device or dtype, and where a GPU is asked for that is absent or full.
        """
        if wanted not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device is {wanted!r}; use auto, cpu or cuda")
        if dtype not in ("auto", *DTYPES):
            raise ValueError(f"dtype is {dtype!r}; use auto, {', '.join(DTYPES)}")
        small = weight_bytes(count_parameters(config), 4) <= _SMALL_BYTES
        on_gpu = dtype if dtype != "auto" else "float32" if small else "bfloat16"
        problem = "torch sees no GPU"
        if gpu is not None:
            needed = needed_bytes(config, on_gpu, cache_tokens, CHUNKS["cuda"])
            fits = f"{gpu.name}: {_gb(needed)} of {_gb(gpu.free_bytes)} free"
            if needed <= gpu.free_bytes and wanted != "cpu":
                return cls(
                    device="cuda",
                    dtype=on_gpu,
                    prefill_chunk=CHUNKS["cuda"],
                    sentence=f"computing on the GPU in {on_gpu} ({fits})",
                    was_a_choice=True,
                )
            problem = f"the model needs {_gb(needed)} in {on_gpu}, and {gpu.name} has {_gb(gpu.free_bytes)} free"
        if wanted == "cuda":
            raise ValueError(f"{problem}: choose the device cpu or auto")
        on_cpu = "float32" if dtype == "auto" else dtype
        return cls(
            device="cpu",
            dtype=on_cpu,
            prefill_chunk=CHUNKS["cpu"],
            sentence=f"computing on the CPU in {on_cpu} ({'as asked for' if wanted == 'cpu' else problem})",
            was_a_choice=gpu is not None and wanted == "auto",
        )


def needed_bytes(config: M3Config, dtype: str, cache_tokens: int, prefill_chunk: int) -> int:
    """Memory of the weights, of a cache of `cache_tokens`, and of the largest step beside them, about."""
    element = DTYPES[dtype].itemsize
    width = max(config.expert_intermediate_size * config.experts_per_token, config.dense_intermediate_size)
    hidden = config.hidden_size * (4 + config.experts_per_token)
    heads = config.head_dim * (3 * config.num_heads + 4 * config.num_kv_heads)
    scores = config.index_heads * -(-cache_tokens // PAGE_TOKENS)
    step = prefill_chunk * (element * (3 * width + hidden + heads) + 4 * scores) + 8 * _ROWS * config.vocab_size
    weights = weight_bytes(count_parameters(config), element)
    return weights + cache_tokens * cache_bytes_per_token(config, element) + step


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB"
