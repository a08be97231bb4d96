"""Small random checkpoints in the real format, for tests and trials without weights."""

from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from m3_model import names
from m3_model.checkpoint import write_checkpoint
from m3_model.config import M3Config
from m3_model.vision.config import VisionConfig


def released_config(*, num_dense: int = 3, num_sparse: int = 57) -> M3Config:
    """What the released config.json of M3 says of the text model, with other numbers of layers if asked for."""
    dense: list[Literal["dense"]] = ["dense"] * num_dense
    sparse: Literal["sparse"] = "sparse"
    moe: Literal["moe"] = "moe"
    return M3Config(
        vocab_size=200_064,
        hidden_size=6144,
        attention_kinds=(*dense, *[sparse] * num_sparse),
        mlp_kinds=(*dense, *[moe] * num_sparse),
        num_heads=64,
        num_kv_heads=4,
        head_dim=128,
        rotary_dim=64,
        rope_theta=5e6,
        dense_intermediate_size=12_288,
        expert_intermediate_size=3072,
        shared_intermediate_size=3072,
        num_experts=128,
        experts_per_token=4,
        index_heads=4,
        index_dim=128,
        max_positions=1 << 20,
    )


def tiny_config(**changes: Any) -> M3Config:
    """A few layers of every kind, small enough to run in milliseconds; fields of M3Config may be replaced."""
    fields: dict[str, Any] = {
        "vocab_size": 384,
        "hidden_size": 64,
        "attention_kinds": ("dense", "sparse", "sparse"),
        "mlp_kinds": ("dense", "moe", "moe"),
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
        "rotary_dim": 16,
        "rope_theta": 10000.0,
        "dense_intermediate_size": 96,
        "expert_intermediate_size": 32,
        "shared_intermediate_size": 64,
        "num_experts": 4,
        "experts_per_token": 2,
        "index_heads": 2,
        "index_dim": 32,
        "block_size": 128,
        "top_k_blocks": 16,
        "max_positions": 1 << 20,
    }
    return M3Config(**{**fields, **changes})


def tiny_vision_config(**changes: Any) -> VisionConfig:
    """An image side for `tiny_config`, in whose heads two dimensions are not rotated, as in the release."""
    fields: dict[str, Any] = {
        "hidden_size": 40,
        "num_layers": 2,
        "num_heads": 2,
        "intermediate_size": 48,
        "projector_size": 56,
        "image_token_id": 382,
        "video_token_id": 383,
    }
    return VisionConfig(**{**fields, **changes})


def random_tensors(config: M3Config, *, seed: int = 0) -> dict[str, Tensor]:
    """Tensors of a config, float32, scaled so that activations stay near 1 and every part matters."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, spec in names.tensors(config).items():
        spread = prod(spec.shape[1:]) ** -0.5 if len(spec.shape) > 1 else 0.3
        tensors[name] = torch.randn(spec.shape, generator=generator) * spread
    return tensors


def write_random_checkpoint(
    folder: Path | str, config: M3Config, *, seed: int = 0, quantized: bool = False, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write config.json and model.safetensors; `quantized` stores every text matrix but the router's in MXFP8."""
    specs = names.tensors(config)

    def is_matrix(name: str) -> bool:
        is_text = name.startswith(names.PREFIX)
        return quantized and is_text and len(specs[name].shape) == 2 and not specs[name].float32

    write_checkpoint(folder, config, random_tensors(config, seed=seed), quantized=is_matrix, dtype=dtype)
