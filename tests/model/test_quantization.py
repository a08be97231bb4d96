"""MXFP8 is exact to read, and written by the smallest scale that clips nothing."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from m3_model.quantization import dequantize, quantize


def test_every_byte_pair_means_what_the_format_says() -> None:
    """All 256 numbers under all scales but the reserved one, against arithmetic on Python floats."""
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).view(1, 256)
    finite = [i for i in range(256) if i & 0x7F != 0x7F]
    for scale in (0, 1, 100, 126, 127, 128, 200, 254):
        got = dequantize(numbers, torch.full((1, 8), scale, dtype=torch.uint8))[0]
        for byte in finite:
            sign, exponent, mantissa = byte >> 7, byte >> 3 & 15, byte & 7
            value = math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
            expected = (-1) ** sign * math.ldexp(value, scale - 127)
            assert got[byte].item() == torch.tensor(expected).item()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(-120, 120), st.integers(0, 10_000))
def test_quantising_is_close_and_stable(exponent: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(3, 64, generator=generator) * 2.0**exponent
    weight, scale = quantize(matrix)
    restored = dequantize(weight, scale)
    largest = matrix.view(3, 2, 32).abs().amax(-1, keepdim=True)
    # Half a step of e4m3: 1/16 of the number itself, or half the smallest step of the group for small ones.
    smallest = torch.exp2(scale.double() - 127 - 10)[..., None]
    error = (restored - matrix).view(3, 2, 32).abs()
    assert bool((error <= torch.maximum(matrix.view(3, 2, 32).abs() / 16, smallest.float())).all())
    factor = torch.exp2(scale.double() - 127)[..., None]
    assert bool((largest <= 448 * factor).all())
    assert bool(((largest > 224 * factor) | (scale[..., None] == 0)).all())
    again = dequantize(*quantize(restored))
    assert torch.equal(again, restored)


def test_zeros_and_the_largest_number_of_a_group() -> None:
    weight, scale = quantize(torch.tensor([[0.0] * 32 + [448.0] * 32 + [449.0] * 32]))
    assert torch.equal(dequantize(weight, scale)[0, :64], torch.tensor([0.0] * 32 + [448.0] * 32))
    assert scale[0, 1:].tolist() == [127, 128]


@pytest.mark.parametrize(
    ("matrix", "message"), [(torch.ones(2, 33), "groups of 32"), (torch.full((1, 32), math.inf), "not finite")]
)
def test_matrices_that_do_not_fit_are_refused(matrix: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantize(matrix)


def test_scales_of_another_matrix_are_refused() -> None:
    weight, _ = quantize(torch.ones(2, 64))
    with pytest.raises(ValueError, match="needs scales"):
        dequantize(weight, torch.ones(2, 3, dtype=torch.uint8))
