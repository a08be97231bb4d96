"""Reading released configurations."""

import json
from pathlib import Path
from typing import Any

import pytest

from m3_model import names
from m3_model.config import M3Config
from m3_model.random_checkpoint import tiny_config

RELEASED_TEXT: dict[str, Any] = {
    "hidden_size": 6144, "num_hidden_layers": 60, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 128, "vocab_size": 200064, "intermediate_size": 3072, "dense_intermediate_size": 12288,
    "shared_intermediate_size": 3072, "n_shared_experts": 1, "num_local_experts": 128, "num_experts_per_tok": 4,
    "scoring_func": "sigmoid", "use_routing_bias": True, "routed_scaling_factor": 2.0,
    "moe_layer_freq": [0] * 3 + [1] * 57, "hidden_act": "swigluoai", "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
    "attention_output_gate": False, "rms_norm_eps": 1e-6, "use_gemma_norm": True, "use_qk_norm": True,
    "qk_norm_type": "per_head", "rope_theta": 5000000, "rotary_dim": 64, "partial_rotary_factor": 0.5,
    "max_position_embeddings": 1048576, "tie_word_embeddings": False, "num_mtp_modules": 7,
    "sparse_attention_config": {
        "use_sparse_attention": True, "sparse_index_dim": 128, "sparse_num_index_heads": 4, "sparse_topk_blocks": 16,
        "sparse_block_size": 128, "sparse_init_block": 0, "sparse_local_block": 1, "sparse_score_type": "max",
        "sparse_disable_index_value": [0] * 3 + [1] * 57, "sparse_attention_freq": [0] * 3 + [1] * 57,
    },
}  # fmt: skip
RELEASED: dict[str, Any] = {"model_type": "minimax_m3_vl", "text_config": RELEASED_TEXT}


def test_the_release_has_the_published_number_of_tensors_and_parameters() -> None:
    tensors = names.text_tensors(M3Config.from_json(RELEASED))
    sizes = {name: spec.shape for name, spec in tensors.items()}
    total = sum(shape[0] * (shape[1] if len(shape) == 2 else 1) for shape in sizes.values())
    assert (len(tensors), total) == (22_893, 426_174_572_928)
    assert sizes["language_model.model.layers.3.self_attn.index_q_proj.weight"] == (512, 6144)
    assert "language_model.model.layers.2.self_attn.index_q_proj.weight" not in sizes
    quantised = [
        n for n, s in sizes.items() if len(s) == 2 and "gate.weight" not in n and "embed" not in n and "head" not in n
    ]
    assert len(quantised) == 22_422


def test_the_release_is_read_as_published() -> None:
    config = M3Config.from_json(RELEASED)
    assert config.attention_kinds == ("dense",) * 3 + ("sparse",) * 57
    assert config.mlp_kinds == ("dense",) * 3 + ("moe",) * 57
    assert (config.index_heads, config.index_dim, config.top_k_blocks, config.block_size) == (4, 128, 16, 128)
    assert (config.rotary_dim, config.rope_theta, config.max_positions) == (64, 5e6, 1 << 20)


def test_a_flat_text_config_reads_the_same() -> None:
    assert M3Config.from_json(RELEASED_TEXT) == M3Config.from_json(RELEASED)


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True, "eos_token_id": 7}, {"init_blocks": 1}])
def test_written_configs_read_back_equal(changes: dict[str, Any], tmp_path: Path) -> None:
    config = tiny_config(**changes)
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    assert M3Config.from_folder(tmp_path) == config


def test_dense_only_is_read_where_sparse_attention_is_off() -> None:
    sparse = {**RELEASED_TEXT["sparse_attention_config"], "use_sparse_attention": False}
    config = M3Config.from_json({**RELEASED_TEXT, "sparse_attention_config": sparse})
    assert config.num_sparse_layers == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "silu"}, "hidden_act is 'silu'; this decoder computes only 'swigluoai'"),
        ({"attention_output_gate": True}, "attention_output_gate is True"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"rotary_dim": 32}, "rotary_dim 32 contradicts partial_rotary_factor 0.5 of 128"),
        ({"moe_layer_freq": [0, 1]}, "moe_layer_freq must list one number for each of the 60 layers"),
        ({"num_experts_per_tok": 200}, "experts_per_token must be 1 to 128, got 200"),
        ({"num_key_value_heads": 3}, "num_heads 64 must be a multiple of num_kv_heads 3"),
        ({"num_key_value_heads": 8}, "one index head per key head: 4 against 8"),
        (
            {"sparse_attention_config": {**RELEASED_TEXT["sparse_attention_config"], "sparse_init_block": 16}},
            "exceed 16",
        ),
        (
            {"sparse_attention_config": {**RELEASED_TEXT["sparse_attention_config"], "sparse_score_type": "mean"}},
            "'mean'",
        ),
    ],
)
def test_variants_that_would_compute_something_else_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        M3Config.from_json({**RELEASED_TEXT, **changes})


@pytest.mark.parametrize("key", ["hidden_size", "moe_layer_freq", "rope_theta"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ValueError, match=f"no '{key}'"):
        M3Config.from_json({k: v for k, v in RELEASED_TEXT.items() if k != key})
