"""How large a model of a configuration is: its parameters, and the memory of its weights and of its cache."""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from math import prod

from m3_model import names
from m3_model.config import M3Config
from m3_model.quantization import GROUP
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
    mxfp8: int = 0
    """Of the text model, those that stay in MXFP8: on several ranks the layers' matrices, where they are stored so."""


@cache
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
    others = parameters.total + parameters.vision - parameters.float32 - parameters.mxfp8
    return others * element_bytes + parameters.float32 * 4 + parameters.mxfp8 * (GROUP + 1) // GROUP


def cache_bytes_per_token(config: M3Config, element_bytes: int) -> int:
    """Memory of a token's keys, values and index keys over all layers."""
    keys_and_values = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return (keys_and_values + config.num_sparse_layers * config.index_dim) * element_bytes


def share_parameters(config: M3Config, share: Share, *, mxfp8: bool = False) -> Parameters:
    """The same for what one of several ranks holds; `active` is what a step reads of it for one token, at most."""
    whole, split = count_parameters(config), _by_split(config)
    parts = {
        "experts": (len(share.experts), config.num_experts),
        "vocabulary": (len(share.vocabulary), config.vocab_size),
        "shared": (len(share.shared_width), config.shared_intermediate_size),
        "dense": (len(share.dense_width), config.dense_intermediate_size),
        "heads": (len(share.heads), config.num_heads),
        "keys": (len(share.kv_heads), config.num_kv_heads),
        "index key": (1, 1),
        "copied": (1, 1),
    }
    held = {kind: count * parts[kind][0] // parts[kind][1] for kind, count in split.items()}
    copy_of_shared = split["shared"] if share.exchanges else 0
    total = sum(held.values()) + copy_of_shared
    unused = held["experts"] * max(len(share.experts) - config.experts_per_token, 0) // max(len(share.experts), 1)
    head = whole.head * len(share.vocabulary) // config.vocab_size
    return Parameters(
        total=total,
        embedding=held["vocabulary"] - head,
        head=head,
        routed=held["experts"],
        active=total - held["vocabulary"] - unused - copy_of_shared,
        vision=whole.vision,
        float32=whole.float32,
        mxfp8=total - held["vocabulary"] - held["copied"] if mxfp8 else 0,
    )


@cache
def _by_split(config: M3Config) -> Counter[str]:
    """Parameters of the text model by what m3_model.share splits them along."""
    found: Counter[str] = Counter()
    for name, spec in names.text_tensors(config).items():
        if ".experts." in name:
            kind = "experts"
        elif name in (names.EMBEDDING, names.HEAD):
            kind = "vocabulary"
        elif ".shared_experts." in name:
            kind = "shared"
        elif ".mlp." in name:
            kind = "dense"
        elif name.endswith((".q_proj.weight", ".o_proj.weight")):
            kind = "heads"
        elif name.endswith((".k_proj.weight", ".v_proj.weight", ".index_q_proj.weight")):
            kind = "keys"
        elif name.endswith(".index_k_proj.weight"):
            kind = "index key"
        else:
            kind = "copied"
        found[kind] += prod(spec.shape)
    return found
