"""Nano as it is trained: M3's text decoder written for speed on packed documents.

The arithmetic is that of `m3_model.decoder` (a test compares the two after export); only its order differs. All experts
are computed as one wide product and the unselected ones are multiplied by zero, which is exact and needs no dispatch.
Prompts stay below top_k * block_size tokens, where block-sparse attention selects every visible block and equals dense
attention, so attention is dense here and the index branch is not trained.

Pictures are seen by `training.eyes`.

Letters in names: T tokens of a pack, D hidden (or head size after a head), H query heads, G key/value heads.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from m3_model.vision.config import VisionConfig
from training.attention import attention, rotate
from training.eyes import Eyes

NANO = Path(__file__).parent.parent / "model" / "m3_model" / "nano"
"""Where the embedded model's files lie."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a nano model, read from its config.json."""

    vocab_size: int
    hidden: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    dense_width: int
    experts: int
    experts_per_token: int
    expert_width: int
    routed_scaling: float
    swiglu_alpha: float
    swiglu_limit: float
    norm_eps: float

    @classmethod
    def from_config(cls, path: Path) -> Shape:
        text = json.loads(path.read_text())["text_config"]
        if text["moe_layer_freq"] != [0] + [1] * (text["num_hidden_layers"] - 1):
            raise ValueError(f"{path}: the trainer expects one dense layer, then mixture-of-experts layers")
        if text["shared_intermediate_size"] != text["intermediate_size"]:
            raise ValueError(f"{path}: the wide product needs the shared expert as wide as a routed one")
        return cls(
            vocab_size=text["vocab_size"],
            hidden=text["hidden_size"],
            layers=text["num_hidden_layers"],
            query_heads=text["num_attention_heads"],
            kv_heads=text["num_key_value_heads"],
            head_dim=text["head_dim"],
            rotary_dim=text["rotary_dim"],
            rope_theta=text["rope_theta"],
            dense_width=text["dense_intermediate_size"],
            experts=text["num_local_experts"],
            experts_per_token=text["num_experts_per_tok"],
            expert_width=text["intermediate_size"],
            routed_scaling=text["routed_scaling_factor"],
            swiglu_alpha=text["swiglu_alpha"],
            swiglu_limit=text["swiglu_limit"],
            norm_eps=text["rms_norm_eps"],
        )


def gemma_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm with a (1 + weight) gain, computed in float32, in x's dtype."""
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * (1 + weight)).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    """M3's activation: the gate is clamped from above only, the linear side on both sides and shifted by one."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


def _matrix(*shape: int) -> nn.Parameter:
    """A matrix, or a stack of matrices, with rows as outputs, initialised to keep the variance of the input."""
    return nn.Parameter(torch.randn(*shape) * shape[-1] ** -0.5)


class Layer(nn.Module):
    """One decoder layer. `before` and `after` are compiled; attention runs between them."""

    def __init__(self, shape: Shape, dense: bool):
        super().__init__()
        self.shape, self.dense = shape, dense
        s = shape
        self.input_norm = nn.Parameter(torch.zeros(s.hidden))
        self.post_norm = nn.Parameter(torch.zeros(s.hidden))
        self.q_norm = nn.Parameter(torch.zeros(s.head_dim))
        self.k_norm = nn.Parameter(torch.zeros(s.head_dim))
        self.q = _matrix(s.query_heads * s.head_dim, s.hidden)
        self.k = _matrix(s.kv_heads * s.head_dim, s.hidden)
        self.v = _matrix(s.kv_heads * s.head_dim, s.hidden)
        self.o = nn.Parameter(torch.zeros(s.hidden, s.query_heads * s.head_dim))
        width, count = (s.dense_width, 1) if dense else (s.expert_width, s.experts + 1)
        self.gate = _matrix(count, width, s.hidden)
        self.up = _matrix(count, width, s.hidden)
        self.down = nn.Parameter(torch.zeros(count, s.hidden, width))
        if not dense:
            self.router = nn.Parameter(torch.randn(s.experts, s.hidden) * s.hidden**-0.5)
            self.register_buffer("router_bias", torch.zeros(s.experts))

    def before(self, x_TD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised, rotated queries and keys, and values."""
        s = self.shape
        h = gemma_norm(x_TD, self.input_norm, s.norm_eps)
        weight = torch.cat([self.q, self.k, self.v]).to(h.dtype)
        q, k, v = (h @ weight.T).view(len(h), -1, s.head_dim).split([s.query_heads, s.kv_heads, s.kv_heads], dim=1)
        q = rotate(gemma_norm(q, self.q_norm, s.norm_eps).float(), cos_TR, sin_TR).to(h.dtype)
        k = rotate(gemma_norm(k, self.k_norm, s.norm_eps).float(), cos_TR, sin_TR).to(h.dtype)
        return q, k, v.contiguous()

    def after(self, x_TD: Tensor, attended_THD: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's output, and how many tokens each routed expert took (float32 [E - 1]; empty if dense)."""
        s = self.shape
        x_TD = x_TD + attended_THD.flatten(1) @ self.o.to(x_TD.dtype).T
        h = gemma_norm(x_TD, self.post_norm, s.norm_eps)
        gate, up = (h @ w.flatten(0, 1).to(h.dtype).T for w in (self.gate, self.up))
        act = swiglu(gate, up, s.swiglu_alpha, s.swiglu_limit)
        load = x_TD.new_zeros(0, dtype=torch.float32)
        if not self.dense:
            weights, load = self.route(h)
            act = (act.view(len(h), s.experts + 1, s.expert_width) * weights[:, :, None].to(h.dtype)).flatten(1)
        down = self.down.permute(1, 0, 2).flatten(1).to(h.dtype)
        return x_TD + act @ down.T, load

    def route(self, h_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Expert weights [T, E] in float32, zero for unselected experts and one for the shared one; and the loads."""
        s = self.shape
        scores = torch.sigmoid(h_TD.float() @ self.router.T)
        chosen = (scores + self.router_bias).topk(s.experts_per_token, dim=-1).indices
        mask = torch.zeros_like(scores).scatter_(1, chosen, 1.0)
        kept = scores * mask
        weights = s.routed_scaling * kept / kept.sum(-1, keepdim=True)
        return torch.cat([weights, torch.ones_like(weights[:, :1])], dim=1), mask.sum(0)


@dataclasses.dataclass(frozen=True)
class Seen:
    """The pictures of a pack as the eyes take them, and the rows of their tokens; patches behind those are padding."""

    patches: Tensor
    places: Tensor
    starts: Tensor
    rows: Tensor
    longest: int


class TrainedNano(nn.Module):
    """The decoder with tied embeddings, and its eyes; forward gives the hidden states after the final norm."""

    def __init__(self, shape: Shape, vision: VisionConfig):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocab_size, shape.hidden) * 0.02)
        self.layers = nn.ModuleList(Layer(shape, dense=index == 0) for index in range(shape.layers))
        self.final_norm = nn.Parameter(torch.zeros(shape.hidden))
        self.eyes = Eyes(vision, shape.hidden)

    def compiled_parts(self) -> list[tuple[nn.Module, str]]:
        """The methods that are compiled for speed: the halves of every layer, and both ends of the eyes."""
        layers = [*self.layers, *self.eyes.layers]
        halves = [(layer, half) for layer in layers for half in ("before", "after")]
        return [*halves, (self.eyes, "embed"), (self.eyes, "merge")]

    def angles(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        half = self.shape.rotary_dim // 2
        frequency = self.shape.rope_theta ** (-torch.arange(half, device=positions_T.device) / half)
        angle = positions_T[:, None].float() * frequency
        return angle.cos(), angle.sin()

    def forward(
        self, ids_T: Tensor, positions_T: Tensor, starts: Tensor, longest: int, seen: Seen | None = None
    ) -> tuple[Tensor, Tensor]:
        """Hidden states [T, D] (bfloat16 on a GPU), and the experts' loads [mixture layers, experts].

        What the eyes make of the pictures that are `seen` stands in the place of those tokens' embeddings.
        """
        dtype = torch.bfloat16 if ids_T.is_cuda else torch.float32
        x = F.embedding(ids_T, self.embedding).to(dtype)
        if seen is not None:
            tokens = self.eyes(seen.patches, seen.places, seen.starts, seen.longest)
            x = x.index_copy(0, seen.rows, tokens[: len(seen.rows)])
        cos, sin = self.angles(positions_T)
        loads = []
        for layer in self.layers:
            q, k, v = layer.before(x, cos, sin)
            x, load = layer.after(x, attention(q, k, v, starts, longest))
            if load.numel():
                loads.append(load)
        return gemma_norm(x, self.final_norm, self.shape.norm_eps), torch.stack(loads)

    def logits(self, hidden_TD: Tensor) -> Tensor:
        return hidden_TD @ self.embedding.to(hidden_TD.dtype).T

    @torch.no_grad()
    def balance(self, loads: Tensor, rate: float) -> None:
        """Move each layer's selection bias towards equal loads; it never enters the expert weights."""
        mixtures = [layer for layer in self.layers if not layer.dense]
        for layer, load in zip(mixtures, loads, strict=True):
            layer.router_bias += rate * torch.sign(load.mean() - load)
