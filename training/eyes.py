"""Nano's eyes as they are trained: the vision tower, its projector and its merger over many pictures at once.

The arithmetic is that of `m3_model.vision` (a test compares the two after export). A picture counts as equal frames, so
the patch embedding is trained as one matrix over a single frame, the sum over all of them, and exported in equal parts.

Letters in names: P patches of all pictures, X numbers of a patch of one frame, E width of the tower, H heads, D head
size, R rotated pairs, N tokens, C width of the text model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from m3_model.vision.config import VisionConfig
from m3_model.vision.patches import MEAN, STD
from m3_model.vision.tower import Rotation
from training.attention import attention, rotate

OUTPUT_SCALE = 0.25
"""Of the last matrix at the start, so that a picture's tokens are as large as the text's embeddings."""


def _matrix(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * scale * columns**-0.5)


def _bias(size: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(size))


class EyesLayer(nn.Module):
    """One layer of the tower. `before` and `after` are compiled; attention runs between them."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.config = config
        E, width = config.hidden_size, config.intermediate_size
        self.norm1, self.norm1_bias = nn.Parameter(torch.ones(E)), _bias(E)
        self.norm2, self.norm2_bias = nn.Parameter(torch.ones(E)), _bias(E)
        self.q, self.q_bias = _matrix(E, E), _bias(E)
        self.k, self.k_bias = _matrix(E, E), _bias(E)
        self.v, self.v_bias = _matrix(E, E), _bias(E)
        self.o, self.o_bias = nn.Parameter(torch.zeros(E, E)), _bias(E)
        self.fc1, self.fc1_bias = _matrix(width, E), _bias(width)
        self.fc2, self.fc2_bias = nn.Parameter(torch.zeros(E, width)), _bias(E)

    def before(self, x_PE: Tensor, cos_PR: Tensor, sin_PR: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values."""
        h = _norm(x_PE, self.norm1, self.norm1_bias, self.config.layer_norm_eps)
        weight, bias = torch.cat([self.q, self.k, self.v]), torch.cat([self.q_bias, self.k_bias, self.v_bias])
        heads = self.config.num_heads
        all_heads = _linear(h, weight, bias).view(len(h), 3 * heads, -1)
        q, k, v = all_heads.split([heads, heads, heads], dim=1)
        q = rotate(q.float(), cos_PR, sin_PR).to(h.dtype)
        k = rotate(k.float(), cos_PR, sin_PR).to(h.dtype)
        return q, k, v.contiguous()

    def after(self, x_PE: Tensor, attended_PHD: Tensor) -> Tensor:
        x_PE = x_PE + _linear(attended_PHD.flatten(1), self.o, self.o_bias)
        h = _norm(x_PE, self.norm2, self.norm2_bias, self.config.layer_norm_eps)
        return x_PE + _linear(F.gelu(_linear(h, self.fc1, self.fc1_bias)), self.fc2, self.fc2_bias)


class Eyes(nn.Module):
    """Patches to the vectors that stand for them in a prompt."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: VisionConfig, text_hidden: int):
        super().__init__()
        self.config = config
        E, inner, C = config.hidden_size, config.projector_size, text_hidden
        self.patch = _matrix(E, config.patch_values // config.temporal_patch_size)
        self.pre_norm, self.pre_norm_bias = nn.Parameter(torch.ones(E)), _bias(E)
        self.layers = nn.ModuleList(EyesLayer(config) for _ in range(config.num_layers))
        self.projector1, self.projector1_bias = _matrix(inner, E), _bias(inner)
        self.projector2, self.projector2_bias = _matrix(C, inner), _bias(C)
        self.merger1, self.merger1_bias = _matrix(inner, config.merge_size**2 * C), _bias(inner)
        self.merger2, self.merger2_bias = _matrix(C, inner, OUTPUT_SCALE), _bias(C)
        pixels = config.patch_size**2
        self.register_buffer("mean", 255 * torch.tensor(MEAN).repeat_interleave(pixels), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(STD).repeat_interleave(pixels), persistent=False)

    def embed(self, patches_PX: Tensor) -> Tensor:
        """The tower's input, from uint8 colours."""
        dtype = torch.bfloat16 if patches_PX.is_cuda else torch.float32
        pixels = (patches_PX.float() - self.mean) / self.std
        x_PE = pixels.to(dtype) @ self.patch.to(dtype).T
        return _norm(x_PE, self.pre_norm, self.pre_norm_bias, self.config.layer_norm_eps)

    def merge(self, x_PE: Tensor) -> Tensor:
        """Projector and merger: one vector for each square of patches, [N, C]."""
        inner = F.gelu(_linear(x_PE, self.projector1, self.projector1_bias))
        projected_PC = _linear(inner, self.projector2, self.projector2_bias)
        squares = projected_PC.view(-1, self.config.merge_size**2 * projected_PC.shape[1])
        inner = F.gelu(_linear(squares, self.merger1, self.merger1_bias))
        return _linear(inner, self.merger2, self.merger2_bias)

    def forward(self, patches_PX: Tensor, places_P2: Tensor, starts: Tensor, longest: int) -> Tensor:
        """The tokens of all pictures. `places_P2` are row and column of each patch in its picture; `starts` the
        pictures' first patches and the number of all, int32."""
        time = torch.zeros_like(places_P2[:, :1])
        rotation = Rotation.at(torch.cat([time, places_P2], dim=1), self.config)
        x = self.embed(patches_PX)
        for layer in self.layers:
            q, k, v = layer.before(x, rotation.cos_PA, rotation.sin_PA)
            x = layer.after(x, attention(q, k, v, starts, longest, causal=False))
        return self.merge(x)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype), bias.to(x.dtype))


def _norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x.float(), weight.shape, weight, bias, eps).to(x.dtype)
