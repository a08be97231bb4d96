"""Where a model computes on this machine: on its GPU if it fits there, with its experts or without, else on the CPU."""

from __future__ import annotations

import dataclasses
from typing import Literal

import psutil
import torch

from m3_model.config import M3Config
from m3_model.offload import ExpertPlacement
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
    """A GPU as torch sees it, and the memory of the host that experts may lie in."""

    name: str
    free_bytes: int
    host_bytes: int = 0

    @classmethod
    def find(cls) -> Gpu | None:
        """The current one, if there is any."""
        if not torch.cuda.is_available():
            return None
        return cls(torch.cuda.get_device_name(), torch.cuda.mem_get_info()[0], psutil.virtual_memory().available)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleDevicePlan:
    """One device that holds a model and its cache, its routed experts perhaps elsewhere. Build it with `choose`."""

    device: Literal["cpu", "cuda"]
    dtype: str
    experts: ExpertPlacement
    prefill_chunk: int
    """New tokens in one step."""
    sentence: str
    """What was chosen and why, in one line."""
    was_a_choice: bool
    """Whether there was anything to choose: without a GPU, auto is the CPU and needs no words."""

    @classmethod
    def choose(
        cls,
        config: M3Config,
        *,
        wanted: str,
        dtype: str,
        cache_tokens: int,
        gpu: Gpu | None,
        experts: str = "auto",
        expert_bits: int = 16,
    ) -> SingleDevicePlan:
        """The plan for a cache of `cache_tokens`. `dtype` "auto" is float32 on a CPU and for small models.

        Experts for which a GPU has no room lie in host memory and are copied when they are needed; with `experts` "cpu"
        the CPU computes with them. 4 `expert_bits` are never chosen, only asked for: they change what the model says.
        Errors: ValueError for names that are none of these, and where a GPU is asked for that is absent or full.
        """
        if wanted not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device is {wanted!r}; use auto, cpu or cuda")
        if dtype not in ("auto", *DTYPES):
            raise ValueError(f"dtype is {dtype!r}; use auto, {', '.join(DTYPES)}")
        if experts not in ("auto", "cpu") or expert_bits not in (16, 4):
            raise ValueError(f"experts are {experts!r} in {expert_bits} bits; use auto or cpu, and 16 or 4")
        bits: Literal[16, 4] = 4 if expert_bits == 4 else 16
        small = weight_bytes(count_parameters(config), 4) <= _SMALL_BYTES
        on_gpu = dtype if dtype != "auto" else "float32" if small else "bfloat16"
        problem = "torch sees no GPU"
        if gpu is not None:
            need = needed_bytes(config, on_gpu, cache_tokens, CHUNKS["cuda"], bits)
            placed = _place_experts(config, need, gpu, experts, bits)
            if placed is not None and wanted != "cpu":
                place, words = placed
                have = f"{gpu.name}: {_gb(need.rest + (need.routed if place.where == 'device' else 0))} of"
                return cls(
                    device="cuda",
                    dtype=on_gpu,
                    experts=place,
                    prefill_chunk=CHUNKS["cuda"],
                    sentence=f"computing on the GPU in {on_gpu}{words} ({have} {_gb(gpu.free_bytes)} free)",
                    was_a_choice=True,
                )
            problem = (
                f"the model needs {_gb(need.rest + need.routed)} in {on_gpu}, {_gb(need.routed)} of it experts, and "
            )
            problem += f"{gpu.name} has {_gb(gpu.free_bytes)} free, the host {_gb(gpu.host_bytes)}"
        if wanted == "cuda":
            raise ValueError(f"{problem}: choose the device cpu or auto")
        on_cpu = "float32" if dtype == "auto" else dtype
        return cls(
            device="cpu",
            dtype=on_cpu,
            experts=ExpertPlacement(bits=bits),
            prefill_chunk=CHUNKS["cpu"],
            sentence=f"computing on the CPU in {on_cpu} ({'as asked for' if wanted == 'cpu' else problem})",
            was_a_choice=gpu is not None and wanted == "auto",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes of the routed experts, and of all else: other weights, the cache, and the largest step, about."""

    routed: int
    rest: int


def needed_bytes(config: M3Config, dtype: str, cache_tokens: int, prefill_chunk: int, expert_bits: int) -> Need:
    """What a model takes with a cache of `cache_tokens`."""
    element = DTYPES[dtype].itemsize
    width = max(config.expert_intermediate_size * config.experts_per_token, config.dense_intermediate_size)
    hidden = config.hidden_size * (4 + config.experts_per_token)
    heads = config.head_dim * (3 * config.num_heads + 4 * config.num_kv_heads)
    scores = config.index_heads * -(-cache_tokens // PAGE_TOKENS)
    step = prefill_chunk * (element * (3 * width + hidden + heads) + 4 * scores) + 8 * _ROWS * config.vocab_size
    parameters = count_parameters(config)
    others = weight_bytes(parameters, element) - parameters.routed * element
    return Need(
        routed=parameters.routed * 17 // 32 if expert_bits == 4 else parameters.routed * element,
        rest=others + cache_tokens * cache_bytes_per_token(config, element) + step,
    )


def _place_experts(
    config: M3Config, need: Need, gpu: Gpu, experts: str, bits: Literal[16, 4]
) -> tuple[ExpertPlacement, str] | None:
    """Where the routed experts go and how to say it; None if the model does not fit."""
    rounded = ", its experts rounded to 4 bits" if bits == 4 else ""
    room = gpu.free_bytes - need.rest
    if experts == "cpu" and need.routed:
        fits = room >= 0 and gpu.host_bytes >= need.routed
        return (ExpertPlacement(where="cpu"), ", its experts on the CPU") if fits else None
    if room >= need.routed:
        return ExpertPlacement(bits=bits), rounded
    E = config.num_experts
    slots = max(0, room) * E // need.routed if need.routed else 0
    if slots < 2 * config.experts_per_token or gpu.host_bytes < need.routed:
        return None
    where = f"in host memory, {slots} of {E} a layer on the GPU"
    words = f", its experts {'rounded to 4 bits and ' if bits == 4 else ''}{where}"
    return ExpertPlacement(where="streamed", bits=bits, slots=slots), words


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB"
