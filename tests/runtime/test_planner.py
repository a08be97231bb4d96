"""Where a model computes, and what is said of it."""

from __future__ import annotations

import pytest

from m3_model.random_checkpoint import tiny_config
from m3_runtime.planner import Gpu, SingleDevicePlan

LARGE = tiny_config(hidden_size=6144, vocab_size=200_064)
"""Nearly all of it are the embedding table and the head: 2.5 billion parameters."""


def choose(wanted: str, free_gb: float | None, *, large: bool = False, dtype: str = "auto") -> SingleDevicePlan:
    gpu = None if free_gb is None else Gpu("NVIDIA H200", int(free_gb * 1e9))
    config = LARGE if large else tiny_config()
    return SingleDevicePlan.choose(config, wanted=wanted, dtype=dtype, cache_tokens=16_384, gpu=gpu)


def test_a_gpu_is_taken_where_the_model_fits() -> None:
    plan = choose("auto", 139, large=True)
    assert (plan.device, plan.dtype, plan.was_a_choice) == ("cuda", "bfloat16", True)
    assert plan.sentence.startswith("computing on the GPU in bfloat16 (NVIDIA H200: ")
    assert "of 139.0 GB free" in plan.sentence


def test_a_small_model_stays_exact_on_a_gpu() -> None:
    assert choose("auto", 139).dtype == "float32"
    assert choose("cuda", 139, dtype="bfloat16").dtype == "bfloat16"


def test_a_full_gpu_is_told_and_not_used() -> None:
    plan = choose("auto", 3, large=True)
    assert (plan.device, plan.dtype, plan.was_a_choice) == ("cpu", "float32", True)
    assert "in bfloat16, and NVIDIA H200 has 3.0 GB free" in plan.sentence


def test_without_a_gpu_auto_needs_no_words() -> None:
    plan = choose("auto", None)
    assert (plan.device, plan.was_a_choice) == ("cpu", False)
    assert plan.sentence == "computing on the CPU in float32 (torch sees no GPU)"


def test_what_a_person_asks_for_is_done_or_refused() -> None:
    assert choose("cpu", 139).device == "cpu"
    with pytest.raises(ValueError, match="torch sees no GPU: choose the device cpu or auto"):
        choose("cuda", None)
    with pytest.raises(ValueError, match=r"has 3\.0 GB free: choose"):
        choose("cuda", 3, large=True)
    with pytest.raises(ValueError, match="device is 'tpu'; use auto, cpu or cuda"):
        choose("tpu", None)
