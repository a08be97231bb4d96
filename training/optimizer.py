"""Muon for the matrices, AdamW for everything else.

Muon (Jordan 2024) replaces the momentum of a matrix by its nearest orthogonal matrix, found by a few Newton-Schulz
steps. Matrices of one shape are stacked and orthogonalised together, so a step is a handful of batched products.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def orthogonalize(stack_NRC: Tensor, steps: int = 5) -> Tensor:
    """The nearest orthogonal matrix of each matrix, approximately (singular values in about 0.7 … 1.2)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = stack_NRC.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon:
    """Momentum, orthogonalised. `lr` is a tensor so that changing it compiles nothing anew."""

    def __init__(self, parameters: list[nn.Parameter], *, momentum: float = 0.95, weight_decay: float = 0.05):
        self.momentum, self.weight_decay = momentum, weight_decay
        self.groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        for p in parameters:
            self.groups.setdefault((p.shape[-2], p.shape[-1]), []).append(p)
        self.velocity = {
            shape: torch.cat([torch.zeros_like(p).view(-1, *shape) for p in group])
            for shape, group in self.groups.items()
        }
        device = parameters[0].device
        self._orthogonalize = torch.compile(orthogonalize) if device.type == "cuda" else orthogonalize

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for shape, group in self.groups.items():
            gradient = torch.cat([p.grad.view(-1, *shape) for p in group if p.grad is not None])
            velocity = self.velocity[shape]
            velocity.lerp_(gradient, 1 - self.momentum)
            update = self._orthogonalize(gradient.lerp(velocity, self.momentum))
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            at = 0
            for p in group:
                count = p.numel() // (shape[0] * shape[1])
                p.mul_(1 - lr * self.weight_decay)
                p.add_(update[at : at + count].view_as(p), alpha=-lr * scale)
                at += count


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The matrices that Muon moves; the embedding, the norms and the routers, which AdamW moves."""
    matrices, rest = [], []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim >= 2 and not name.endswith(("embedding", "router"))
        (matrices if is_matrix else rest).append(parameter)
    return matrices, rest
