"""What a run begins with: the shipped weights as the trainer has them, with fewer layers and with fresh eyes.

`released_weights` is the reverse of `training.export`. The index branch is left out, since the trainer has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from m3_model.checkpoint import Checkpoint

ROOT = "language_model.model."


def first_weights(source: Path, model: nn.Module, leave_out: Sequence[int]) -> dict[str, Tensor]:
    """What `model` starts with, float32: weights of an earlier run, or a checkpoint's text model and fresh eyes.

    Layers are left out only where the checkpoint has more than the model.
    """
    if source.is_file():
        return {name: t.float() for name, t in torch.load(source, map_location="cpu", weights_only=True).items()}
    fresh = model.state_dict()
    weights = released_weights(source)
    if _layers(weights) > _layers(fresh):
        weights = without_layers(weights, leave_out)
    if _layers(weights) != _layers(fresh):
        raise ValueError(f"{source} leaves {_layers(weights)} layers, but the model has {_layers(fresh)}")
    return {**{name: tensor for name, tensor in fresh.items() if name.startswith("eyes.")}, **weights}


def _layers(weights: Mapping[str, Tensor]) -> int:
    return 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers."))


def released_weights(folder: Path) -> dict[str, Tensor]:
    """The text model of a checkpoint under the trainer's names, float32. Errors: CheckpointError."""
    checkpoint = Checkpoint.open(folder)
    config = checkpoint.config

    def read(name: str) -> Tensor:
        return checkpoint.read(ROOT + name, torch.float32)

    result = {"embedding": read("embed_tokens.weight"), "final_norm": read("norm.weight")}
    for index, kind in enumerate(config.mlp_kinds):
        layer, trained = f"layers.{index}.", f"layers.{index}."
        result[trained + "input_norm"] = read(f"{layer}input_layernorm.weight")
        result[trained + "post_norm"] = read(f"{layer}post_attention_layernorm.weight")
        for name in ("q", "k", "v", "o"):
            result[trained + name] = read(f"{layer}self_attn.{name}_proj.weight")
        for name in ("q_norm", "k_norm"):
            result[trained + name] = read(f"{layer}self_attn.{name}.weight")
        if kind == "dense":
            for name in ("gate", "up", "down"):
                result[trained + name] = read(f"{layer}mlp.{name}_proj.weight")[None]
            continue
        moe = f"{layer}block_sparse_moe."
        result[trained + "router"] = read(f"{moe}gate.weight")
        result[trained + "router_bias"] = read(f"{moe}e_score_correction_bias")
        for released, name in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
            experts = [read(f"{moe}experts.{expert}.{released}.weight") for expert in range(config.num_experts)]
            result[trained + name] = torch.stack([*experts, read(f"{moe}shared_experts.{name}_proj.weight")])
    return result


def without_layers(weights: Mapping[str, Tensor], dropped: Sequence[int]) -> dict[str, Tensor]:
    """The weights without some layers; those behind them move up. Errors: ValueError for the first layer, or none."""
    layers = _layers(weights)
    if not set(dropped) <= set(range(1, layers)):
        raise ValueError(f"layers 1 to {layers - 1} can be left out, not {', '.join(map(str, dropped))}")
    kept = [index for index in range(layers) if index not in dropped]
    result = {}
    for name, tensor in weights.items():
        if (match := re.match(r"layers\.(\d+)\.(.*)", name)) is None:
            result[name] = tensor
        elif int(match[1]) in kept:
            result[f"layers.{kept.index(int(match[1]))}.{match[2]}"] = tensor
    return result
