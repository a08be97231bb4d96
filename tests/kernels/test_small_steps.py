"""Insertion, experts and norms against their definitions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from m3_kernels.cache_insert import cache_insert
from m3_kernels.moe_experts import moe_experts
from m3_kernels.moe_experts.reference import swiglu
from m3_kernels.norm_rope import norm_rope
from m3_kernels.rms_norm import rms_norm

Case = Callable[[torch.Generator], Any]


def test_every_token_lands_in_its_slot_and_nothing_else_changes(
    cache_insert_case: Case, generator: torch.Generator
) -> None:
    args, _ = cache_insert_case(generator)
    cache_insert(*args)
    slots = args[6].tolist()
    for new, pages in zip(args[:3], args[3:6], strict=True):
        if new is None:
            continue
        flat = pages.flatten(0, 1)
        for i, slot in enumerate(slots):
            assert torch.equal(flat[slot], new[i])
        untouched = [slot for slot in range(len(flat)) if slot not in slots]
        assert bool(flat[untouched].isnan().all())


def test_index_keys_cannot_be_forgotten(cases: dict[str, dict[str, Case]], generator: torch.Generator) -> None:
    args, _ = cases["cache_insert"]["33 tokens, index True"](generator)
    with pytest.raises(ValueError, match="together, or neither"):
        cache_insert(*args[:2], None, *args[3:])


def test_experts(moe_experts_case: Case, generator: torch.Generator) -> None:
    (x, w13, w2, ids, weights), kwargs = moe_experts_case(generator)
    expected = torch.zeros(x.shape, dtype=torch.float64)
    width = w2.shape[2]
    for t in range(len(x)):
        for expert, weight in zip(ids[t].tolist(), weights[t].tolist(), strict=True):
            gate = (w13[expert, :width].double() @ x[t].double()).clamp(max=kwargs["limit"])
            up = (w13[expert, width:].double() @ x[t].double()).clamp(-kwargs["limit"], kwargs["limit"])
            hidden = gate / (1 + torch.exp(-kwargs["alpha"] * gate)) * (up + 1)
            expected[t] += weight * (w2[expert].double() @ hidden)
    got = moe_experts(x, w13, w2, ids, weights, **kwargs)
    torch.testing.assert_close(got.double(), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("gate", "up", "expected"),
    [(1.0, 0.0, 0.84579577), (9.0, 9.0, 55.9996250), (0.5, -8.0, -2.1023306), (-20.0, 3.0, -1.317e-13)],
)
def test_the_activation_at_known_points(gate: float, up: float, expected: float) -> None:
    got = swiglu(torch.tensor([[gate, up]]), alpha=1.702, limit=7.0)
    torch.testing.assert_close(got, torch.tensor([[expected]]), atol=0, rtol=1e-3 if abs(expected) < 1e-6 else 1e-6)


def test_heads_are_normed_then_rotated(norm_rope_case: Case, generator: torch.Generator) -> None:
    """Rotation as multiplication of complex numbers, element i with element i + F."""
    (x, weight, cos, sin), kwargs = norm_rope_case(generator)
    F = cos.shape[-1]
    y = torch.nn.functional.rms_norm(x.double(), x.shape[-1:], None, kwargs["eps"]) * (1 + weight.double())
    turned = torch.complex(y[..., :F], y[..., F : 2 * F]) * torch.complex(cos.double(), sin.double())[:, None]
    expected = torch.cat([turned.real, turned.imag, y[..., 2 * F :]], -1)
    torch.testing.assert_close(norm_rope(x, weight, cos, sin, **kwargs).double(), expected, atol=1e-5, rtol=1e-5)


def test_norm_and_residual(rms_norm_case: Case, generator: torch.Generator) -> None:
    (x, residual, weight), kwargs = rms_norm_case(generator)
    normed, total = rms_norm(x, residual, weight, **kwargs)
    expected = x if residual is None else x + residual
    assert torch.equal(total, expected)
    double = torch.nn.functional.rms_norm(expected.double(), expected.shape[-1:], 1 + weight.double(), kwargs["eps"])
    torch.testing.assert_close(normed.double(), double, atol=1e-5, rtol=1e-5)
