"""How large a model of a configuration is: its parameters, and the memory of its weights and of its cache."""

from dataclasses import dataclass
from fractions import Fraction
from math import prod

from m3_model import names
from m3_model.config import M3Config
from m3_model.share import Share


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Numbers of parameters of a model; those of its image side are counted in `vision` alone."""

    total: int
    """All of the text model."""
    embedding: int
    """The embedding table."""
    head: int
    """The output head; 0 where it is the embedding table."""
    routed: int
    """All routed experts."""
    active: int
    """What a token goes through between the embedding table and the head."""
    vision: int
    """All of the image side; 0 for a text-only model."""
    float32: int
    """Of both, those that are float32 in a model of any dtype."""


def count_parameters(config: M3Config) -> Parameters:
    """Count from the tensors that the configuration asks for."""
    specs = names.text_tensors(config)
    counts = {name: prod(spec.shape) for name, spec in specs.items()}
    total, routed = sum(counts.values()), sum(n for name, n in counts.items() if ".experts." in name)
    embedding, head = counts[names.EMBEDDING], counts.get(names.HEAD, 0)
    vision = names.vision_tensors(config)
    unused = routed // config.num_experts * (config.num_experts - config.experts_per_token) if routed else 0
    return Parameters(
        total=total,
        embedding=embedding,
        head=head,
        routed=routed,
        active=total - embedding - head - unused,
        vision=sum(prod(spec.shape) for spec in vision.values()),
        float32=sum(prod(spec.shape) for spec in (*specs.values(), *vision.values()) if spec.float32),
    )


def weight_bytes(parameters: Parameters, element_bytes: int) -> int:
    """Memory of a loaded model whose dtype has `element_bytes`."""
    return (parameters.total + parameters.vision - parameters.float32) * element_bytes + parameters.float32 * 4


def cache_bytes_per_token(config: M3Config, element_bytes: int) -> int:
    """Memory of a token's keys, values and index keys over all layers."""
    keys_and_values = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return (keys_and_values + config.num_sparse_layers * config.index_dim) * element_bytes


def share_parameters(config: M3Config, share: Share) -> Parameters:
    """The same for what one of several ranks holds; `active` is what a step reads of it for one token, at most."""
    held = {name: prod(spec.shape) * _held(config, share, name) for name, spec in names.text_tensors(config).items()}
    counts = {name: int(n) for name, n in held.items()}
    routed = sum(n for name, n in counts.items() if ".experts." in name)
    embedding, head = counts[names.EMBEDDING], counts.get(names.HEAD, 0)
    experts = len(share.experts)
    unused = routed // experts * max(experts - config.experts_per_token, 0) if routed else 0
    whole = count_parameters(config)
    total = sum(counts.values())
    return Parameters(
        total=total,
        embedding=embedding,
        head=head,
        routed=routed,
        active=total - embedding - head - unused,
        vision=whole.vision,
        float32=whole.float32,
    )


def _held(config: M3Config, share: Share, name: str) -> Fraction:
    """Which part of a tensor a rank has; more than all of it where it has a copy beside its part."""
    if ".experts." in name:
        expert = int(name.split(".experts.")[1].split(".")[0])
        return Fraction(expert in share.experts)
    if name in (names.EMBEDDING, names.HEAD):
        return Fraction(len(share.vocabulary), config.vocab_size)
    if ".shared_experts." in name:
        return Fraction(len(share.shared_width), config.shared_intermediate_size) + share.exchanges
    if ".mlp." in name:
        return Fraction(len(share.dense_width), config.dense_intermediate_size)
    if name.endswith((".q_proj.weight", ".o_proj.weight")):
        return Fraction(len(share.heads), config.num_heads)
    if name.endswith((".k_proj.weight", ".v_proj.weight", ".index_q_proj.weight")):
        return Fraction(len(share.kv_heads), config.num_kv_heads)
    return Fraction(1)
