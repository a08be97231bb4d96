"""Stored weights come out of the kernels' tiles as exactly the numbers they stand for."""

from typing import Any

import pytest
import torch

from m3_kernels.moe_experts.reference import unpacked_e2m1

triton = pytest.importorskip("triton", reason="kernels need Triton")
tl = pytest.importorskip("triton.language")

from m3_kernels.moe_experts.dequantise import weights_of  # noqa: E402 - Triton may be absent

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N, WIDTH = 32, 512


@triton.jit
def _dequantise(
    w, scale, out, num_rows, WIDTH: tl.constexpr, STEP: tl.constexpr, BITS: tl.constexpr, SCALES: tl.constexpr,
    PTX: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, N).to(tl.int64)
    for at in range(0, WIDTH, STEP):
        tile = weights_of(w, scale, row, row < num_rows, at, out.dtype.element_ty, WIDTH, STEP, BITS, SCALES, PTX)
        tl.store(out + row[:, None] * WIDTH + at + tl.arange(0, STEP)[None, :], tile)


def stored(form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(bytes with every value at every place of four, the numbers before scaling)."""
    bytes_NC = (torch.arange(N)[:, None] * 8 + torch.arange(WIDTH)[None, :]).to(torch.uint8)
    if form == "MXFP8":
        bytes_NC[(bytes_NC & 127) == 127] = 0  # NaN
        weights = bytes_NC.view(torch.float8_e4m3fn)
        return weights, weights.float()
    weights = bytes_NC[:, : WIDTH // 2].contiguous()
    return weights, unpacked_e2m1(weights)


@pytest.mark.parametrize(
    ("form", "dtype", "step", "together"),
    [
        ("MXFP8", "float32", 64, 4),
        ("MXFP8", "float32", 128, 4),
        pytest.param("MXFP8", "bfloat16", 64, 4, marks=pytest.mark.gpu),  # instructions that only a GPU has
        pytest.param("MXFP8", "bfloat16", 128, 4, marks=pytest.mark.gpu),
        ("MXFP8", "float32", 32, 1),
        ("MXFP4", "float32", 64, 1),
        ("MXFP4", "float32", 128, 1),
    ],
)
def test_every_stored_number_times_every_power_is_exact(form: str, dtype: str, step: int, together: int) -> None:
    kind = getattr(torch, dtype)
    weights, values = stored(form)
    for low in (0, 110, 240):
        powers = (low + torch.arange(N * WIDTH // 32) % 14).to(torch.uint8).view(N, WIDTH // 32)
        factors = torch.exp2(powers.double() - 127).float().repeat_interleave(32, 1)
        scales: Any = powers.to(DEVICE)
        out = torch.full((N, WIDTH), 7.0, dtype=kind, device=DEVICE)
        _dequantise[(1,)](
            weights.to(DEVICE), scales.view(torch.int32) if together == 4 else scales, out, N - 3, WIDTH=WIDTH,
            STEP=step, BITS=8 if form == "MXFP8" else 4, SCALES=together,
            PTX=dtype == "bfloat16", N=N,
        )  # fmt: skip
        assert torch.equal(out[: N - 3].cpu(), (values * factors)[: N - 3].to(kind))
