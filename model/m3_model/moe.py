"""Routed experts and the shared one. Legend: T tokens, C hidden size, E experts, K experts a token."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from m3_kernels.moe_experts import moe_experts
from m3_kernels.moe_experts.reference import swiglu
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
class StackedExperts:
    """All experts of a layer in two tensors, as kernels read them."""

    w13_EXC: Tensor
    w2_ECI: Tensor
    alpha: float
    limit: float
    scales: tuple[Tensor, Tensor] | None = None
    """Where the two are quantised: what their groups of 32 inputs are multiplied by (m3_kernels.moe_experts)."""

    def __call__(self, x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """Sum, for each token, the outputs of its experts times their weights. Returns: [T, C]."""
        return moe_experts(
            x_TC,
            self.w13_EXC,
            self.w2_ECI,
            ids_TK,
            weights_TK,
            alpha=self.alpha,
            limit=self.limit,
            scales=self.scales,
        )


@dataclass(frozen=True)
class SeparateExperts:
    """Each expert in the form that a CPU multiplies by fastest; the chosen ones run once, on all of their tokens."""

    experts: tuple[GatedMlp, ...]

    def __call__(self, x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """The same sum as StackedExperts."""
        T, K = ids_TK.shape
        rows_of: dict[int, list[int]] = {}
        for row, expert in enumerate(ids_TK.flatten().tolist()):
            rows_of.setdefault(expert, []).append(row)
        chosen = [self.experts[expert] for expert in rows_of]
        sizes = [len(rows) for rows in rows_of.values()]
        order_X = torch.tensor([row for rows in rows_of.values() for row in rows])
        inputs = torch.split(x_TC[order_X // K], sizes)
        gate_up = torch.cat([expert.gate_up(x) for expert, x in zip(chosen, inputs, strict=True)])
        hidden = torch.split(swiglu(gate_up, alpha=chosen[0].alpha, limit=chosen[0].limit), sizes)
        down = torch.cat([expert.down(x) for expert, x in zip(chosen, hidden, strict=True)])
        # A token's K outputs side by side and summed in the order of its choice, whoever shares the step.
        outputs_TKC = torch.empty_like(down).index_copy_(0, order_X, down).view(T, K, -1)
        return (outputs_TKC * weights_TK[..., None]).sum(1).to(x_TC.dtype)


class Experts(Protocol):
    """Routed experts, wherever they are."""

    def __call__(self, x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class MoE:
    """Scaled sum of the routed experts plus the shared expert, which is neither gated nor scaled."""

    router: Router
    experts: Experts
    shared: GatedMlp

    def __call__(self, x_TC: Tensor) -> Tensor:
        return self.experts(x_TC, *self.router(x_TC)) + self.shared(x_TC)
