"""What attention kernels share: the online softmax, and how parts of one tile come together.

Where a tile's keys are split among programs, each leaves its part, and the last to arrive adds all parts up in a fixed
order. So the result does not depend on timing, and no second launch is needed.
Legend: W parts, M rows of a tile, D head size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634
MAX_TILES = 1024
"""Tiles whose keys are split; there are never more than programs that the machine runs at once."""
_arrived: dict[tuple[torch.device, int], Tensor] = {}


def arrival_counters(device: torch.device) -> Tensor:
    """How many parts of each tile have come: int32 [MAX_TILES], always left at zero, one for each stream.

    Made at the first call, so that a captured graph neither makes nor clears it: run once before capturing.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    if (device, stream) not in _arrived:
        _arrived[device, stream] = torch.zeros(MAX_TILES, dtype=torch.int32, device=device)
    return _arrived[device, stream]


def bounded(scale: float, max_product: float) -> bool:
    """Whether exp2 of every scaled product, and sums of many, are ordinary numbers: no product is beyond max_product.

    The online softmax subtracts the largest product only to stay within the range of float32. Where queries and keys
    are normed, as M3's are, they can be too short to leave it; then neither maxima nor rescaling are needed.
    """
    return scale * LOG2_E * max_product < 90.0


@triton.jit
def accumulate(dots, scale_log2, v_ND, acc_MD, top_M, sum_M, BOUNDED: tl.constexpr = False, bias_M=0.0):
    """One step of the online softmax, in powers of two: products with keys, and the keys' values.

    `scale_log2` > 0 is applied here, where it costs nothing: it becomes one instruction with the subtraction. So does
    `bias_M`, minus infinity for a row that is to see none of the keys.
    `top_M`, the largest scaled product so far, must be finite: such a row must not subtract infinity from infinity.
    With BOUNDED products are so small that nothing needs to be subtracted, see `bounded`; then top_M stays as it is.
    """
    if BOUNDED:
        weights = tl.exp2(dots * scale_log2 + (tl.zeros_like(top_M) + bias_M)[:, None])
        acc_MD = tl.dot(weights.to(v_ND.dtype), v_ND, acc_MD, input_precision="ieee")
        return acc_MD, top_M, sum_M + tl.sum(weights, 1)
    new_top = tl.maximum(top_M, tl.max(dots, 1) * scale_log2 + bias_M)
    weights = tl.exp2(dots * scale_log2 + (bias_M - new_top)[:, None])
    shrink = tl.exp2(top_M - new_top)
    acc_MD = tl.dot(weights.to(v_ND.dtype), v_ND, acc_MD * shrink[:, None], input_precision="ieee")
    return acc_MD, new_top, sum_M * shrink + tl.sum(weights, 1)


@triton.jit
def is_last(parts_acc, parts_top, parts_sum, arrived, tile, part, num_parts, acc_MD, top_M, sum_M, PARTS: tl.constexpr):
    """Leave the part `part` of `num_parts` <= PARTS of a tile; true for the program that all others came before.

    `top_M` are the largest scores, in powers of two, that `acc_MD` and `sum_M` are relative to.
    """
    M: tl.constexpr = acc_MD.shape[0]
    D: tl.constexpr = acc_MD.shape[1]
    row = (tile * PARTS + part) * M + tl.arange(0, M)
    tl.store(parts_acc + row[:, None] * D + tl.arange(0, D)[None, :], acc_MD)
    tl.store(parts_top + row, top_M)
    tl.store(parts_sum + row, sum_M)
    tl.debug_barrier()  # every thread has written its share before one of them reports it
    last = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == num_parts - 1
    if last:
        tl.store(arrived + tile, 0)  # for the next launch
    return last


@triton.jit
def merged(parts_acc, parts_top, parts_sum, tile, num_parts, M: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr):
    """The sum of a tile's parts, divided by the sum of its weights: [M, D]."""
    m = tl.arange(0, M)
    d = tl.arange(0, D)
    w = tl.arange(0, PARTS)
    at = (tile * PARTS + w[:, None]) * M + m[None, :]
    there = (w < num_parts)[:, None]
    tops_WM = tl.load(parts_top + at, mask=there, other=-1.0e30)
    top_M = tl.max(tops_WM, 0)
    sums_WM = tl.load(parts_sum + at, mask=there, other=0.0)
    sum_M = tl.sum(sums_WM * tl.exp2(tops_WM - top_M[None, :]), 0)
    acc_MD = tl.zeros([M, D], tl.float32)
    # Unrolled, so that all loads are on their way at once; a loop would pay the way to the L2 for each part.
    for i in tl.static_range(PARTS):
        row = (tile * PARTS + i) * M + m
        there = m * 0 + i < num_parts
        share = tl.exp2(tl.load(parts_top + row, mask=there, other=-1.0e30) - top_M)
        part_MD = tl.load(parts_acc + row[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
        acc_MD += part_MD * share[:, None]
    return acc_MD / tl.where(sum_M > 0, sum_M, 1.0)[:, None]
