"""The text decoder: token ids and a cache in, hidden states and logits out."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from m3_kernels.rms_norm import rms_norm
from m3_model.attention import Attention
from m3_model.cache import KVCache
from m3_model.config import M3Config
from m3_model.inputs import ModelInputs
from m3_model.layers import GatedMlp, Rotation
from m3_model.matrix import HalfMatrix, Matrix
from m3_model.moe import MoE
from m3_model.vision.encoder import VisionEncoder


@dataclass(frozen=True, kw_only=True)
class DecoderLayer:
    """Attention and a feed-forward part, each behind a norm."""

    attention_norm_C: Tensor
    attention: Attention
    mlp_norm_C: Tensor
    mlp: GatedMlp | MoE


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """An M3 text model. Legend: T new tokens, R rows whose logits are wanted, C hidden size, V vocabulary."""

    config: M3Config
    embedding_VC: Tensor
    layers: tuple[DecoderLayer, ...]
    norm_C: Tensor
    head: Matrix | HalfMatrix
    """From hidden states to scores; the embedding table where the two are tied."""
    vision: VisionEncoder | None = None
    """What turns images and videos into the vectors that inputs.visual holds; None in a text-only model."""

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
            x_TC, residual_TC = F.embedding(inputs.token_ids_T, self.embedding_VC), None
            if inputs.visual is not None:
                x_TC[inputs.visual.rows_N] = inputs.visual.vectors_NC.to(x_TC.dtype)
            for i, layer in enumerate(self.layers):
                normed_TC, residual_TC = rms_norm(x_TC, residual_TC, layer.attention_norm_C, eps=eps)
                x_TC = layer.attention(normed_TC, inputs, cache.layer(i), rotation)
                if i == len(self.layers) - 1:  # from here on nothing is cached, so only the wanted rows go on
                    x_TC, residual_TC = x_TC[inputs.output_rows_R], residual_TC[inputs.output_rows_R]
                normed_TC, residual_TC = rms_norm(x_TC, residual_TC, layer.mlp_norm_C, eps=eps)
                x_TC = layer.mlp(normed_TC)
            return rms_norm(x_TC, residual_TC, self.norm_C, eps=eps)[0]

    def logits(self, hidden_RC: Tensor) -> Tensor:
        """Scores of every next token, float32 [R, V]."""
        with torch.inference_mode():
            return self.head(hidden_RC).float()
