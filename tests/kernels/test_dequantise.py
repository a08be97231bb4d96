"""Stored weights come out of the kernels' tiles as exactly the numbers they stand for."""

import pytest
import torch

from m3_kernels.moe_experts.reference import unpacked_e2m1

triton = pytest.importorskip("triton", reason="kernels need Triton")
tl = pytest.importorskip("triton.language")

from m3_kernels.moe_experts.dequantise import LARGEST_POWER, by_piece, piece, stored_tile  # noqa: E402 - Triton may be absent

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N, WIDTH = 32, 480


@triton.jit
def _dequantise(
    w, scale, out, num_rows, WIDTH: tl.constexpr, STEP: tl.constexpr, BITS: tl.constexpr, PACKED: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, N).to(tl.int64)
    PIECES: tl.constexpr = 16 // BITS
    dtype: tl.constexpr = out.dtype.element_ty
    for at in range(0, WIDTH, STEP):
        w_NW, factor_NW = stored_tile(w, scale, row, row < num_rows, at, dtype, WIDTH, STEP, BITS)
        for j in tl.static_range(PIECES):
            c = at + tl.arange(0, STEP // PIECES) * PIECES + j
            tile = piece(w_NW, factor_NW, dtype, BITS, j, PACKED)
            tl.store(out + row[:, None] * WIDTH + c[None, :], tile, mask=(c < WIDTH)[None, :])


def stored(form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(bytes with every value at every place of four, the numbers before scaling)."""
    bytes_NC = (torch.arange(N)[:, None] * 8 + torch.arange(WIDTH)[None, :]).to(torch.uint8)
    if form == "MXFP8":
        bytes_NC[(bytes_NC & 127) == 127] = 0  # NaN
        weights = bytes_NC.view(torch.float8_e4m3fn)
        return weights, weights.float()
    weights = bytes_NC[:, : WIDTH // 2].contiguous()
    return weights, unpacked_e2m1(weights)


@pytest.mark.parametrize("step", [64, 128])
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.gpu)]
)  # the latter by instructions that only a GPU has
@pytest.mark.parametrize("form", ["MXFP8", "MXFP4"])
def test_every_stored_number_times_every_power_is_exact(form: str, dtype: str, step: int) -> None:
    kind = getattr(torch, dtype)
    weights, values = stored(form)
    for low in (0, 60, LARGEST_POWER - 13):
        powers = (low + torch.arange(N * WIDTH // 32) % 14).to(torch.uint8).view(N, WIDTH // 32)
        factors = torch.exp2(powers.double() - 127).float().repeat_interleave(32, 1)
        out = torch.full((N, WIDTH), 7.0, dtype=kind, device=DEVICE)
        _dequantise[(1,)](
            weights.view(torch.int16).to(DEVICE), powers.to(DEVICE), out, N - 3, WIDTH=WIDTH, STEP=step,
            BITS=8 if form == "MXFP8" else 4, PACKED=dtype == "bfloat16", N=N,
        )  # fmt: skip
        assert torch.equal(out[: N - 3].cpu(), (values * factors)[: N - 3].to(kind))


@pytest.mark.parametrize("pieces", [2, 4])
def test_channels_by_piece(pieces: int) -> None:
    x_TC = torch.arange(3 * 32.0).view(3, 32)
    assert torch.equal(by_piece(x_TC, pieces), torch.cat([x_TC[:, j::pieces] for j in range(pieces)], 1))
