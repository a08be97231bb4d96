"""Checkpoints with an image side: names as released, all of it or nothing, text-only ones as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from m3_model import names
from m3_model.checkpoint import Checkpoint, CheckpointError
from m3_model.config import M3Config
from m3_model.loading import load_decoder
from m3_model.random_checkpoint import tiny_config, tiny_vision_config, write_random_checkpoint
from m3_model.sizes import count_parameters, weight_bytes
from m3_model.vision.config import VisionConfig

COMPRESSION = {"image_token_compression_method": "patch_merge", "spatial_merge_size": 2, "temporal_patch_size": 2}
RELEASED: dict[str, Any] = {
    "img_token_compression_config": COMPRESSION,
    "image_grid_pinpoints": "[(336, 336)]", "image_seq_length": 576, "image_token_index": 200025,
    "video_token_index": 200026, "multimodal_projector_bias": True, "projector_hidden_size": 6144,
    "projector_hidden_act": "gelu", "process_image_mode": "dynamic_res", "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 1280, "num_hidden_layers": 32, "num_attention_heads": 16,
        "intermediate_size": 5120, "hidden_act": "gelu", "patch_size": 14, "num_channels": 3, "image_size": 2016,
        "projection_dim": 6144, "position_embedding_type": "rope", "rope_mode": "3d", "rope_theta": 10000.0,
        "layer_norm_eps": 1e-5, "attention_dropout": 0, "vocab_size": 32000, "vision_segment_max_frames": 4,
        "img_token_compression_config": COMPRESSION,
    },
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_random_checkpoint(tmp_path, tiny_config(vision=tiny_vision_config()))
    return tmp_path


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    stored = load_file(folder / "model.safetensors")
    edit(stored)
    save_file(stored, folder / "model.safetensors")


def drop_image_side(stored: dict[str, torch.Tensor]) -> None:
    for name in [name for name in stored if name.startswith(names.OTHER_TOWERS)]:
        del stored[name]


def test_the_release_is_read_as_published_and_has_its_published_sizes(released: VisionConfig) -> None:
    assert VisionConfig.from_json(RELEASED) == released
    assert (released.head_dim, released.axis_frequencies, released.patch_values) == (80, 13, 1176)
    specs = names.vision_tensors(tiny_config(hidden_size=6144, vision=released))
    assert len(specs) == 523
    sizes = [sum(prod(s.shape) for n, s in specs.items() if n.startswith(prefix)) for prefix in names.OTHER_TOWERS]
    assert sizes == [631_185_920, 45_625_344, 188_755_968]
    assert specs[names.PATCH_EMBEDDING] == names.TensorSpec(shape=(1280, 3, 2, 14, 14), float32=True)
    assert specs["patch_merge_mlp.linear_1.weight"].shape == (6144, 24576)


def test_written_configs_read_back_equal() -> None:
    config = tiny_config(vision=tiny_vision_config(segment_size=3, image_size=448, merge_size=3, rope_theta=5.0))
    assert M3Config.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_mode": "2d"}, "rope_mode is '2d'; this vision tower computes only '3d'"),
        ({"hidden_act": "quick_gelu"}, "hidden_act is 'quick_gelu'"),
        ({"num_attention_heads": 7}, "hidden_size 1280 must be a multiple of num_heads 7"),
        ({"num_attention_heads": 640}, "heads of 2 dimensions have no room for three axes"),
        ({"vision_segment_max_frames": 0}, "segment_size must be positive"),
        ({"image_size": 14}, "image_size must be 28 to 3584 pixels, got 14"),
    ],
)
def test_what_this_tower_does_not_compute_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VisionConfig.from_json({**RELEASED, "vision_config": {**RELEASED["vision_config"], **changes}})


def test_a_missing_key_is_named() -> None:
    data = {key: value for key, value in RELEASED.items() if key != "image_token_index"}
    with pytest.raises(ValueError, match="has a vision_config, but no 'image_token_index'"):
        VisionConfig.from_json(data)


def test_the_image_side_is_loaded_in_the_model_s_dtype_but_for_the_patch_embedding(folder: Path) -> None:
    decoder = load_decoder(folder, dtype=torch.bfloat16)
    encoder = decoder.vision
    assert encoder is not None
    assert encoder.patch_embedding_EX.dtype == torch.float32
    assert {encoder.pre_norm.weight_E.dtype, encoder.merger.fc2.bias_O.dtype} == {torch.bfloat16}
    assert load_file(folder / "model.safetensors")[names.PATCH_EMBEDDING].dtype == torch.float32
    assert Checkpoint.open(folder).ignored == ()


def test_a_16_bit_image_side_is_near_the_exact_one(folder: Path) -> None:
    """Same bfloat16 weights; only activations are rounded in one of the two."""
    exact, rounded = (load_decoder(folder, dtype=dtype).vision for dtype in (torch.float32, torch.bfloat16))
    assert exact is not None
    assert rounded is not None
    pixels = torch.randint(256, (4, 3, 56, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    one, other = exact(pixels), rounded(pixels)
    assert other.dtype == torch.bfloat16
    assert (one - other.float()).norm() < 0.02 * one.norm()


def test_sizes_count_the_image_side(folder: Path) -> None:
    config = Checkpoint.open(folder).config
    stored = load_file(folder / "model.safetensors")
    parameters = count_parameters(config)
    assert parameters.vision == sum(t.numel() for n, t in stored.items() if n.startswith(names.OTHER_TOWERS))
    assert weight_bytes(parameters, 2) == sum(t.nbytes for t in stored.values())
    assert count_parameters(tiny_config()).vision == 0


def test_a_config_of_the_whole_with_the_files_of_the_text_model_is_a_text_model(folder: Path) -> None:
    change(folder, drop_image_side)
    assert Checkpoint.open(folder).config == tiny_config()
    assert load_decoder(folder).vision is None


def test_half_an_image_side_is_told(folder: Path) -> None:
    def damage(stored: dict[str, torch.Tensor]) -> None:
        del stored["patch_merge_mlp.linear_2.bias"]
        stored[names.PATCH_EMBEDDING] = stored[names.PATCH_EMBEDDING].bfloat16()
        stored["vision_tower.vision_model.post_layernorm.weight"] = torch.ones(40)

    change(folder, damage)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder)
    assert caught.value.problems == (
        f"model.safetensors: {names.PATCH_EMBEDDING} has dtype BF16, expected F32",
        "patch_merge_mlp.linear_2.bias is missing: expected with shape (64,), but no file holds it",
        "model.safetensors: vision_tower.vision_model.post_layernorm.weight is no tensor of this configuration",
    )
