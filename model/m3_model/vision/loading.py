"""Build the image side from a checkpoint; names and shapes were checked when it was opened."""

import torch
from torch import Tensor

from m3_model import names
from m3_model.checkpoint import Checkpoint
from m3_model.vision.config import VisionConfig
from m3_model.vision.encoder import VisionEncoder
from m3_model.vision.tower import Attention, Layer, LayerNorm, Linear, Mlp


def load_encoder(
    checkpoint: Checkpoint, config: VisionConfig, dtype: torch.dtype, device: torch.device | str
) -> VisionEncoder:
    """The image side of a checkpoint in dtype, the patch embedding in float32."""

    def read(name: str) -> Tensor:
        return checkpoint.read(name, dtype, device)

    def linear(*parts: str) -> Linear:
        """Matrices of the same inputs as one, their rows in the given order."""
        return Linear(
            weight_OI=torch.cat([read(f"{part}.weight") for part in parts]),
            bias_O=torch.cat([read(f"{part}.bias") for part in parts]),
        )

    def norm(name: str) -> LayerNorm:
        return LayerNorm(weight_E=read(f"{name}.weight"), bias_E=read(f"{name}.bias"), eps=config.layer_norm_eps)

    def layer(prefix: str) -> Layer:
        attention = f"{prefix}self_attn."
        return Layer(
            norm1=norm(f"{prefix}layer_norm1"),
            attention=Attention(
                qkv=linear(*(f"{attention}{part}_proj" for part in "qkv")),
                output=linear(f"{attention}out_proj"),
                num_heads=config.num_heads,
            ),
            norm2=norm(f"{prefix}layer_norm2"),
            mlp=Mlp(fc1=linear(f"{prefix}mlp.fc1"), fc2=linear(f"{prefix}mlp.fc2")),
        )

    return VisionEncoder(
        config=config,
        patch_embedding_EX=read(names.PATCH_EMBEDDING).flatten(1),
        pre_norm=norm(names.PRE_NORM),
        layers=tuple(layer(names.vision_layer_prefix(i)) for i in range(config.num_layers)),
        projector=Mlp(fc1=linear(f"{names.PROJECTOR}linear_1"), fc2=linear(f"{names.PROJECTOR}linear_2")),
        merger=Mlp(fc1=linear(f"{names.MERGER}linear_1"), fc2=linear(f"{names.MERGER}linear_2")),
    )
