"""The configuration that a training run begins with. The sizes of the model stand here and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from m3_model.vision.config import VisionConfig
from training.model import NANO

LAYERS = 10
"""Two less than nano had before it got eyes: its file stays below 28 MB."""
DENSE_LAYERS = 1
IMAGE_SIDE = 1120
"""Longest side of a picture in pixels, at most 40 tokens: a prompt of nano has 2048."""


def eyes_config(image_token: int, video_token: int) -> VisionConfig:
    """Widths are multiples of 32, so that every matrix can be stored in MXFP8."""
    return VisionConfig(
        hidden_size=256,
        num_layers=4,
        num_heads=4,
        intermediate_size=576,
        projector_size=320,
        image_size=IMAGE_SIDE,
        image_token_id=image_token,
        video_token_id=video_token,
    )


def nano_config(assigned_ids: int, vision: VisionConfig) -> dict[str, object]:
    """The configuration in the released key names; the vocabulary is padded to a multiple of 128 rows."""
    kinds = [0] * DENSE_LAYERS + [1] * (LAYERS - DENSE_LAYERS)
    return {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
        "text_config": {
            "architectures": ["MiniMaxM3SparseForCausalLM"],
            "vocab_size": -(-assigned_ids // 128) * 128,
            "hidden_size": 384,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "rotary_dim": 32,
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000,
            "max_position_embeddings": 2048,
            "dense_intermediate_size": 1024,
            "intermediate_size": 256,
            "shared_intermediate_size": 256,
            "n_shared_experts": 1,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "routed_scaling_factor": 2.0,
            "moe_layer_freq": kinds,
            "hidden_act": "swigluoai",
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "attention_output_gate": False,
            "rms_norm_eps": 1e-6,
            "use_gemma_norm": True,
            "use_qk_norm": True,
            "qk_norm_type": "per_head",
            "tie_word_embeddings": True,
            "sparse_attention_config": {
                "use_sparse_attention": True,
                "sparse_index_dim": 64,
                "sparse_num_index_heads": 2,
                "sparse_topk_blocks": 16,
                "sparse_block_size": 128,
                "sparse_init_block": 0,
                "sparse_local_block": 1,
                "sparse_score_type": "max",
                "sparse_disable_index_value": kinds,
                "sparse_attention_freq": kinds,
            },
        },
        "quantization_config": {
            "quant_method": "mxfp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [1, 32],
            "ignored_layers": [
                f"language_model.model.layers.{n}.block_sparse_moe.gate" for n in range(DENSE_LAYERS, LAYERS)
            ],
        },
        **vision.to_json(),
    }


def write_config(folder: Path) -> None:
    """Write config.json into a run's folder, for the tokenizer that nano has."""
    tokenizer = Tokenizer.from_file(str(NANO / "tokenizer.json"))
    eyes = eyes_config(tokenizer.token_to_id("]<]image[>["), tokenizer.token_to_id("]<]video[>["))
    config = nano_config(tokenizer.get_vocab_size(with_added_tokens=True), eyes)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
