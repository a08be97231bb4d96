"""Long prompts through the attention that comes with torch: cuDNN's on a GPU, which no kernel of ours is faster than.

It knows causal masks of square shape only, so new tokens behind a prefix take two calls: one on the prefix without a
mask and one on themselves, weighed by the sums of their exponentials. Legend: L new tokens, M keys.
"""

import torch
from torch import Tensor

from m3_kernels.batch import AttentionBatch, sequence_pages

MIN_QUERIES = 1024
"""From so many new tokens on a sequence is worth being put in order for a library."""


def attend_sequence(
    out_THD: Tensor, q_THD: Tensor, k_PSGD: Tensor, v_PSGD: Tensor, batch: AttentionBatch, b: int, *, scale: float
) -> None:
    """Write the rows of sequence b. Not for a captured graph: lengths are read on the host."""
    rows = slice(batch.first_rows[b], batch.first_rows[b] + batch.query_counts[b])
    prefix = batch.lengths[b] - batch.query_counts[b]
    q_1HLD = q_THD[rows].transpose(0, 1)[None]
    k_1GMD, v_1GMD = (
        sequence_pages(cache, batch.pages[b], batch.lengths[b]).transpose(0, 1)[None] for cache in (k_PSGD, v_PSGD)
    )
    out, log_sum = _attend(q_1HLD, k_1GMD[:, :, prefix:], v_1GMD[:, :, prefix:], causal=True, scale=scale)
    if prefix:
        before, log_sum_before = _attend(
            q_1HLD, k_1GMD[:, :, :prefix], v_1GMD[:, :, :prefix], causal=False, scale=scale
        )
        share = torch.sigmoid(log_sum_before - log_sum)[..., None]
        out = torch.lerp(out.float(), before.float(), share)
    out_THD[rows] = out[0].transpose(0, 1).to(out_THD.dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """(attention, logarithm of the sum of its weights [1, H, L])."""
    if q.is_cuda:
        found = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
        return found[0], found[1].view(q.shape[:3])
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return out, log_sum
