"""The choice of experts in one Triton pass, a token a program. Legend: as in the reference."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.launch import check_same_device, on_device_of


def choose_experts(logits_TE: Tensor, bias_E: Tensor, *, top_k: int, scaling: float) -> tuple[Tensor, Tensor]:
    """As the reference. Errors: ValueError for tensors that are not contiguous float32 or do not fit together."""
    check_same_device(logits=logits_TE, bias=bias_E)
    T, E = logits_TE.shape
    if bias_E.shape != (E,) or not 1 <= top_k <= E:
        raise ValueError(f"{top_k} of {E} experts cannot be chosen with a bias of {tuple(bias_E.shape)}")
    if not all(t.is_contiguous() and t.dtype == torch.float32 for t in (logits_TE, bias_E)):
        raise ValueError("logits and bias must be contiguous float32")
    ids_TK = torch.empty(T, top_k, dtype=torch.int64, device=logits_TE.device)
    weights_TK = torch.empty(T, top_k, dtype=torch.float32, device=logits_TE.device)
    if T:
        with on_device_of(logits_TE):
            _choose[(T,)](
                logits_TE,
                bias_E,
                ids_TK,
                weights_TK,
                scaling,
                E,
                K=top_k,
                WIDTH=triton.next_power_of_2(E),
                SLOTS=triton.next_power_of_2(top_k),
                num_warps=1,
            )
    return ids_TK, weights_TK


@triton.jit
def _choose(
    logits, bias, ids, weights, scaling, E, K: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, WIDTH)
    score = 1 / (1 + tl.exp(-tl.load(logits + t * E + e, mask=e < E, other=0.0)))
    left = tl.where(e < E, score + tl.load(bias + e, mask=e < E, other=0.0), float("-inf"))
    slot = tl.arange(0, SLOTS)
    chosen, counts = tl.zeros([SLOTS], tl.int64), tl.zeros([SLOTS], tl.float32)
    for k in tl.static_range(K):
        best = tl.argmax(left, 0)
        chosen = tl.where(slot == k, best, chosen)
        counts = tl.where(slot == k, tl.sum(tl.where(e == best, score, 0.0), 0), counts)
        left = tl.where(e == best, float("-inf"), left)
    tl.store(ids + t * K + slot, chosen, mask=slot < K)
    tl.store(weights + t * K + slot, counts * (scaling / tl.sum(counts, 0)), mask=slot < K)
