"""Where a model computes, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from m3_model.config import M3Config
from m3_model.offload import ExpertPlacement
from m3_model.random_checkpoint import tiny_config
from m3_runtime.planner import Gpu, SingleDevicePlan

LARGE = tiny_config(hidden_size=6144, vocab_size=200_064)
"""Nearly all of it are the embedding table and the head: 2.5 billion parameters."""


EXPERTS = tiny_config(hidden_size=1024, num_experts=64, expert_intermediate_size=3072)
"""Nearly all of it are 128 experts of 9.4 million parameters: 2.4 GB in bfloat16."""


def choose(
    wanted: str, free_gb: float | None, config: M3Config | None = None, *, host_gb: float = 0, **more: Any
) -> SingleDevicePlan:
    gpu = None if free_gb is None else Gpu("NVIDIA H200", int(free_gb * 1e9), int(host_gb * 1e9))
    options = {"dtype": "auto", "cache_tokens": 16_384, **more}
    return SingleDevicePlan.choose(config or tiny_config(), wanted=wanted, gpu=gpu, **options)


def test_a_gpu_is_taken_where_the_model_fits() -> None:
    plan = choose("auto", 139, LARGE)
    assert (plan.device, plan.dtype, plan.was_a_choice) == ("cuda", "bfloat16", True)
    assert plan.sentence.startswith("computing on the GPU in bfloat16 (NVIDIA H200: ")
    assert "of 139.0 GB free" in plan.sentence


def test_a_small_model_stays_exact_on_a_gpu() -> None:
    assert choose("auto", 139).dtype == "float32"
    assert choose("cuda", 139, dtype="bfloat16").dtype == "bfloat16"


def test_a_full_gpu_is_told_and_not_used() -> None:
    plan = choose("auto", 3, LARGE)
    assert (plan.device, plan.dtype, plan.was_a_choice) == ("cpu", "float32", True)
    assert "of it experts, and NVIDIA H200 has 3.0 GB free, the host 0.0 GB" in plan.sentence


def test_without_a_gpu_auto_needs_no_words() -> None:
    plan = choose("auto", None)
    assert (plan.device, plan.was_a_choice) == ("cpu", False)
    assert plan.sentence == "computing on the CPU in float32 (torch sees no GPU)"


def test_what_a_person_asks_for_is_done_or_refused() -> None:
    assert choose("cpu", 139).device == "cpu"
    with pytest.raises(ValueError, match="torch sees no GPU: choose the device cpu or auto"):
        choose("cuda", None)
    with pytest.raises(ValueError, match=r"has 3\.0 GB free, .*: choose"):
        choose("cuda", 3, LARGE)
    with pytest.raises(ValueError, match="device is 'tpu'; use auto, cpu or cuda"):
        choose("tpu", None)


def test_experts_without_room_lie_in_host_memory_and_as_many_as_fit_on_the_gpu() -> None:
    everything = choose("auto", 6, EXPERTS)
    assert everything.experts == ExpertPlacement()
    plan = choose("auto", 2.5, EXPERTS, host_gb=8)
    assert (plan.device, plan.experts.where) == ("cuda", "streamed")
    assert 4 <= plan.experts.slots < 64
    assert (
        f", its experts in host memory, {plan.experts.slots} of 64 a layer on the GPU (NVIDIA H200: " in plan.sentence
    )
    assert choose("auto", 2.5, EXPERTS, host_gb=1).device == "cpu", "the host has no room for them"
    assert choose("auto", 0.3, EXPERTS, host_gb=8).device == "cpu", "the GPU has no room for the others"


def test_four_bits_and_experts_on_the_cpu_are_only_asked_for() -> None:
    assert choose("auto", 2.5, EXPERTS, expert_bits=4).experts == ExpertPlacement(bits=4)
    plan = choose("auto", 2.5, EXPERTS, host_gb=8, experts="cpu")
    assert plan.experts == ExpertPlacement(where="cpu")
    assert "its experts on the CPU" in plan.sentence
    assert choose("auto", None, EXPERTS, expert_bits=4).experts == ExpertPlacement(bits=4)
    with pytest.raises(ValueError, match="'gpu' in 16 bits; use auto or cpu, and 16 or 4"):
        choose("auto", 3, experts="gpu")
