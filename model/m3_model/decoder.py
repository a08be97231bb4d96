"""The text decoder: token ids and a cache in, hidden states and logits out."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from m3_kernels.rms_norm import rms_norm
from m3_model.attention import Attention
from m3_model.cache import KVCache
from m3_model.config import M3Config
from m3_model.group import ALONE, Parallel, Rows, gather_columns
from m3_model.inputs import ModelInputs
from m3_model.layers import GatedMlp, Rotation
from m3_model.matrix import AnyMatrix
from m3_model.moe import MoE
from m3_model.share import part
from m3_model.vision.encoder import VisionEncoder


@dataclass(frozen=True, kw_only=True)
class DecoderLayer:
    """Attention and a feed-forward part, each behind a norm."""

    attention_norm_C: Tensor
    attention: Attention
    mlp_norm_C: Tensor
    mlp: GatedMlp | MoE

    def feed_forward(self, x_SC: Tensor, rows: Rows) -> Tensor:
        """The feed-forward part of the rows that lie here."""
        return self.mlp(x_SC, rows) if isinstance(self.mlp, MoE) else rows.sum(self.mlp(rows.gather(x_SC)))


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """An M3 text model, or one rank's share of it, which is called on all ranks at once with the same inputs.

    Legend: T new tokens, S those of them that lie on this rank, R rows whose logits are wanted, C hidden size,
    V vocabulary.
    """

    config: M3Config
    """With the numbers of heads that are here; so it is also the configuration of the cache."""
    embedding_VC: Tensor
    layers: tuple[DecoderLayer, ...]
    norm_C: Tensor
    head: AnyMatrix
    """From hidden states to scores; the embedding table where the two are tied."""
    vision: VisionEncoder | None = None
    """What turns images and videos into the vectors that inputs.visual holds; None in a text-only model."""
    parallel: Parallel = ALONE

    @property
    def device(self) -> torch.device:
        return self.embedding_VC.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding_VC.dtype

    def __call__(self, inputs: ModelInputs, cache: KVCache) -> Tensor:
        """Logits of the wanted rows, float32 [R, V]; the new tokens are in the cache afterwards."""
        with torch.inference_mode():
            return self.logits(self.hidden(inputs, cache))

    def hidden(self, inputs: ModelInputs, cache: KVCache) -> Tensor:
        """Normed states of the wanted rows, [R, C]; the new tokens are in the cache afterwards.

        Errors: ValueError if the inputs were built for pages of another size.
        """
        eps = self.config.rms_norm_eps
        if inputs.attention.page_size != self.config.block_size:
            raise ValueError(f"pages of {inputs.attention.page_size} tokens; this model needs {self.config.block_size}")
        with torch.inference_mode():
            rotation = Rotation.at(inputs.positions_T, self.config)
            rows = self.parallel.rows(len(inputs.token_ids_T))
            x_SC, residual_SC = rows.sum(self._embedded(inputs)), None
            for i, layer in enumerate(self.layers):
                normed_SC, residual_SC = rms_norm(x_SC, residual_SC, layer.attention_norm_C, eps=eps)
                x_SC = rows.sum(layer.attention(rows.gather(normed_SC), inputs, cache.layer(i), rotation))
                if i == len(self.layers) - 1:  # from here on nothing is cached, so only the wanted rows go on
                    x_SC, residual_SC = (rows.gather(x)[inputs.output_rows_R] for x in (x_SC, residual_SC))
                    rows = self.parallel.rows(len(x_SC))
                    x_SC, residual_SC = rows.own(x_SC), rows.own(residual_SC)
                normed_SC, residual_SC = rms_norm(x_SC, residual_SC, layer.mlp_norm_C, eps=eps)
                x_SC = layer.feed_forward(normed_SC, rows)
            return rows.gather(rms_norm(x_SC, residual_SC, self.norm_C, eps=eps)[0])

    def logits(self, hidden_RC: Tensor) -> Tensor:
        """Scores of every next token, float32 [R, V]."""
        with torch.inference_mode():
            P = self.parallel.ranks.size
            widths = [len(part(self.config.vocab_size, rank, P)) for rank in range(P)]
            return gather_columns(self.head(hidden_RC).float(), widths, self.parallel.ranks)

    def _embedded(self, inputs: ModelInputs) -> Tensor:
        """The new tokens' vectors, [T, C], to be summed over all ranks: each has them for a part of the vocabulary."""
        group, visual = self.parallel.ranks, inputs.visual
        if group.size == 1:
            x_TC = F.embedding(inputs.token_ids_T, self.embedding_VC)
        else:
            ids_T = inputs.token_ids_T - part(self.config.vocab_size, group.rank, group.size).start
            is_here_T = (ids_T >= 0) & (ids_T < len(self.embedding_VC))
            x_TC = F.embedding(ids_T.clamp(0, len(self.embedding_VC) - 1), self.embedding_VC)
            x_TC = x_TC.masked_fill(~is_here_T[:, None], 0)
        if visual is not None:
            x_TC[visual.rows_N] = visual.vectors_NC.to(x_TC.dtype)
            if visual.elsewhere_M is not None:
                x_TC[visual.elsewhere_M] = 0
        return x_TC
