"""Frames of an image or video to the vectors that stand for them in a prompt.

Legend: F frames, H and W pixels; P patches, X numbers of a patch, E width of the tower; N tokens, C width of the text
model.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from m3_model.vision.config import VisionConfig
from m3_model.vision.patches import patchify, positions
from m3_model.vision.tower import Layer, LayerNorm, Mlp, Rotation


@dataclass(frozen=True, kw_only=True)
class VisionEncoder:
    """The tower, which ends without a norm, the projector of each patch, and the merger of a token's patches."""

    config: VisionConfig
    patch_embedding_EX: Tensor
    """Float32 in a model of any dtype."""
    pre_norm: LayerNorm
    layers: tuple[Layer, ...]
    projector: Mlp
    merger: Mlp

    def __call__(self, frames_F3HW: Tensor) -> Tensor:
        """The tokens of an image or of a whole video, [N, C], by time, then by rows.

        The frames are resized uint8 colours (m3_model.vision.images, m3_model.vision.video), on any device.
        """
        config = self.config
        T, size = config.temporal_patch_size, config.token_size
        frames, height, width = len(frames_F3HW), *frames_F3HW.shape[2:]
        if frames == 0 or frames % T or height % size or width % size:
            raise ValueError(
                f"{frames} frames of {height} x {width} pixels; give a multiple of {T}, of multiples of {size} pixels"
            )
        with torch.inference_mode():
            # Attention stays within a segment, and its times begin at 0, so nothing is shared between segments.
            segments = torch.split(frames_F3HW.to(self.patch_embedding_EX.device), config.segment_size * T)
            return torch.cat([self._tokens(segment) for segment in segments])

    def _tokens(self, frames_F3HW: Tensor) -> Tensor:
        projected_PC = self.projector(self.patch_states(frames_F3HW))
        return self.merger(projected_PC.view(-1, self.config.merge_size**2 * projected_PC.shape[1]))

    def patch_states(self, frames_F3HW: Tensor) -> Tensor:
        """What the tower makes of the patches of one segment, [P, E]."""
        rotation = Rotation.at(positions(frames_F3HW, self.config), self.config)
        embedded_PE = F.linear(patchify(frames_F3HW, self.config), self.patch_embedding_EX)
        x_PE = self.pre_norm(embedded_PE.to(self.pre_norm.weight_E.dtype))
        for layer in self.layers:
            x_PE = layer(x_PE, rotation)
        return x_PE
