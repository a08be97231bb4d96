"""The paged cache of a decoder: keys, values and index keys of all layers, which always move together.

Legend: L layers, P pages, S tokens a page, G key heads, D head size; index keys exist in sparse layers only.
"""

from collections.abc import Iterator, Sequence
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
        self._parts = (k_LPSGD, v_LPSGD, index_k_LPSD)
        """All that a page holds. Whatever moves pages goes through these, so that no part is left behind."""
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
        return sum(part.numel() * part.element_size() for part in self._parts) // self.num_pages

    def layer(self, i: int) -> LayerCache:
        return self.layers[i]

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int], *, tokens: int | None = None) -> None:
        """Copy pages, one source to each target; only their first `tokens` slots if given.

        A target must not be a source of the same call.
        """
        pairs = list(zip(sources, targets, strict=True))
        for part in self._parts:
            slots = part[:, :, :tokens]
            # One copy a page: indexing with all pages at once would gather the sources into a tensor first.
            for source, target in pairs:
                slots[:, target].copy_(slots[:, source])

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int], first: int, last: int) -> None:
        """Copy slots first..last-1 of whole pages, all at once: a page may be source and target of one call.

        Beams of a search differ only in the few slots behind the prompt, so their reordering moves only those.
        """
        device = self.k_LPSGD.device
        source, target = torch.tensor(sources, device=device), torch.tensor(targets, device=device)
        for part in self._parts:
            window = part[:, :, first:last]
            window[:, target] = window[:, source]

    def read_page(self, page: int) -> bytearray:
        """All that a page holds, as `bytes_per_page` bytes outside of the cache."""
        content = bytearray(self.bytes_per_page)
        outside_1X = torch.frombuffer(content, dtype=torch.uint8).view(1, -1)
        for part, outside in zip(self._parts, self._parts_of(outside_1X), strict=True):
            outside[:, 0].copy_(part[:, page])
        return content

    def write_pages(self, pages: Sequence[int], content_NX: Tensor) -> None:
        """Fill pages with what `read_page` gave, uint8 rows of `bytes_per_page` bytes. A GPU copies in its own time.

        Errors: ValueError if there is not one row of the size of a page for each page.
        """
        if content_NX.shape != (len(pages), self.bytes_per_page):
            raise ValueError(f"{len(pages)} pages have {self.bytes_per_page} bytes each, not {tuple(content_NX.shape)}")
        index = torch.tensor(pages, dtype=torch.int64, device=self.k_LPSGD.device)
        content_NX = content_NX.to(self.k_LPSGD.device, non_blocking=True)
        for part, outside in zip(self._parts, self._parts_of(content_NX), strict=True):
            if part.numel():  # a model without sparse layers has no index keys
                part.index_copy_(1, index, outside)

    def _parts_of(self, content_NX: Tensor) -> Iterator[Tensor]:
        """What stands for each part in bytes of N pages, its layers first."""
        offset = 0
        for part in self._parts:
            size = part[:, 0].numel() * part.element_size()
            values_NX = content_NX[:, offset : offset + size].view(part.dtype)
            yield values_NX.view(len(content_NX), *part[:, 0].shape).transpose(0, 1)
            offset += size
