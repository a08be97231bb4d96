"""Make nano's checkpoint from trained weights: `python -m training.export RUN/weights.pt`.

Writes config.json (that of the run, which lies beside the weights) and MXFP8 tensors under the released names. The
index branch is not trained: its initial value copies the main branch (index head r = mean of group r's query heads,
index key = mean of the key heads), which only matters for prompts longer than top_k * block_size tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from m3_model import names
from m3_model.checkpoint import write_checkpoint
from m3_model.config import M3Config
from m3_model.tensor_files import SINGLE
from m3_model.vision.config import VisionConfig
from training.model import NANO

MAX_BYTES = 28_000_000
"""Of the whole model: it is embedded in the package."""


def released_tensors(
    weights: dict[str, Tensor], *, query_heads: int, kv_heads: int, head_dim: int, index_heads: int
) -> dict[str, Tensor]:
    """The trained tensors under M3's released names, float32."""
    result: dict[str, Tensor] = {}
    root = "language_model.model."
    result[root + "embed_tokens.weight"] = weights["embedding"]
    result[root + "norm.weight"] = weights["final_norm"]
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers."))
    for index in range(layers):
        w = {name.split(".", 2)[2]: t.float() for name, t in weights.items() if name.startswith(f"layers.{index}.")}
        layer = f"{root}layers.{index}."
        result[layer + "input_layernorm.weight"] = w["input_norm"]
        result[layer + "post_attention_layernorm.weight"] = w["post_norm"]
        attention = layer + "self_attn."
        for name in ("q", "k", "v", "o"):
            result[f"{attention}{name}_proj.weight"] = w[name]
        for name in ("q_norm", "k_norm"):
            result[f"{attention}{name}.weight"] = w[name]
        if "router" not in w:
            for name in ("gate", "up", "down"):
                result[f"{layer}mlp.{name}_proj.weight"] = w[name][0]
            continue
        groups = w["q"].view(index_heads, query_heads // index_heads, head_dim, -1)
        result[attention + "index_q_proj.weight"] = groups.mean(1).flatten(0, 1)
        result[attention + "index_k_proj.weight"] = w["k"].view(kv_heads, head_dim, -1).mean(0)
        result[attention + "index_q_norm.weight"] = w["q_norm"].clone()
        result[attention + "index_k_norm.weight"] = w["k_norm"].clone()
        moe = layer + "block_sparse_moe."
        result[moe + "gate.weight"] = w["router"]
        result[moe + "e_score_correction_bias"] = w["router_bias"]
        experts = len(w["gate"]) - 1
        for expert in range(experts):
            for released, name in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
                result[f"{moe}experts.{expert}.{released}.weight"] = w[name][expert]
        for name in ("gate", "up", "down"):
            result[f"{moe}shared_experts.{name}_proj.weight"] = w[name][experts]
    return {name: tensor.float().contiguous() for name, tensor in result.items()}


def released_eyes(weights: dict[str, Tensor], config: VisionConfig) -> dict[str, Tensor]:
    """The trained eyes under M3's released names, float32; the patch embedding in equal parts for each frame."""
    w = {name.removeprefix("eyes."): tensor.float() for name, tensor in weights.items() if name.startswith("eyes.")}
    result: dict[str, Tensor] = {}

    def add(released: str, trained: str) -> None:
        result[f"{released}.weight"], result[f"{released}.bias"] = w[trained], w[f"{trained}_bias"]

    frames, side = config.temporal_patch_size, config.patch_size
    one_frame = w["patch"].view(-1, 3, 1, side, side) / frames
    result[names.PATCH_EMBEDDING] = one_frame.expand(-1, -1, frames, -1, -1).contiguous()
    add(names.PRE_NORM, "pre_norm")
    for index in range(config.num_layers):
        prefix, trained = names.vision_layer_prefix(index), f"layers.{index}."
        for number in (1, 2):
            add(f"{prefix}layer_norm{number}", f"{trained}norm{number}")
            add(f"{prefix}mlp.fc{number}", f"{trained}fc{number}")
        for released, name in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o")):
            add(f"{prefix}self_attn.{released}_proj", trained + name)
    for number in (1, 2):
        add(f"{names.PROJECTOR}linear_{number}", f"projector{number}")
        add(f"{names.MERGER}linear_{number}", f"merger{number}")
    return result


def is_quantized(name: str, tensor: Tensor) -> bool:
    """Every matrix but the routers, the tied embedding included."""
    return tensor.ndim == 2 and not name.endswith("block_sparse_moe.gate.weight")


def export(weights: dict[str, Tensor], config: M3Config, folder: Path) -> None:
    """Write the checkpoint. Errors: ValueError if it is larger than the package may hold; it is then removed again."""
    tensors = released_tensors(
        weights,
        query_heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        index_heads=config.index_heads,
    )
    if config.vision is not None:
        tensors |= released_eyes(weights, config.vision)
    write_checkpoint(folder, config, tensors, quantized=lambda name: is_quantized(name, tensors[name]))
    size = (folder / SINGLE).stat().st_size
    if size > MAX_BYTES:
        (folder / SINGLE).unlink()
        raise ValueError(
            f"the model has {size:,} bytes, more than {MAX_BYTES:,}: leave out a layer, or make it smaller"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path, help="weights.pt of a run, beside its config.json")
    parser.add_argument("--to", type=Path, default=NANO)
    arguments = parser.parse_args()
    config = M3Config.from_folder(arguments.weights.parent)
    export(torch.load(arguments.weights, map_location="cpu", weights_only=True), config, arguments.to)


if __name__ == "__main__":
    main()
