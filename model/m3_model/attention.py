"""Grouped-query attention, dense or sparse, over the paged cache.

Legend: T tokens, C hidden size, H query heads, G key heads, R index heads, D head size.
"""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from m3_kernels.batch import DECODE_QUERIES, AttentionBatch
from m3_kernels.dense_attention import dense_attention
from m3_kernels.msa_decode import msa_decode
from m3_kernels.norm_rope_insert import norm_rope_insert
from m3_kernels.sparse_prefill import sparse_prefill
from m3_model.cache import LayerCache
from m3_model.config import M3Config
from m3_model.group import ALONE, Parallel
from m3_model.inputs import ModelInputs
from m3_model.layers import Rotation
from m3_model.matrix import AnyMatrix
from m3_model.selection import choose_blocks


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One layer's attention with its weights, fused into two matrices; on several ranks, that of this rank's heads."""

    config: M3Config
    """With the numbers of heads that are here."""
    projection: AnyMatrix
    """Rows of q, k, index q, index k and v, in this order; the index rows only in a sparse layer."""
    output: AnyMatrix
    norms: tuple[Tensor, ...]
    """Norm weights, one row a head: query, key, index query and index key heads in one matrix; where index heads have
    another size, they have a second one; without an index branch there are no rows for it."""
    parallel: Parallel = ALONE

    def __call__(self, x_TC: Tensor, inputs: ModelInputs, cache: LayerCache, rotation: Rotation) -> Tensor:
        """Cache the new tokens' keys and values, then attend. Returns: [T, C], to be summed over all ranks."""
        config, batch = self.config, inputs.attention
        T, H, D = len(x_TC), config.num_heads, config.head_dim
        q_THD, index_q_TRD = norm_rope_insert(
            self.projection(x_TC),
            self.norms,
            rotation.cos_TF,
            rotation.sin_TF,
            inputs.slots_T,
            cache.k_PSGD,
            cache.v_PSGD,
            cache.index_k_PSD,
            num_heads=H,
            eps=config.rms_norm_eps,
        )
        scale = D**-0.5
        if index_q_TRD is None or cache.index_k_PSD is None or self._everything_is_chosen(batch):
            attended = dense_attention(q_THD, cache.k_PSGD, cache.v_PSGD, batch, scale=scale)
        elif batch.max_queries <= DECODE_QUERIES:
            attended = msa_decode(
                q_THD,
                index_q_TRD,
                cache.index_k_PSD,
                cache.k_PSGD,
                cache.v_PSGD,
                batch,
                scale=scale,
                top_k=config.top_k_blocks,
                init_blocks=config.init_blocks,
                local_blocks=config.local_blocks,
            )
        else:
            blocks_TGK = choose_blocks(index_q_TRD, cache.index_k_PSD, batch, config, self.parallel)
            attended = sparse_prefill(
                q_THD, cache.k_PSGD, cache.v_PSGD, blocks_TGK, batch, scale=scale, max_product=self.max_product
            )
        return self.output(attended.reshape(T, H * D))

    @cached_property
    def max_product(self) -> float:
        """What no product of a query and a key exceeds: each was normed and scaled by `1 + weight`, then rounded."""
        H = self.config.num_heads
        of_heads = (1 + self.norms[0].float()).abs()
        of_q, of_k = of_heads[:H].max(), of_heads[H : H + self.config.num_kv_heads].max()
        return 1.02 * self.config.head_dim * float(of_q * of_k)

    def _everything_is_chosen(self, batch: AttentionBatch) -> bool:
        """While a sequence has no more blocks than are chosen, all of them are: scoring them would change nothing."""
        return batch.max_length <= self.config.top_k_blocks * self.config.block_size
