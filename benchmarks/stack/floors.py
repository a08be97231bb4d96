"""The least time that a layer can take: its arithmetic at the rate of a matrix product, its bytes at that of a copy.

Legend: C hidden size, H query heads, G key heads, D head size, R index heads, N tokens of context, T new ones.
"""

from __future__ import annotations

from m3_model.config import M3Config

BYTES = 2
"""Of a bfloat16 number."""


def attention_weights(config: M3Config, kind: str) -> int:
    """C * (H D + 2 G D) + H D * C, and with an index branch C * (R + 1) * D."""
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    index = (config.index_heads + 1) * config.index_dim if kind == "sparse" else 0
    return config.hidden_size * (heads * config.head_dim + index)


def mlp_weights(config: M3Config, kind: str, experts: int) -> int:
    """3 C times the width of a dense part, or of `experts` routed ones and the shared one, with the router."""
    if kind == "dense":
        return 3 * config.hidden_size * config.dense_intermediate_size
    width = experts * config.expert_intermediate_size + config.shared_intermediate_size
    return 3 * config.hidden_size * width + config.num_experts * config.hidden_size


def decode_bytes(config: M3Config, kind: str, N: int) -> int:
    """One token: its weights, and of the cache all of K and V, or all index keys and the chosen blocks."""
    weights = attention_weights(config, kind) + mlp_weights(config, kind, config.experts_per_token)
    entry = 2 * config.num_kv_heads * config.head_dim
    if kind == "dense":
        return BYTES * (weights + N * entry)
    chosen = min(N, config.top_k_blocks * config.block_size)
    return BYTES * (weights + N * config.index_dim + chosen * entry)


def prefill_flops(config: M3Config, kind: str, N: int, T: int) -> float:
    """T tokens that end at N: 2 for each weight, 4 H D for each key attended to, 2 R D for each key scored."""
    linear = 2 * T * (attention_weights(config, kind) + mlp_weights(config, kind, config.experts_per_token))
    seen = T * (N - T) + T * (T + 1) / 2
    per_key = 4 * config.num_heads * config.head_dim
    if kind == "dense":
        return linear + per_key * seen
    limit = config.top_k_blocks * config.block_size
    chosen = sum(min(position + 1, limit) for position in range(N - T, N))
    return linear + per_key * chosen + 2 * config.index_heads * config.index_dim * seen


def decode_floor_ms(config: M3Config, kind: str, N: int, copy_tbs: float) -> float:
    return decode_bytes(config, kind, N) / copy_tbs / 1e9


def prefill_floor_ms(config: M3Config, kind: str, N: int, T: int, matmul_tflops: float, copy_tbs: float) -> float:
    """The longer of arithmetic and of reading all weights once."""
    experts = min(config.num_experts, T * config.experts_per_token)
    weights = BYTES * (attention_weights(config, kind) + mlp_weights(config, kind, experts))
    return max(prefill_flops(config, kind, N, T) / matmul_tflops, weights / copy_tbs) / 1e9
