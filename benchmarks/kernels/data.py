"""Tensors of one M3 layer at a context length, and selections such as a trained model makes.

Legend: T queries, H query heads, G key heads, R index heads, D head size, K chosen blocks, N blocks.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch
from torch import Tensor

from m3_kernels.batch import AttentionBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """M3's shape; smaller ones let the benchmark be tried on a CPU."""

    H: int = 64
    G: int = 4
    R: int = 4
    D: int = 128
    S: int = 128
    K: int = 16
    chunk: int = 8192
    hidden: int = 6144
    experts: int = 128
    experts_per_token: int = 4
    expert_width: int = 3072
    pairs: int = 32


TINY = Shape(
    H=4, G=2, R=2, D=16, S=16, K=4, chunk=32, hidden=64, experts=8, experts_per_token=2, expert_width=32, pairs=4
)
TINY_PEER = dataclasses.replace(TINY, S=128, K=2, chunk=16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer with `length` tokens in its cache, whose last `queries` are new."""

    batch: AttentionBatch
    q_THD: Tensor
    index_q_TRD: Tensor
    k_PSGD: Tensor
    v_PSGD: Tensor
    index_k_PSD: Tensor
    normed: bool = True
    """Whether it is known how long queries and keys are, as in a model that norms them."""

    @classmethod
    def make(
        cls, shape: Shape, length: int, queries: int, *, device: torch.device, dtype: torch.dtype, seed: int = 0
    ) -> Layer:
        """Random normal tensors; pages in random order."""
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*sizes: int) -> Tensor:
            return torch.randn(*sizes, device=device, dtype=dtype, generator=generator)

        num_pages = -(-length // shape.S)
        pages = torch.randperm(num_pages, generator=torch.Generator().manual_seed(seed)).tolist()
        return cls(
            batch=AttentionBatch.build([queries], [length], [pages], page_size=shape.S, device=device),
            q_THD=normal(queries, shape.H, shape.D),
            index_q_TRD=normal(queries, shape.R, shape.D),
            k_PSGD=normal(num_pages, shape.S, shape.G, shape.D),
            v_PSGD=normal(num_pages, shape.S, shape.G, shape.D),
            index_k_PSD=normal(num_pages, shape.S, shape.D),
        )

    @functools.cached_property
    def max_product(self) -> float:
        """What no product of a query and a key exceeds; a model knows it from its norms."""
        if not self.normed:
            return math.inf
        lengths = [
            max(float(part.float().norm(dim=-1).max()) for part in x.split(1024)) for x in (self.q_THD, self.k_PSGD)
        ]
        return lengths[0] * lengths[1]

    def contiguous(self, cache_PSGD: Tensor) -> Tensor:
        """A cache in the order of its tokens, as dense attention wants it: [1, G, tokens, D]."""
        pages = torch.tensor(self.batch.pages[0], device=cache_PSGD.device)
        tokens = cache_PSGD[pages].flatten(0, 1)[: self.batch.lengths[0]]
        return tokens.transpose(0, 1)[None].contiguous()


def random_selection(positions_T: Tensor, shape: Shape, *, seed: int = 1) -> Tensor:
    """The own block and others drawn evenly: int32 [T, G, K]."""
    generator = torch.Generator(positions_T.device).manual_seed(seed)
    own_T11 = (positions_T // shape.S)[:, None, None]
    share = torch.rand(len(positions_T), shape.G, 3 * shape.K, device=positions_T.device, generator=generator)
    return _first_different(torch.cat([own_T11.expand(-1, shape.G, 1), (share * own_T11).long()], -1), own_T11, shape.K)


def real_like_selection(positions_T: Tensor, shape: Shape, *, seed: int = 1) -> Tensor:
    """Block 0, the own and the one before it, and a set that changes slowly: half local, half of popular blocks.

    Neighbouring queries share about 92 % of their blocks, as is reported of trained models. int32 [T, G, K].
    """
    device, T = positions_T.device, len(positions_T)
    generator = torch.Generator(device).manual_seed(seed)
    own_T11 = (positions_T // shape.S)[:, None, None]
    slots, life = 3 * shape.K, 10
    # A slot keeps what it drew for `life` queries; slots begin at different times.
    draws = torch.rand(T // life + 2, shape.G, slots, device=device, generator=generator)
    phase = torch.randint(life, (shape.G, slots), device=device, generator=generator)
    epoch = (torch.arange(T, device=device)[:, None, None] + phase) // life
    share = draws.gather(0, epoch)
    local = own_T11 - 2 - (-(1 - share).clamp(min=1e-6).log() * 12).long()
    popular = ((own_T11 + 1).float() ** share).long() - 1
    is_local = (torch.arange(slots, device=device) % 2 == 0).expand_as(share)
    fixed = torch.cat([torch.zeros_like(own_T11), own_T11, own_T11 - 1], -1).expand(-1, shape.G, -1)
    return _first_different(torch.cat([fixed, torch.where(is_local, local, popular)], -1), own_T11, shape.K)


def _first_different(wanted: Tensor, own_T11: Tensor, K: int) -> Tensor:
    """The first K different visible blocks of each row, left-packed; -1 only where a row sees fewer than K."""
    lowest = torch.arange(K, device=wanted.device).expand(*wanted.shape[:2], K)
    wanted = torch.cat([wanted, lowest], -1)
    same = wanted[..., :, None] == wanted[..., None, :]
    repeated = torch.tril(same, -1).any(-1)
    dropped = repeated | (wanted < 0) | (wanted > own_T11)
    order = dropped.to(torch.int8).argsort(dim=-1, stable=True)[..., :K]
    return torch.where(dropped, -1, wanted).gather(-1, order).int().contiguous()
