"""Routed experts and the shared one.

Legend: T tokens, S those of them that lie on this rank, C hidden size, E experts, K experts a token.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from m3_kernels.choose_experts import choose_experts
from m3_kernels.moe_experts import moe_experts
from m3_kernels.swiglu import swiglu
from m3_model.group import ALONE, Parallel, Rows
from m3_model.layers import GatedMlp
from m3_model.share import part


@dataclass(frozen=True, kw_only=True)
class Router:
    """Which experts a token goes through, and with which weights. Float32, whatever the model's dtype."""

    gate_EC: Tensor
    bias_E: Tensor
    experts_per_token: int
    scaling: float

    def __call__(self, x_TC: Tensor) -> tuple[Tensor, Tensor]:
        """Returns: (expert ids int64 [T, K], weights float32 [T, K] that sum to the scaling factor)."""
        logits_TE = F.linear(x_TC.float(), self.gate_EC)
        return choose_experts(logits_TE, self.bias_E, top_k=self.experts_per_token, scaling=self.scaling)


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
            if expert >= 0:
                rows_of.setdefault(expert, []).append(row)
        if not rows_of:
            return torch.zeros_like(x_TC)
        chosen = [self.experts[expert] for expert in rows_of]
        sizes = [len(rows) for rows in rows_of.values()]
        order_X = torch.tensor([row for rows in rows_of.values() for row in rows])
        inputs = torch.split(x_TC[order_X // K], sizes)
        gate_up = torch.cat([expert.gate_up(x) for expert, x in zip(chosen, inputs, strict=True)])
        hidden = torch.split(swiglu(gate_up, alpha=chosen[0].alpha, limit=chosen[0].limit), sizes)
        down = torch.cat([expert.down(x) for expert, x in zip(chosen, hidden, strict=True)])
        # A token's K outputs side by side and summed in the order of its choice, whoever shares the step.
        outputs_TKC = down.new_zeros(T * K, down.shape[1]).index_copy_(0, order_X, down).view(T, K, -1)
        return (outputs_TKC * weights_TK[..., None]).sum(1).to(x_TC.dtype)


class Experts(Protocol):
    """Routed experts, wherever they are. On several ranks, an id of -1 is another rank's and adds nothing."""

    def __call__(self, x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class MoE:
    """Scaled sum of the routed experts plus the shared expert, which is neither gated nor scaled."""

    router: Router
    experts: Experts
    """Those of this rank."""
    shared: GatedMlp
    """On several ranks, this rank's part of its width."""
    num_experts: int
    """Of all ranks."""
    whole_shared: GatedMlp | None = None
    """All of the shared expert, where a spread step sends its rows to their experts."""
    parallel: Parallel = ALONE

    def __call__(self, x_SC: Tensor, rows: Rows) -> Tensor:
        """The sum for each row that lies here.

        Every rank adds the part of its experts to all rows. Or, in a spread step, rows travel to the ranks of their
        experts and back, and each rank computes the shared expert for its own rows alone.
        """
        if rows.spread and self.whole_shared is not None:
            return self._sent(x_SC, *self.router(x_SC)) + self.whole_shared(x_SC)
        x_TC = rows.gather(x_SC)
        return rows.sum(self._of_own_experts(x_TC, *self.router(x_TC)) + self.shared(x_TC))

    def _of_own_experts(self, x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """What the experts of this rank add to each row."""
        own = self._own_experts
        if len(own) < self.num_experts:
            # No row is picked out: how many there are would have to travel to the host, once a layer.
            is_own_TK = (ids_TK >= own.start) & (ids_TK < own.stop)
            ids_TK = torch.where(is_own_TK, ids_TK - own.start, -1)
        return self.experts(x_TC, ids_TK, weights_TK)

    def _sent(self, x_SC: Tensor, ids_SK: Tensor, weights_SK: Tensor) -> Tensor:
        """Send each row to the ranks of its experts, and weigh what comes back."""
        group, (S, K) = self.parallel.ranks, ids_SK.shape
        flat_ids = ids_SK.flatten()
        ends = [part(self.num_experts, rank, group.size).stop for rank in range(group.size)]
        target = torch.bucketize(flat_ids, torch.tensor(ends, device=flat_ids.device), right=True)
        order = target.argsort(stable=True)
        counts = torch.bincount(target, minlength=group.size).tolist()
        arrived, arrived_counts = group.exchange(x_SC[order // K], counts)
        ids, _ = group.exchange(flat_ids[order, None], counts)
        if len(ids):
            arrived = self.experts(arrived, ids - self._own_experts.start, torch.ones_like(ids, dtype=torch.float32))
        returned, _ = group.exchange(arrived, arrived_counts)
        outputs_SKC = torch.empty_like(returned).index_copy_(0, order, returned).view(S, K, -1)
        return (outputs_SKC * weights_SK[..., None]).sum(1).to(x_SC.dtype)

    @property
    def _own_experts(self) -> range:
        return part(self.num_experts, self.parallel.ranks.rank, self.parallel.ranks.size)
