"""What attention kernels share: the online softmax, and how parts of one tile come together.

Where a tile's keys are split among programs, each leaves its part, and the last to arrive adds all parts up in a fixed
order. So the result does not depend on timing, and no second launch is needed.
Legend: W parts, M rows of a tile, D head size.
"""

import triton
import triton.language as tl


@triton.jit
def accumulate(dots, v_ND, acc_MD, top_M, sum_M):
    """One step of the online softmax, in powers of two: scores against keys, and their values.

    `top_M` must be finite: a row that sees none of the keys so far must not subtract infinity from infinity.
    """
    new_top = tl.maximum(top_M, tl.max(dots, 1))
    weights = tl.exp2(dots - new_top[:, None])
    shrink = tl.exp2(top_M - new_top)
    acc_MD = tl.dot(weights.to(v_ND.dtype), v_ND, acc_MD * shrink[:, None])
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
    return tl.atomic_add(arrived + tile, 1, sem="acq_rel") == num_parts - 1


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
    for i in range(num_parts):
        row = (tile * PARTS + i) * M + m
        share = tl.exp2(tl.load(parts_top + row) - top_M)
        acc_MD += tl.load(parts_acc + row[:, None] * D + d[None, :]) * share[:, None]
    return acc_MD / tl.where(sum_M > 0, sum_M, 1.0)[:, None]
