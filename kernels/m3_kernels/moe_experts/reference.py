"""Grouped experts in plain torch. Legend: T tokens, C hidden size, E experts, I expert width, K experts a token."""

import torch
from torch import Tensor


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
    twice in a row; weights_TK float32 with every scaling factor already in.
    With `scales` both matrices are MXFP8: float8_e4m3fn, and a uint8 power of two for every 32 neighbouring inputs of a
    row, [E, X, C / 32] and [E, C, I / 32].
    Returns: [T, C] in x's dtype, summed in float32.
    Tokens are sorted by expert, so each expert that was chosen runs once on its tokens and the others not at all.
    """
    check_scales(w13_EXC, w2_ECI, scales)
    T, K = expert_ids_TK.shape
    if T == 0:
        return torch.zeros_like(x_TC)
    flat = expert_ids_TK.flatten()
    order = flat.argsort(stable=True)
    token = order // K
    x = x_TC[token].float()
    counts = torch.bincount(flat, minlength=len(w13_EXC)).tolist()
    gate_up = x.new_empty(T * K, w13_EXC.shape[1])
    down = x.new_empty(T * K, w2_ECI.shape[1])
    for expert, rows in _groups(counts):
        torch.mm(x[rows], _matrix(w13_EXC, scales and scales[0], expert).T, out=gate_up[rows])
    hidden = swiglu(gate_up, alpha=alpha, limit=limit)
    for expert, rows in _groups(counts):
        torch.mm(hidden[rows], _matrix(w2_ECI, scales and scales[1], expert).T, out=down[rows])
    down *= weights_TK.flatten()[order, None]
    # Back into the token's K neighbouring rows and summed there: the same order of additions in every batch.
    return torch.empty_like(down).index_copy_(0, order, down).view(T, K, -1).sum(1).to(x_TC.dtype)


def _matrix(weights: Tensor, scales: Tensor | None, expert: int) -> Tensor:
    """One expert's matrix in float32."""
    matrix = weights[expert].float()
    if scales is None:
        return matrix
    factors = torch.exp2(scales[expert].double() - 127).float()
    return (matrix.view(len(matrix), -1, 32) * factors[..., None]).view_as(matrix)


def check_scales(w13_EXC: Tensor, w2_ECI: Tensor, scales: tuple[Tensor, Tensor] | None) -> None:
    """Errors: ValueError if the scales do not belong to the matrices, or only one of the two goes without."""
    for name, matrix, scale in (("w13", w13_EXC, scales and scales[0]), ("w2", w2_ECI, scales and scales[1])):
        if (matrix.dtype == torch.float8_e4m3fn) != (scale is not None):
            raise ValueError(f"{name} is {matrix.dtype} and comes {'with' if scale is not None else 'without'} scales")
        if scale is not None:
            expected = (*matrix.shape[:2], matrix.shape[2] // 32)
            if scale.dtype != torch.uint8 or tuple(scale.shape) != expected or matrix.shape[2] % 32:
                raise ValueError(
                    f"{name} {tuple(matrix.shape)} needs uint8 scales {expected}, got {tuple(scale.shape)}"
                )


def swiglu(gate_up_TX: Tensor, *, alpha: float, limit: float) -> Tensor:
    """The gated activation of all feed-forward parts: gate * sigmoid(alpha * gate) * (up + 1), clamped before.

    Shapes: the first half of the last axis is the gate, the second the up part. The gate is clamped from above only,
    the up part on both sides.
    """
    gate, up = gate_up_TX.chunk(2, -1)
    gate = gate.clamp(max=limit)
    return torch.sigmoid(gate * alpha).mul_(gate).mul_(up.clamp(-limit, limit).add_(1))


def _groups(counts: list[int]) -> list[tuple[int, slice]]:
    """Every expert with tokens and where its rows stand."""
    groups, start = [], 0
    for expert, count in enumerate(counts):
        if count:
            groups.append((expert, slice(start, start + count)))
        start += count
    return groups
