"""Frames to patches, in the order in which the tower reads them.

Legend: F frames, H and W pixels; P patches, X numbers of a patch. Patches are listed by time, then by squares of
merge_size x merge_size (rows of squares first), then within a square, so that the patches of a token stand together.
"""

import torch
from torch import Tensor

from m3_model.vision.config import VisionConfig

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""Of the colours red, green and blue from 0 to 1, as the tower was trained."""


def patchify(frames_F3HW: Tensor, config: VisionConfig) -> Tensor:
    """Normalised patches of uint8 frames, float32 [P, X].

    F is a multiple of temporal_patch_size, H and W are multiples of token_size.
    """
    T, S, M = config.temporal_patch_size, config.patch_size, config.merge_size
    frames, _, height, width = frames_F3HW.shape
    mean_311 = torch.tensor(MEAN, device=frames_F3HW.device)[:, None, None]
    std_311 = torch.tensor(STD, device=frames_F3HW.device)[:, None, None]
    pixels = (frames_F3HW / 255 - mean_311) / std_311
    split = pixels.reshape(frames // T, T, 3, height // (S * M), M, S, width // (S * M), M, S)
    return split.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, config.patch_values)


def positions(frames_F3HW: Tensor, config: VisionConfig) -> Tensor:
    """Place of each patch in time, height and width, counted in patches: int64 [P, 3]."""
    S, M = config.patch_size, config.merge_size
    frames, _, height, width = frames_F3HW.shape
    times, rows, columns = frames // config.temporal_patch_size, height // S, width // S
    axes = torch.meshgrid(*(torch.arange(n, device=frames_F3HW.device) for n in (times, rows, columns)), indexing="ij")
    split = torch.stack(axes, -1).view(times, rows // M, M, columns // M, M, 3)
    return split.permute(0, 1, 3, 2, 4, 5).reshape(-1, 3)
