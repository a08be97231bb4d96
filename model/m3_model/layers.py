"""The parts that attention and feed-forward layers share. Legend: T tokens, C hidden size, F rotated pairs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from m3_kernels.swiglu import swiglu
from m3_model.config import M3Config
from m3_model.matrix import AnyMatrix


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """Cosines and sines of the new tokens' positions, computed once a step for all layers."""

    cos_TF: Tensor
    sin_TF: Tensor

    @classmethod
    def at(cls, positions_T: Tensor, config: M3Config) -> "Rotation":
        """Angle of pair i at position p: p * theta ** (-2 i / rotary_dim), in float32."""
        exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32, device=positions_T.device)
        frequencies_F = 1.0 / config.rope_theta ** (exponents / config.rotary_dim)
        angles_TF = positions_T[:, None].float() * frequencies_F
        return cls(cos_TF=angles_TF.cos(), sin_TF=angles_TF.sin())


@dataclass(frozen=True, kw_only=True)
class GatedMlp:
    """The feed-forward part of dense layers, and an expert of the others."""

    gate_up: AnyMatrix
    """The gate rows, then the up rows."""
    down: AnyMatrix
    alpha: float
    limit: float

    def __call__(self, x_TC: Tensor) -> Tensor:
        return self.down(swiglu(self.gate_up(x_TC), alpha=self.alpha, limit=self.limit))
