"""The reduced model: M3's widths, one dense layer and three sparse ones with experts, random weights."""

from __future__ import annotations

from math import prod
from typing import cast

import torch
from torch import Tensor

from m3_model import names
from m3_model.cache import KVCache
from m3_model.checkpoint import Checkpoint
from m3_model.config import M3Config
from m3_model.decoder import Decoder
from m3_model.loading import DecoderBuilder
from m3_model.random_checkpoint import released_config, tiny_config

LAYERS_OF_M3 = {"dense": 3, "sparse": 57}


def stack_config() -> M3Config:
    """M3's, but for the number of layers."""
    return released_config(num_dense=1, num_sparse=3)


def small_config() -> M3Config:
    """The same kinds of layers, small enough for a CPU."""
    return tiny_config(top_k_blocks=2)


class _RandomWeights:
    """Stands where a builder expects a checkpoint: every tensor is drawn where it is wanted, scaled as in training."""

    def __init__(self, config: M3Config):
        self.config = config
        self.entries = names.tensors(config)

    def read(
        self,
        name: str,
        dtype: torch.dtype,
        device: torch.device | str,
        *,
        rows: range | None = None,
        columns: range | None = None,
    ) -> Tensor:
        dtype = torch.float32 if name.endswith(names.FLOAT32_NAMES) else dtype
        shape = list(self.entries[name].shape)
        for axis, part in enumerate((rows, columns)):
            if part is not None:
                shape[axis] = len(part)
        tensor = torch.empty(shape, dtype=dtype, device=device)
        self.read_into(tensor, name)
        return tensor

    def read_into(self, target: Tensor, name: str, *, rows: range | None = None, columns: range | None = None) -> None:
        """`rows` and `columns` say which of them the target holds: any are as random as others."""
        shape = self.entries[name].shape
        target.normal_(0, prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.1)


def random_decoder(config: M3Config, dtype: torch.dtype, device: str) -> Decoder:
    torch.manual_seed(0)
    return DecoderBuilder(cast(Checkpoint, _RandomWeights(config)), dtype, device).decoder()


def random_cache(config: M3Config, num_tokens: int, dtype: torch.dtype, device: str) -> KVCache:
    """A cache in which every slot holds keys as long as normed ones are, and one scratch page."""
    cache = KVCache.zeros(config, num_tokens // config.block_size + 1, dtype=dtype, device=device)
    for part in (cache.k_LPSGD, cache.v_LPSGD, cache.index_k_LPSD):
        for layer in part:
            layer.normal_()
    return cache
