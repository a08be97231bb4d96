"""transformers' own minimax_m3_vl text model with the tensors of our checkpoints, for tests and benchmarks."""

from pathlib import Path

import benchmarks.any_torchvision  # noqa: F401 - before transformers

# isort: split
import torch
from torch import Tensor
from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLTextConfig
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLForCausalLM

from m3_model import names
from m3_model.checkpoint import Checkpoint
from m3_model.config import M3Config


def transformers_model(config: M3Config, folder: Path) -> MiniMaxM3VLForCausalLM:
    """Their float32 model with the tensors of our checkpoint, renamed by hand and not by their loader."""
    text = config.to_json()["text_config"]
    for key in ("architectures", "hidden_act", "n_shared_experts", "scoring_func"):
        text.pop(key)
    checkpoint = Checkpoint.open(folder)
    their_config = MiniMaxM3VLTextConfig(**text, attn_implementation="eager")
    model = MiniMaxM3VLForCausalLM(their_config).eval()
    state: dict[str, Tensor] = {}
    ours = {name: checkpoint.read(name, torch.float32) for name in names.text_tensors(config)}
    for name, tensor in ours.items():
        short = (
            name.removeprefix("language_model.")
            .replace("block_sparse_moe", "mlp")
            .replace("self_attn.index_", "self_attn.indexer.")
        )
        short = short.replace("mlp.e_score", "mlp.gate.e_score")
        if "up_proj" in short or ".w3." in short:
            continue
        if "gate_proj" in short:
            state[short.replace("gate_proj", "gate_up_proj")] = torch.cat(
                [tensor, ours[name.replace("gate_proj", "up_proj")]]
            )
        elif ".experts." not in short:
            state[short] = tensor
    for i in (i for i, kind in enumerate(config.mlp_kinds) if kind == "moe"):
        experts = [names.expert_prefix(i, e) for e in range(config.num_experts)]
        prefix = f"model.layers.{i}.mlp.experts."
        state[f"{prefix}gate_up_proj"] = torch.stack(
            [torch.cat([ours[f"{e}w1.weight"], ours[f"{e}w3.weight"]]) for e in experts]
        )
        state[f"{prefix}down_proj"] = torch.stack([ours[f"{e}w2.weight"] for e in experts])
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model
