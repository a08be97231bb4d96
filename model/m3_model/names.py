"""Every tensor that a released checkpoint of a given configuration holds, by the name it has in the file."""

from collections.abc import Iterator
from dataclasses import dataclass

from m3_model.config import M3Config
from m3_model.vision.config import VisionConfig

PREFIX = "language_model."
"""Where the text model starts; towers for images stand beside it."""
TOWER = "vision_tower.vision_model."
PROJECTOR = "multi_modal_projector."
MERGER = "patch_merge_mlp."
OTHER_TOWERS = ("vision_tower.", PROJECTOR, MERGER)
"""Tensors of the image side."""
SCALE = "_scale_inv"
"""Added to a matrix's name for its MXFP8 scales."""

PATCH_EMBEDDING = f"{TOWER}embeddings.patch_embedding.weight"
PRE_NORM = f"{TOWER}pre_layrnorm"
"""Spelt like this in the release."""

FLOAT32_NAMES = ("block_sparse_moe.gate.weight", "block_sparse_moe.e_score_correction_bias", PATCH_EMBEDDING)
"""Ends of the names of tensors that stay float32 whatever the model's dtype: the router's and the patch embedding."""

EMBEDDING = f"{PREFIX}model.embed_tokens.weight"
FINAL_NORM = f"{PREFIX}model.norm.weight"
HEAD = f"{PREFIX}lm_head.weight"
LAYERS = f"{PREFIX}model.layers."


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Shape of a tensor, and whether it must be float32 (one of FLOAT32_NAMES) rather than 16-bit or quantised."""

    shape: tuple[int, ...]
    float32: bool = False


def layer_prefix(layer: int) -> str:
    return f"{LAYERS}{layer}."


def expert_prefix(layer: int, expert: int) -> str:
    return f"{layer_prefix(layer)}block_sparse_moe.experts.{expert}."


def vision_layer_prefix(layer: int) -> str:
    return f"{TOWER}encoder.layers.{layer}."


def tensors(config: M3Config) -> dict[str, TensorSpec]:
    """Name and shape of each tensor of the model, those of its image side after those of the text model."""
    return {**text_tensors(config), **vision_tensors(config)}


def vision_tensors(config: M3Config) -> dict[str, TensorSpec]:
    """Name and shape of each tensor of the image side; none for a text-only model."""
    return dict(_vision(config.vision, config.hidden_size)) if config.vision is not None else {}


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


def _vision(config: VisionConfig, text_size: int) -> Iterator[tuple[str, TensorSpec]]:
    E, S = config.hidden_size, config.patch_size
    patch = (E, 3, config.temporal_patch_size, S, S)
    yield PATCH_EMBEDDING, TensorSpec(shape=patch, float32=True)
    yield from _with_bias(PRE_NORM, E)
    for layer in range(config.num_layers):
        prefix = vision_layer_prefix(layer)
        yield from _with_bias(f"{prefix}layer_norm1", E)
        for part in ("q", "k", "v", "out"):
            yield from _with_bias(f"{prefix}self_attn.{part}_proj", E, E)
        yield from _with_bias(f"{prefix}layer_norm2", E)
        yield from _with_bias(f"{prefix}mlp.fc1", config.intermediate_size, E)
        yield from _with_bias(f"{prefix}mlp.fc2", E, config.intermediate_size)
    yield from _with_bias(f"{PROJECTOR}linear_1", config.projector_size, E)
    yield from _with_bias(f"{PROJECTOR}linear_2", text_size, config.projector_size)
    yield from _with_bias(f"{MERGER}linear_1", config.projector_size, config.merge_size**2 * text_size)
    yield from _with_bias(f"{MERGER}linear_2", text_size, config.projector_size)


def _with_bias(name: str, *shape: int) -> Iterator[tuple[str, TensorSpec]]:
    """A matrix, or the weight of a norm, and its bias."""
    yield f"{name}.weight", TensorSpec(shape=shape)
    yield f"{name}.bias", TensorSpec(shape=shape[:1])
