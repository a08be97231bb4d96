"""Insertion, experts and norms against their definitions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from m3_kernels.choose_experts import choose_experts
from m3_kernels.moe_experts import moe_experts
from m3_kernels.norm_rope_insert import norm_rope_insert
from m3_kernels.rms_norm import rms_norm
from m3_kernels.swiglu import swiglu
from m3_model.quantization import dequantize

Case = Callable[[torch.Generator], Any]


def test_heads_are_normed_rotated_and_kept_where_they_belong(
    norm_rope_insert_case: Case, generator: torch.Generator
) -> None:
    """Rotation as multiplication of complex numbers, element i with element i + F; slots of nobody stay as they are."""
    (projected, norms, cos, sin, slots, k, v, index_k), kwargs = norm_rope_insert_case(generator)
    D, F, H = k.shape[3], cos.shape[-1], kwargs["num_heads"]
    q, index_q = norm_rope_insert(projected, norms, cos, sin, slots, k, v, index_k, **kwargs)
    x = projected.double().view(len(projected), -1, D)
    y = torch.nn.functional.rms_norm(x[:, : len(norms[0])], (D,), None, kwargs["eps"]) * (1 + norms[0].double())
    turned = torch.complex(y[..., :F], y[..., F : 2 * F]) * torch.complex(cos.double(), sin.double())[:, None]
    expected = torch.cat([turned.real, turned.imag, y[..., 2 * F :]], -1)
    close = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(q.double(), expected[:, :H], **close)
    places = [(k, expected[:, H : H + 2]), (v, x[:, -2:])]
    if index_k is not None:
        torch.testing.assert_close(index_q.double(), expected[:, H + 2 : -1], **close)
        places.append((index_k, expected[:, -1]))
    for pages, new in places:
        flat = pages.flatten(0, 1)
        torch.testing.assert_close(flat[slots].double(), new, **close)
        untouched = [slot for slot in range(len(flat)) if slot not in slots.tolist()]
        assert bool(flat[untouched].isnan().all())


def test_index_heads_of_another_size_have_norms_of_their_own(generator: torch.Generator) -> None:
    angles = torch.randn(3, 4, generator=generator)
    k, v, index_k = torch.zeros(2, 8, 1, 16), torch.zeros(2, 8, 1, 16), torch.zeros(2, 8, 8)
    norms = torch.zeros(3, 16), torch.zeros(3, 8)
    projected = torch.randn(3, 3 * 16 + 3 * 8 + 16, generator=generator)
    places = angles.cos(), angles.sin(), torch.arange(3)
    q, index_q = norm_rope_insert(projected, norms, *places, k, v, index_k, num_heads=2, eps=1e-6)
    assert index_q is not None
    assert (q.shape, index_q.shape) == ((3, 2, 16), (3, 2, 8))
    assert bool(index_k[0, :3].any(-1).all())


@pytest.mark.parametrize("index", [True, False])
def test_a_projection_that_does_not_fit_its_heads_is_refused(
    index: bool, cases: dict[str, dict[str, Case]], generator: torch.Generator
) -> None:
    case = cases["norm_rope_insert"][f"33 tokens, 4 heads, 16 pairs, {2 if index else 0} index heads"]
    args, kwargs = case(generator)
    other = None if index else torch.zeros(5, 16, 32)
    with pytest.raises(ValueError, match="do not fit a projection"):
        norm_rope_insert(*args[:7], other, **kwargs)
    with pytest.raises(ValueError, match="do not fit a projection"):
        norm_rope_insert(args[0][:, :-32], *args[1:], **kwargs)


def e2m1_by_hand(packed: torch.Tensor) -> torch.Tensor:
    """Two numbers a byte, by the format's definition: (-1)^s 2^(e-1) (1 + m/2), and m/2 where e is 0."""
    numbers = []
    for byte in packed.flatten().tolist():
        for bits in (byte & 15, byte >> 4):
            sign, exponent, mantissa = bits >> 3, bits >> 1 & 3, bits & 1
            value = 2.0 ** (exponent - 1) * (1 + mantissa / 2) if exponent else mantissa / 2
            numbers.append(-value if sign else value)
    return torch.tensor(numbers).view(*packed.shape[:-1], -1)


def test_experts(moe_experts_case: Case, generator: torch.Generator) -> None:
    (x, w13, w2, ids, weights), kwargs = moe_experts_case(generator)
    given = (w13, w2)
    w13, w2 = (e2m1_by_hand(w) if w.dtype == torch.uint8 else w.float() for w in given)
    if kwargs["scales"] is not None:
        w13, w2 = (
            torch.stack([dequantize(*pair) for pair in zip(*both, strict=True)])
            for both in zip((w13, w2), kwargs["scales"], strict=True)
        )
    expected = torch.zeros(x.shape, dtype=torch.float64)
    width = w2.shape[2]
    for t in range(len(x)):
        for expert, weight in zip(ids[t].tolist(), weights[t].tolist(), strict=True):
            if expert < 0:
                continue
            gate = (w13[expert, :width].double() @ x[t].double()).clamp(max=kwargs["limit"])
            up = (w13[expert, width:].double() @ x[t].double()).clamp(-kwargs["limit"], kwargs["limit"])
            hidden = gate / (1 + torch.exp(-kwargs["alpha"] * gate)) * (up + 1)
            expected[t] += weight * (w2[expert].double() @ hidden)
    got = moe_experts(x, *given, ids, weights, **kwargs)
    torch.testing.assert_close(got.double(), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("gate", "up", "expected"),
    [(1.0, 0.0, 0.84579577), (9.0, 9.0, 55.9996250), (0.5, -8.0, -2.1023306), (-20.0, 3.0, -1.317e-13)],
)
def test_the_activation_at_known_points(gate: float, up: float, expected: float) -> None:
    got = swiglu(torch.tensor([[gate, up]]), alpha=1.702, limit=7.0)
    torch.testing.assert_close(got, torch.tensor([[expected]]), atol=0, rtol=1e-3 if abs(expected) < 1e-6 else 1e-6)


def test_the_activation_is_what_its_page_says(swiglu_case: Case, generator: torch.Generator) -> None:
    (gate_up,), kwargs = swiglu_case(generator)
    gate, up = gate_up.double().chunk(2, -1)
    gate, up = gate.clamp(max=kwargs["limit"]), up.clamp(-kwargs["limit"], kwargs["limit"])
    expected = gate / (1 + torch.exp(-kwargs["alpha"] * gate)) * (up + 1)
    torch.testing.assert_close(swiglu(gate_up, **kwargs).double(), expected, atol=1e-5, rtol=1e-5)


def test_experts_are_chosen_with_the_bias_and_weighed_without_it(
    choose_experts_case: Case, generator: torch.Generator
) -> None:
    (logits, bias), kwargs = choose_experts_case(generator)
    ids, weights = choose_experts(logits, bias, **kwargs)
    for t in range(len(logits)):
        score = 1 / (1 + torch.exp(-logits[t].double()))
        best = sorted(range(len(bias)), key=lambda e: -float(score[e] + bias[e]))[: kwargs["top_k"]]
        assert ids[t].tolist() == best
        expected = score[best] / score[best].sum() * kwargs["scaling"]
        torch.testing.assert_close(weights[t].double(), expected, atol=1e-6, rtol=1e-5)


def test_norm_and_residual(rms_norm_case: Case, generator: torch.Generator) -> None:
    (x, residual, weight), kwargs = rms_norm_case(generator)
    normed, total = rms_norm(x, residual, weight, **kwargs)
    expected = x if residual is None else x + residual
    assert torch.equal(total, expected)
    double = torch.nn.functional.rms_norm(expected.double(), expected.shape[-1:], 1 + weight.double(), kwargs["eps"])
    torch.testing.assert_close(normed.double(), double, atol=1e-5, rtol=1e-5)
