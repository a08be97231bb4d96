"""The oracle: transformers' whole minimax_m3_vl model and its processors, with the tensors of one random checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLConfig
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3SparseForConditionalGeneration

from m3_model.config import M3Config
from m3_model.loading import load_decoder
from m3_model.random_checkpoint import tiny_config, tiny_vision_config, write_random_checkpoint
from m3_model.vision.config import VisionConfig
from m3_model.vision.encoder import VisionEncoder


class VisionOracle:
    """One random checkpoint, seen by transformers through its own renaming, and by us."""

    def __init__(self, folder: Path, config: M3Config) -> None:
        assert config.vision is not None
        write_random_checkpoint(folder, config, seed=2, dtype=torch.float32)
        self.config, self.vision = config, config.vision
        self.decoder = load_decoder(folder)
        assert self.decoder.vision is not None
        self.encoder: VisionEncoder = self.decoder.vision
        data = json.loads((folder / "config.json").read_text())
        for key in ("architectures", "hidden_act", "n_shared_experts", "scoring_func"):
            data["text_config"].pop(key)
        compression = data["vision_config"]["img_token_compression_config"]  # they do not look into it
        data["vision_config"].update({key: compression[key] for key in ("spatial_merge_size", "temporal_patch_size")})
        self.theirs = MiniMaxM3SparseForConditionalGeneration.from_pretrained(
            folder, config=MiniMaxM3VLConfig(**data), dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def features(self, patches_PX: Tensor, grid: Sequence[int]) -> tuple[Tensor, Tensor]:
        """What their tower makes of the patches, and their merged tokens, given the grid of one image or video."""
        with torch.inference_mode():
            found = self.theirs.get_image_features(patches_PX, torch.tensor(self.segments(grid)))
        return found.last_hidden_state[0], torch.cat(found.pooler_output)

    def segments(self, grid: Sequence[int]) -> list[list[int]]:
        times, rows, columns = grid
        size = self.vision.segment_size
        return [[min(size, times - start), rows, columns] for start in range(0, times, size)]


@pytest.fixture
def make_vision_oracle(tmp_path: Path) -> Callable[..., VisionOracle]:
    def make(**changes: Any) -> VisionOracle:
        config = tiny_config(vision=tiny_vision_config(**changes), block_size=16, top_k_blocks=3)
        return VisionOracle(tmp_path / "vision", config)

    return make


@pytest.fixture(scope="session")
def released() -> VisionConfig:
    """The released image side."""
    return VisionConfig(
        hidden_size=1280,
        num_layers=32,
        num_heads=16,
        intermediate_size=5120,
        projector_size=6144,
        image_token_id=200025,
        video_token_id=200026,
    )


def noise(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Coloured noise on slopes, so that both details and surfaces are in it."""
    generator = np.random.default_rng(seed)
    slope = np.linspace(0, 200, shape[-2])[:, None]
    return (generator.integers(0, 56, shape) + slope).astype(np.uint8)


@pytest.fixture(name="noise")
def _noise() -> Callable[..., np.ndarray[Any, np.dtype[np.uint8]]]:
    return noise
