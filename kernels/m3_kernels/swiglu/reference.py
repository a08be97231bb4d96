"""The gated activation in plain torch. Legend: T tokens, X twice the width of the feed-forward part."""

import torch
from torch import Tensor


def swiglu(gate_up_TX: Tensor, *, alpha: float, limit: float) -> Tensor:
    """The gated activation of all feed-forward parts: gate * sigmoid(alpha * gate) * (up + 1), clamped before.

    Shapes: the first half of the last axis is the gate, the second the up part. The gate is clamped from above only,
    the up part on both sides.
    """
    width = gate_up_TX.shape[-1] // 2
    gate, up = gate_up_TX[..., :width].clamp(max=limit), gate_up_TX[..., width:].clamp(-limit, limit)
    gated = torch.sigmoid(gate * alpha).mul_(gate)
    return torch.addcmul(gated, gated, up)
