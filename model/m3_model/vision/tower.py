"""The vision tower's layers: full attention between the patches of one segment.

Legend: P patches, E width, H heads, D head size, A rotated pairs of a head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from m3_model.vision.config import VisionConfig


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A matrix and its bias."""

    weight_OI: Tensor
    bias_O: Tensor

    def __call__(self, x_PI: Tensor) -> Tensor:
        return F.linear(x_PI, self.weight_OI, self.bias_O)


@dataclass(frozen=True, kw_only=True)
class LayerNorm:
    """A true layer norm; unlike the text model's norms, its weight is not an offset from one."""

    weight_E: Tensor
    bias_E: Tensor
    eps: float

    def __call__(self, x_PE: Tensor) -> Tensor:
        return F.layer_norm(x_PE, self.weight_E.shape, self.weight_E, self.bias_E, self.eps)


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """Two matrices with the exact GELU between them: in the tower, the projector and the merger."""

    fc1: Linear
    fc2: Linear

    def __call__(self, x_PI: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x_PI)))


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """Cosines and sines of the patches' places, computed once for all layers."""

    cos_PA: Tensor
    sin_PA: Tensor

    @classmethod
    def at(cls, positions_P3: Tensor, config: VisionConfig) -> "Rotation":
        """Time, height and width each have the same frequencies, theta ** (-i / n) for i < n, in float32."""
        n = config.axis_frequencies
        exponents = torch.arange(0, 2 * n, 2, dtype=torch.float32, device=positions_P3.device)
        frequencies = 1.0 / config.rope_theta ** (exponents / (2 * n))
        angles_PA = (positions_P3[:, :, None].float() * frequencies).flatten(1)
        return cls(cos_PA=angles_PA.cos(), sin_PA=angles_PA.sin())

    def __call__(self, x_PHD: Tensor) -> Tensor:
        """Rotate pairs (i, i + A) in float32; dimensions from 2 A on stay as they are."""
        A = self.cos_PA.shape[1]
        cos_P1A, sin_P1A = self.cos_PA[:, None], self.sin_PA[:, None]
        first, second, rest = x_PHD.float().tensor_split((A, 2 * A), dim=-1)
        rotated = (first * cos_P1A - second * sin_P1A, second * cos_P1A + first * sin_P1A, rest)
        return torch.cat(rotated, dim=-1).to(x_PHD.dtype)


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Every patch attends to every patch that is given with it."""

    qkv: Linear
    output: Linear
    num_heads: int

    def __call__(self, x_PE: Tensor, rotation: Rotation) -> Tensor:
        q_PHD, k_PHD, v_PHD = self.qkv(x_PE).view(len(x_PE), 3, self.num_heads, -1).unbind(1)
        q_1HPD, k_1HPD, v_1HPD = (part.transpose(0, 1)[None] for part in (rotation(q_PHD), rotation(k_PHD), v_PHD))
        attended_1HPD = F.scaled_dot_product_attention(q_1HPD, k_1HPD, v_1HPD)
        return self.output(attended_1HPD[0].transpose(0, 1).flatten(1))


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Attention and a feed-forward part, each behind a norm."""

    norm1: LayerNorm
    attention: Attention
    norm2: LayerNorm
    mlp: Mlp

    def __call__(self, x_PE: Tensor, rotation: Rotation) -> Tensor:
        x_PE = x_PE + self.attention(self.norm1(x_PE), rotation)
        return x_PE + self.mlp(self.norm2(x_PE))
