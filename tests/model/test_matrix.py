"""The form that a matrix gets on this machine multiplies as the matrix does."""

import pytest
import torch

from m3_model.matrix import HalfMatrix, Matrix, prepare

has_fbgemm = torch.backends.quantized.engine in ("fbgemm", "x86")


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.skipif(not has_fbgemm, reason="this processor has no FBGEMM")
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_stored_formats_become_float16_and_lose_nothing_that_counts(stored: torch.dtype) -> None:
    weight = (numbers(48, 64) * 0.05).to(stored).float()
    matrix = prepare(weight)
    assert isinstance(matrix, HalfMatrix)
    x = numbers(70, 64, seed=1)
    exact = (x.double() @ weight.double().T).float()
    torch.testing.assert_close(matrix(x), exact, atol=1e-6, rtol=1e-6)


@pytest.mark.skipif(not has_fbgemm, reason="this processor has no FBGEMM")
def test_a_row_has_the_same_result_whoever_comes_with_it() -> None:
    matrix = prepare(numbers(832, 384).bfloat16().float())
    x = numbers(40, 384, seed=1)
    together = matrix(x)
    for rows in (slice(0, 1), slice(7, 9), slice(3, 19), slice(39, 40)):
        assert torch.equal(matrix(x[rows]), together[rows])


@pytest.mark.parametrize(
    "weight",
    [
        numbers(8, 16),
        torch.full((8, 16), 1e6),
        torch.full((8, 16), float("nan")),
        torch.full((8, 16), 1e-9),
        numbers(8, 16).bfloat16(),
    ],
    ids=["24 bits", "too large", "no number", "too small", "bfloat16 rows"],
)
def test_what_float16_cannot_hold_stays_as_it_is(weight: torch.Tensor) -> None:
    matrix = prepare(weight)
    assert isinstance(matrix, Matrix)
    assert matrix.weight_XC is weight


def test_a_matrix_of_zeros_is_one_too() -> None:
    assert torch.equal(prepare(torch.zeros(4, 8))(numbers(3, 8)), torch.zeros(3, 4))
