"""The numbers that define an M3 model, read from a released config.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from m3_model.vision.config import VisionConfig

AttentionKind = Literal["dense", "sparse"]
MlpKind = Literal["dense", "moe"]


@dataclass(frozen=True, kw_only=True)
class M3Config:
    """A text decoder of the M3 family and, where it has one, its image side; checked when built.

    Errors: ValueError that names the field and what was expected.
    """

    vocab_size: int
    """Rows of the embedding table; may exceed the tokenizer's ids."""
    hidden_size: int
    """Width of the residual stream."""
    attention_kinds: tuple[AttentionKind, ...]
    """Per layer: attend to every earlier token, or to chosen blocks of tokens."""
    mlp_kinds: tuple[MlpKind, ...]
    """Per layer: one feed-forward part, or routed experts and a shared one."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key and value heads; each serves num_heads / num_kv_heads query heads."""
    head_dim: int
    """Dimensions of a head."""
    rotary_dim: int
    """Leading dimensions of a head (and of an index head) that are rotated by position."""
    rope_theta: float
    """Base of the rotary frequencies."""
    rms_norm_eps: float = 1e-6
    """Added to the mean square in every norm."""
    dense_intermediate_size: int
    """Width of a dense feed-forward part."""
    expert_intermediate_size: int
    """Width of a routed expert."""
    shared_intermediate_size: int
    """Width of the shared expert."""
    num_experts: int
    """Routed experts of a layer."""
    experts_per_token: int
    """Routed experts that a token goes through."""
    routed_scaling: float = 2.0
    """Factor on the sum of the routed experts, not on the shared one."""
    swiglu_alpha: float = 1.702
    """Gain inside the gate's sigmoid."""
    swiglu_limit: float = 7.0
    """Where the gate is clamped from above and the up part on both sides."""
    index_heads: int
    """Heads that choose blocks: one per key head, or 0 without sparse layers."""
    index_dim: int
    """Dimensions of an index head."""
    block_size: int = 128
    """Tokens of a block, which is also a page of the cache."""
    top_k_blocks: int = 16
    """Blocks that a token attends to, its own among them."""
    init_blocks: int = 0
    """Leading blocks that are always chosen."""
    local_blocks: int = 1
    """Blocks up to the token's own that are always chosen."""
    tie_word_embeddings: bool = False
    """Whether the output head is the embedding table."""
    max_positions: int
    """Longest sequence the model was made for, in tokens."""
    eos_token_id: int | None = None
    """Id that ends a message, where the file tells."""
    vision: VisionConfig | None = None
    """The image side; None for a text-only model."""

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "block_size",
            "max_positions",
        ):
            _require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        _require(len(self.attention_kinds) > 0, "the model has no layers")
        _require(
            len(self.attention_kinds) == len(self.mlp_kinds),
            f"{len(self.attention_kinds)} layers have an attention kind, {len(self.mlp_kinds)} a feed-forward kind",
        )
        _require(
            self.num_heads % self.num_kv_heads == 0,
            f"num_heads {self.num_heads} must be a multiple of num_kv_heads {self.num_kv_heads}",
        )
        _require(
            self.rotary_dim % 2 == 0 and 0 < self.rotary_dim <= self.head_dim,
            f"rotary_dim must be even and at most head_dim {self.head_dim}, got {self.rotary_dim}",
        )
        if "sparse" in self.attention_kinds:
            _require(
                self.index_heads == self.num_kv_heads,
                f"sparse layers need one index head per key head: {self.index_heads} against {self.num_kv_heads}",
            )
            _require(
                self.index_dim >= self.rotary_dim,
                f"index_dim {self.index_dim} must hold the {self.rotary_dim} rotated dimensions",
            )
            _require(
                self.init_blocks >= 0
                and self.local_blocks >= 1
                and self.init_blocks + self.local_blocks <= self.top_k_blocks,
                f"{self.init_blocks} initial and {self.local_blocks} local blocks exceed {self.top_k_blocks} chosen",
            )
        if "moe" in self.mlp_kinds:
            _require(
                1 <= self.experts_per_token <= self.num_experts,
                f"experts_per_token must be 1 to {self.num_experts}, got {self.experts_per_token}",
            )

    @property
    def num_layers(self) -> int:
        return len(self.attention_kinds)

    @property
    def num_sparse_layers(self) -> int:
        return self.attention_kinds.count("sparse")

    @classmethod
    def from_folder(cls, folder: Path | str) -> "M3Config":
        """Read config.json of a checkpoint folder. Errors: FileNotFoundError, ValueError."""
        path = Path(folder) / "config.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
        try:
            return cls.from_json(data)
        except (AttributeError, TypeError) as error:
            raise ValueError(f"{path} has a value of another type than an M3 config: {error}") from error

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "M3Config":
        """Read a released config.json, its text part nested in text_config or flat.

        Errors: ValueError for a missing key or for a variant of the family that this decoder does not compute.
        """
        text = data.get("text_config", data)

        def need(key: str) -> Any:
            if key not in text:
                raise ValueError(f"config.json has no {key!r}; is this an M3 checkpoint?")
            return text[key]

        _refuse_other_variants(text)
        _refuse_other_quantization(data.get("quantization_config"))
        layers = int(need("num_hidden_layers"))
        sparse = text.get("sparse_attention_config") or {}
        if not sparse.get("use_sparse_attention", True):
            sparse = {}
        sparse_layers = _per_layer(sparse.get("sparse_attention_freq", [0] * layers), layers, "sparse_attention_freq")
        moe_layers = _per_layer(need("moe_layer_freq"), layers, "moe_layer_freq")
        head_dim = int(need("head_dim"))
        eos = text.get("eos_token_id", data.get("eos_token_id"))
        return cls(
            vocab_size=int(need("vocab_size")),
            hidden_size=int(need("hidden_size")),
            attention_kinds=tuple("sparse" if on else "dense" for on in sparse_layers),
            mlp_kinds=tuple("moe" if on else "dense" for on in moe_layers),
            num_heads=int(need("num_attention_heads")),
            num_kv_heads=int(need("num_key_value_heads")),
            head_dim=head_dim,
            rotary_dim=_rotary_dim(text, head_dim),
            rope_theta=float(need("rope_theta")),
            rms_norm_eps=float(text.get("rms_norm_eps", 1e-6)),
            dense_intermediate_size=int(need("dense_intermediate_size")),
            expert_intermediate_size=int(need("intermediate_size")),
            shared_intermediate_size=int(need("shared_intermediate_size")) * int(text.get("n_shared_experts", 1)),
            num_experts=int(need("num_local_experts")),
            experts_per_token=int(need("num_experts_per_tok")),
            routed_scaling=float(text.get("routed_scaling_factor", 2.0)),
            swiglu_alpha=float(text.get("swiglu_alpha", 1.702)),
            swiglu_limit=float(text.get("swiglu_limit", 7.0)),
            index_heads=int(sparse.get("sparse_num_index_heads", 0)),
            index_dim=int(sparse.get("sparse_index_dim", 0)),
            block_size=int(sparse.get("sparse_block_size", 128)),
            top_k_blocks=int(sparse.get("sparse_topk_blocks", 16)),
            init_blocks=int(sparse.get("sparse_init_block", 0)),
            local_blocks=int(sparse.get("sparse_local_block", 1)),
            tie_word_embeddings=bool(data.get("tie_word_embeddings", False) or text.get("tie_word_embeddings", False)),
            max_positions=int(need("max_position_embeddings")),
            eos_token_id=eos[0] if isinstance(eos, list) else eos,
            vision=VisionConfig.from_json(data),
        )

    def to_json(self) -> dict[str, Any]:
        """The config.json that from_json reads back, with the key names of the release."""
        sparse_freq = [int(kind == "sparse") for kind in self.attention_kinds]
        text: dict[str, Any] = {
            "architectures": ["MiniMaxM3SparseForCausalLM"],
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "rotary_dim": self.rotary_dim,
            "partial_rotary_factor": self.rotary_dim / self.head_dim,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "use_gemma_norm": True,
            "use_qk_norm": True,
            "qk_norm_type": "per_head",
            "attention_output_gate": False,
            "hidden_act": "swigluoai",
            "swiglu_alpha": self.swiglu_alpha,
            "swiglu_limit": self.swiglu_limit,
            "dense_intermediate_size": self.dense_intermediate_size,
            "intermediate_size": self.expert_intermediate_size,
            "shared_intermediate_size": self.shared_intermediate_size,
            "n_shared_experts": 1,
            "num_local_experts": self.num_experts,
            "num_experts_per_tok": self.experts_per_token,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "routed_scaling_factor": self.routed_scaling,
            "moe_layer_freq": [int(kind == "moe") for kind in self.mlp_kinds],
            "max_position_embeddings": self.max_positions,
            "tie_word_embeddings": self.tie_word_embeddings,
            "sparse_attention_config": {
                "use_sparse_attention": any(sparse_freq),
                "sparse_index_dim": self.index_dim,
                "sparse_num_index_heads": self.index_heads,
                "sparse_topk_blocks": self.top_k_blocks,
                "sparse_block_size": self.block_size,
                "sparse_init_block": self.init_blocks,
                "sparse_local_block": self.local_blocks,
                "sparse_score_type": "max",
                "sparse_disable_index_value": sparse_freq,
                "sparse_attention_freq": sparse_freq,
            },
        }
        if self.eos_token_id is not None:
            text["eos_token_id"] = self.eos_token_id
        return {
            "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
            "model_type": "minimax_m3_vl",
            "text_config": text,
            "tie_word_embeddings": self.tie_word_embeddings,
            "torch_dtype": "bfloat16",
            **(self.vision.to_json() if self.vision is not None else {}),
        }


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"config: {message}")


def _per_layer(values: Any, layers: int, key: str) -> list[int]:
    if not isinstance(values, list) or len(values) != layers:
        raise ValueError(f"config.json: {key} must list one number for each of the {layers} layers")
    return [int(value) for value in values]


def _rotary_dim(text: Mapping[str, Any], head_dim: int) -> int:
    """The rotated dimensions; the file gives them as a number, as a share of the head, or as both."""
    share = text.get("partial_rotary_factor")
    if "rotary_dim" not in text:
        return int(head_dim * (1.0 if share is None else float(share)))
    rotary_dim = int(text["rotary_dim"])
    if share is not None and int(head_dim * float(share)) != rotary_dim:
        raise ValueError(
            f"config.json: rotary_dim {rotary_dim} contradicts partial_rotary_factor {share} of {head_dim}"
        )
    return rotary_dim


def _refuse_other_variants(text: Mapping[str, Any]) -> None:
    """Settings that change the computation must have the value that this decoder implements, where they are given."""
    expected = {
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        "attention_output_gate": False,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "hidden_act": "swigluoai",
        "rope_scaling": None,
        "swiglu_beta": 1.0,
    }
    sparse = text.get("sparse_attention_config") or {}
    found = {**{key: text.get(key, value) for key, value in expected.items()}}
    expected["sparse_score_type"] = "max"
    found["sparse_score_type"] = sparse.get("sparse_score_type", "max")
    for key, value in expected.items():
        if found[key] != value:
            raise ValueError(f"config.json: {key} is {found[key]!r}; this decoder computes only {value!r}")


def _refuse_other_quantization(quantization: Mapping[str, Any] | None) -> None:
    """Only MXFP8 in groups along the inputs is read, or no quantisation at all."""
    if quantization is None:
        return
    found = quantization.get("quant_method"), quantization.get("weight_block_size", [1, 32])
    if found != ("mxfp8", [1, 32]):
        raise ValueError(f"config.json: quantisation {found[0]} in blocks of {found[1]}; only mxfp8 in [1, 32] is read")
