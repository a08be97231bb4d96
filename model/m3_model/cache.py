"""The paged cache of a decoder: keys, values and index keys of all layers, which always move together.

Legend: L layers, P pages, S tokens a page, G key heads, D head size; index keys exist in sparse layers only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from m3_model.config import M3Config


@dataclass(frozen=True, kw_only=True)
class LayerCache:
    """Views of one layer's part of every page."""

    k_PSGD: Tensor
    v_PSGD: Tensor
    index_k_PSD: Tensor | None


class KVCache:
    """Memory for a fixed number of pages. It is zero at first: attention may read slots that no token has filled."""

    def __init__(self, config: M3Config, k_LPSGD: Tensor, v_LPSGD: Tensor, index_k_LPSD: Tensor) -> None:
        self.k_LPSGD = k_LPSGD
        self.v_LPSGD = v_LPSGD
        self.index_k_LPSD = index_k_LPSD
        sparse_before = 0
        layers = []
        for i, kind in enumerate(config.attention_kinds):
            index_k = index_k_LPSD[sparse_before] if kind == "sparse" else None
            sparse_before += kind == "sparse"
            layers.append(LayerCache(k_PSGD=k_LPSGD[i], v_PSGD=v_LPSGD[i], index_k_PSD=index_k))
        self.layers: tuple[LayerCache, ...] = tuple(layers)

    @classmethod
    def zeros(
        cls, config: M3Config, num_pages: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> "KVCache":
        """A cache of num_pages pages of config.block_size tokens."""
        S, G, D = config.block_size, config.num_kv_heads, config.head_dim
        shape = (config.num_layers, num_pages, S, G, D)
        return cls(
            config,
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros((config.num_sparse_layers, num_pages, S, config.index_dim), dtype=dtype, device=device),
        )

    @property
    def num_pages(self) -> int:
        return self.k_LPSGD.shape[1]

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page over all layers."""
        tensors = (self.k_LPSGD, self.v_LPSGD, self.index_k_LPSD)
        return sum(t.numel() * t.element_size() for t in tensors) // self.num_pages

    def layer(self, i: int) -> LayerCache:
        return self.layers[i]

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int], *, tokens: int | None = None) -> None:
        """Copy pages, one source to each target; only their first `tokens` slots if given.

        A target must not be a source of the same call.
        """
        pairs = list(zip(sources, targets, strict=True))
        for tensor in (self.k_LPSGD, self.v_LPSGD, self.index_k_LPSD):
            slots = tensor[:, :, :tokens]
            # One copy a page: indexing with all pages at once would gather the sources into a tensor first.
            for source, target in pairs:
                slots[:, target].copy_(slots[:, source])

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int], first: int, last: int) -> None:
        """Copy slots first..last-1 of whole pages, all at once: a page may be source and target of one call.

        Beams of a search differ only in the few slots behind the prompt, so their reordering moves only those.
        """
        device = self.k_LPSGD.device
        source, target = torch.tensor(sources, device=device), torch.tensor(targets, device=device)
        for tensor in (self.k_LPSGD, self.v_LPSGD, self.index_k_LPSD):
            window = tensor[:, :, first:last]
            window[:, target] = window[:, source]
