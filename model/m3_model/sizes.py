"""How large a model of a configuration is: its parameters, and the memory of its weights and of its cache."""

from dataclasses import dataclass
from math import prod

from m3_model import names
from m3_model.config import M3Config


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
