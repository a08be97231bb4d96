"""Write nano's config.json: `python -m training.write_config`. The sizes of the model stand here and nowhere else."""

from __future__ import annotations

import json

from tokenizers import Tokenizer

from training.model import NANO

LAYERS = 12
DENSE_LAYERS = 1


def nano_config(assigned_ids: int) -> dict[str, object]:
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
    }


def main() -> None:
    assigned_ids = Tokenizer.from_file(str(NANO / "tokenizer.json")).get_vocab_size(with_added_tokens=True)
    (NANO / "config.json").write_text(json.dumps(nano_config(assigned_ids), indent=1) + "\n")


if __name__ == "__main__":
    main()
