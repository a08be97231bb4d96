"""Every tensor that a released checkpoint of a given configuration holds, by the name it has in the file."""

from collections.abc import Iterator
from dataclasses import dataclass

from m3_model.config import M3Config

PREFIX = "language_model."
"""Where the text model starts; towers for images stand beside it."""
OTHER_TOWERS = ("vision_tower.", "multi_modal_projector.", "patch_merge_mlp.")
"""Tensors of the image side: known, and not read by the text decoder."""
SCALE = "_scale_inv"
"""Added to a matrix's name for its MXFP8 scales."""

FLOAT32_NAMES = ("block_sparse_moe.gate.weight", "block_sparse_moe.e_score_correction_bias")
"""Ends of the names of tensors that stay float32 whatever the model's dtype: the router's."""

EMBEDDING = f"{PREFIX}model.embed_tokens.weight"
FINAL_NORM = f"{PREFIX}model.norm.weight"
HEAD = f"{PREFIX}lm_head.weight"


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Shape of a tensor, and whether it must be float32 (the router) rather than a 16-bit or quantised number."""

    shape: tuple[int, ...]
    float32: bool = False


def layer_prefix(layer: int) -> str:
    return f"{PREFIX}model.layers.{layer}."


def expert_prefix(layer: int, expert: int) -> str:
    return f"{layer_prefix(layer)}block_sparse_moe.experts.{expert}."


def text_tensors(config: M3Config) -> dict[str, TensorSpec]:
    """Name and shape of each tensor of the text model, without scales, in the order of the forward pass."""
    return dict(_tensors(config))


def _tensors(config: M3Config) -> Iterator[tuple[str, TensorSpec]]:
    C, V = config.hidden_size, config.vocab_size
    yield EMBEDDING, TensorSpec(shape=(V, C))
    for layer in range(config.num_layers):
        prefix = layer_prefix(layer)
        yield f"{prefix}input_layernorm.weight", TensorSpec(shape=(C,))
        yield from _attention(config, f"{prefix}self_attn.", sparse=config.attention_kinds[layer] == "sparse")
        yield f"{prefix}post_attention_layernorm.weight", TensorSpec(shape=(C,))
        if config.mlp_kinds[layer] == "dense":
            yield from _gated_mlp(f"{prefix}mlp.", C, config.dense_intermediate_size)
        else:
            yield from _moe(config, layer)
    yield FINAL_NORM, TensorSpec(shape=(C,))
    if not config.tie_word_embeddings:
        yield HEAD, TensorSpec(shape=(V, C))


def _attention(config: M3Config, prefix: str, *, sparse: bool) -> Iterator[tuple[str, TensorSpec]]:
    C, D = config.hidden_size, config.head_dim
    queries, keys = config.num_heads * D, config.num_kv_heads * D
    yield f"{prefix}q_proj.weight", TensorSpec(shape=(queries, C))
    yield f"{prefix}k_proj.weight", TensorSpec(shape=(keys, C))
    yield f"{prefix}v_proj.weight", TensorSpec(shape=(keys, C))
    yield f"{prefix}o_proj.weight", TensorSpec(shape=(C, queries))
    yield f"{prefix}q_norm.weight", TensorSpec(shape=(D,))
    yield f"{prefix}k_norm.weight", TensorSpec(shape=(D,))
    if sparse:
        yield f"{prefix}index_q_proj.weight", TensorSpec(shape=(config.index_heads * config.index_dim, C))
        yield f"{prefix}index_k_proj.weight", TensorSpec(shape=(config.index_dim, C))
        yield f"{prefix}index_q_norm.weight", TensorSpec(shape=(config.index_dim,))
        yield f"{prefix}index_k_norm.weight", TensorSpec(shape=(config.index_dim,))


def _gated_mlp(prefix: str, hidden: int, width: int) -> Iterator[tuple[str, TensorSpec]]:
    yield f"{prefix}gate_proj.weight", TensorSpec(shape=(width, hidden))
    yield f"{prefix}up_proj.weight", TensorSpec(shape=(width, hidden))
    yield f"{prefix}down_proj.weight", TensorSpec(shape=(hidden, width))


def _moe(config: M3Config, layer: int) -> Iterator[tuple[str, TensorSpec]]:
    C, width = config.hidden_size, config.expert_intermediate_size
    prefix = f"{layer_prefix(layer)}block_sparse_moe."
    yield f"{prefix}gate.weight", TensorSpec(shape=(config.num_experts, C), float32=True)
    yield f"{prefix}e_score_correction_bias", TensorSpec(shape=(config.num_experts,), float32=True)
    for expert in range(config.num_experts):
        yield f"{expert_prefix(layer, expert)}w1.weight", TensorSpec(shape=(width, C))
        yield f"{expert_prefix(layer, expert)}w3.weight", TensorSpec(shape=(width, C))
        yield f"{expert_prefix(layer, expert)}w2.weight", TensorSpec(shape=(C, width))
    yield from _gated_mlp(f"{prefix}shared_experts.", C, config.shared_intermediate_size)
