"""Grouped experts in plain torch. Legend: T tokens, C hidden size, E experts, I expert width, K experts a token."""

import torch
from torch import Tensor

from m3_kernels.swiglu.reference import swiglu


def moe_experts(
    x_TC: Tensor,
    w13_EXC: Tensor,
    w2_ECI: Tensor,
    expert_ids_TK: Tensor,
    weights_TK: Tensor,
    *,
    alpha: float,
    limit: float,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Sum, for each token, the outputs of its experts times their weights.

    Shapes: w13_EXC stacks the I gate rows and then the I up rows of each expert; expert ids int64 in 0..E-1, no expert
    twice in a row, or -1 for one that lies elsewhere and adds nothing; weights_TK float32 with every scaling factor
    already in.
    With `scales` both matrices are quantised, with a uint8 power of two for every 32 neighbouring inputs of a row,
    [E, X, C / 32] and [E, C, I / 32], of 128 (for 2 ** 1) at most, on which kernels rely: MXFP8 as float8_e4m3fn, MXFP4
    as uint8 of two e2m1 numbers, the earlier input in the low half, so [E, X, C / 2] and [E, C, I / 2].
    Returns: [T, C] in x's dtype, summed in float32.
    Tokens are sorted by expert, so each expert that was chosen runs once on its tokens and the others not at all.
    """
    check_scales(w13_EXC, w2_ECI, scales)
    T, K = expert_ids_TK.shape
    if T == 0:
        return torch.zeros_like(x_TC)
    flat = expert_ids_TK.flatten()
    num_elsewhere, *counts = torch.bincount(flat + 1, minlength=1 + len(w13_EXC)).tolist()
    order = flat.argsort(stable=True)[num_elsewhere:]
    token = order // K
    x = x_TC[token].float()
    gate_up = x.new_empty(len(order), w13_EXC.shape[1])
    down = x.new_empty(len(order), w2_ECI.shape[1])
    for expert, rows in _groups(counts):
        torch.mm(x[rows], _matrix(w13_EXC, scales and scales[0], expert).T, out=gate_up[rows])
    hidden = swiglu(gate_up, alpha=alpha, limit=limit)
    for expert, rows in _groups(counts):
        torch.mm(hidden[rows], _matrix(w2_ECI, scales and scales[1], expert).T, out=down[rows])
    down *= weights_TK.flatten()[order, None]
    # Back into the token's K neighbouring rows and summed there: the same order of additions in every batch.
    outputs = down.new_zeros(T * K, down.shape[1]).index_copy_(0, order, down)
    return outputs.view(T, K, -1).sum(1).to(x_TC.dtype)


def _matrix(weights: Tensor, scales: Tensor | None, expert: int) -> Tensor:
    """One expert's matrix in float32."""
    matrix = weights[expert]
    if scales is None:
        return matrix.float()
    return dequantised(unpacked_e2m1(matrix) if matrix.dtype == torch.uint8 else matrix, scales[expert])


def dequantised(values_XC: Tensor, scale_XG: Tensor) -> Tensor:
    """The float32 matrix of numbers and the powers of two for every 32 of a row."""
    factors = torch.exp2(scale_XG.double() - 127).float()
    return (values_XC.float().view(len(values_XC), -1, 32) * factors[..., None]).view(values_XC.shape)


def unpacked_e2m1(packed: Tensor) -> Tensor:
    """The float32 numbers in bytes of two, [..., n] to [..., 2 n]: a sign, two bits of exponent, one of mantissa."""
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=packed.device)
    table = torch.cat((magnitudes, -magnitudes))
    return table[torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()]


def inputs_per_element(matrix: Tensor) -> int:
    """How many inputs one stored element of a weight matrix holds: two in bytes, else one."""
    return 2 if matrix.dtype == torch.uint8 else 1


def check_scales(w13_EXC: Tensor, w2_ECI: Tensor, scales: tuple[Tensor, Tensor] | None) -> None:
    """Errors: ValueError if the scales do not belong to the matrices, or only one of the two goes without."""
    for name, matrix, scale in (("w13", w13_EXC, scales and scales[0]), ("w2", w2_ECI, scales and scales[1])):
        if (matrix.dtype in (torch.float8_e4m3fn, torch.uint8)) != (scale is not None):
            raise ValueError(f"{name} is {matrix.dtype} and comes {'with' if scale is not None else 'without'} scales")
        if scale is not None:
            inputs = matrix.shape[2] * inputs_per_element(matrix)
            expected = (*matrix.shape[:2], inputs // 32)
            if scale.dtype != torch.uint8 or tuple(scale.shape) != expected or inputs % 32:
                raise ValueError(
                    f"{name} {tuple(matrix.shape)} needs uint8 scales {expected}, got {tuple(scale.shape)}"
                )
    if w13_EXC.dtype != w2_ECI.dtype:
        raise ValueError(f"w13 and w2 must be stored alike, got {w13_EXC.dtype} and {w2_ECI.dtype}")


def _groups(counts: list[int]) -> list[tuple[int, slice]]:
    """Every expert with tokens and where its rows stand."""
    groups, start = [], 0
    for expert, count in enumerate(counts):
        if count:
            groups.append((expert, slice(start, start + count)))
        start += count
    return groups
