"""Routed experts and the shared one. Legend: T tokens, C hidden size, E experts, K experts a token."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from m3_kernels.moe_experts import moe_experts
from m3_model.layers import GatedMlp


@dataclass(frozen=True, kw_only=True)
class Router:
    """Which experts a token goes through, and with which weights. Float32, whatever the model's dtype."""

    gate_EC: Tensor
    bias_E: Tensor
    experts_per_token: int
    scaling: float

    def __call__(self, x_TC: Tensor) -> tuple[Tensor, Tensor]:
        """Returns: (expert ids int64 [T, K], weights float32 [T, K] that sum to the scaling factor).

        The bias decides who is chosen, never how much a chosen expert counts.
        """
        scores_TE = torch.sigmoid(F.linear(x_TC.float(), self.gate_EC))
        ids_TK = torch.topk(scores_TE + self.bias_E, self.experts_per_token, dim=-1).indices
        chosen_TK = scores_TE.gather(1, ids_TK)
        return ids_TK, chosen_TK * (self.scaling / chosen_TK.sum(-1, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class MoE:
    """Scaled sum of the routed experts plus the shared expert, which is neither gated nor scaled."""

    router: Router
    w13_EXC: Tensor
    w2_ECI: Tensor
    shared: GatedMlp

    def __call__(self, x_TC: Tensor) -> Tensor:
        ids_TK, weights_TK = self.router(x_TC)
        routed = moe_experts(
            x_TC, self.w13_EXC, self.w2_ECI, ids_TK, weights_TK, alpha=self.shared.alpha, limit=self.shared.limit
        )
        return routed + self.shared(x_TC)
