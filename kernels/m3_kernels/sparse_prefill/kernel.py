"""Sparse attention of many queries in Triton: each tile of queries goes one of two ways, by what its queries share.

`unions`: neighbours with nearly equal lists read the union of them once. `by_block`: blocks read the queries that chose
them. The choice is made on the device, tile by tile.
"""

import math

import torch
import triton
from torch import Tensor

from m3_kernels.batch import AttentionBatch
from m3_kernels.launch import check_attention, on_device_of
from m3_kernels.softmax import LOG2_E, bounded
from m3_kernels.sparse_prefill.by_block import add_up, attend_items, list_edges, list_items
from m3_kernels.sparse_prefill.unions import attend_unions, unite

TILE_ROWS = 64
"""Queries times heads of a tile: one warp group's wgmma."""
MAX_TILE_QUERIES = 8
KEYS, STAGES = 64, 4
"""Keys of one step; half a block, so that two programs with their next steps fit a multiprocessor."""
BOUNDED_KEYS, BOUNDED_STAGES = 32, 5
"""The same where the softmax is bounded: a step then has so little to do beside its products that four programs fit."""
SHARED_ENOUGH = 2.25
"""Blocks in a tile's union, in lists: below it the union is read faster than partial results are written and read. 0
would send every tile by block, infinity none."""
PROGRAMS = 264
ROWS_TO_ADD = 16
"""Rows whose parts one program adds up."""


def sparse_prefill(
    q_THD: Tensor,
    k_PSGD: Tensor,
    v_PSGD: Tensor,
    blocks_TGK: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    max_product: float = math.inf,
) -> Tensor:
    """As the reference. Errors: ValueError also for dtypes, strides or sizes that the tiles cannot take."""
    check_attention(q_THD, k_PSGD, v_PSGD, batch.page_table_BN, blocks_TGK)
    T, H, D = q_THD.shape
    P, S, G, _ = k_PSGD.shape
    device = q_THD.device
    out_THD = torch.empty(T, H, D, dtype=q_THD.dtype, device=device)
    if T == 0:
        return out_THD
    B, N = batch.page_table_BN.shape
    K = blocks_TGK.shape[2]
    heads = triton.next_power_of_2(H // G)
    queries = min(MAX_TILE_QUERIES, max(1, TILE_ROWS // heads))
    heads = max(heads, 16 // queries)
    slots = triton.next_power_of_2(K)
    tiles = triton.cdiv(batch.max_queries, queries)
    pages, blocks, choosers = torch.empty(3, B, tiles, G, queries * slots, dtype=torch.int32, device=device)
    counts = torch.empty(B, tiles, G, 2, dtype=torch.int32, device=device)
    by_block = torch.empty(T, G, dtype=torch.int32, device=device)
    edge_counts = torch.zeros(P * G, dtype=torch.int32, device=device)
    edge_ranks, edge_pages = torch.empty(2, T, G, K, dtype=torch.int32, device=device)
    where = (batch.query_starts, batch.lengths_B)
    cache = (q_THD, k_PSGD, v_PSGD)
    q_strides, caches_strides = q_THD.stride()[:2], (*k_PSGD.stride()[:2], *v_PSGD.stride()[:2])
    scale_log2, is_bounded = scale * LOG2_E, bounded(scale, max_product)
    tile = {"GROUP": H // G, "HEADS": heads, "QUERIES": queries, "D": D, "S": S}
    with on_device_of(q_THD):
        unite[(tiles, G, B)](
            blocks_TGK, pages, blocks, choosers, counts, by_block, edge_counts, edge_ranks, edge_pages, *where,
            batch.page_table_BN, N, int(min(SHARED_ENOUGH * K, queries * slots)), K=K, SLOTS=slots, QUERIES=queries,
            S=S, num_warps=1,
        )  # fmt: skip
        attend_unions[(tiles, G, B)](
            *cache, out_THD, pages, blocks, choosers, counts, *where, *q_strides, out_THD.stride(0), *caches_strides,
            scale_log2, LIST=queries * slots, BOUNDED=is_bounded, KEYS=min(BOUNDED_KEYS if is_bounded else KEYS, S),
            **tile, num_warps=4, num_stages=BOUNDED_STAGES if is_bounded else STAGES,
        )  # fmt: skip
        num_items_of = (edge_counts + (queries - 1)) // queries
        edge_ends, item_ends = (x.cumsum(0, dtype=torch.int32) for x in (edge_counts, num_items_of))
        edge_starts, item_starts = edge_ends - edge_counts, item_ends - num_items_of
        edges = torch.empty(T * G * K, dtype=torch.int64, device=device)
        list_edges[(triton.cdiv(T * G, 64),)](
            by_block, blocks_TGK, edge_ranks, edge_pages, edge_starts, edges, T * G, G=G, K=K, ROWS=64, SLOTS=slots,
            num_warps=4,
        )  # fmt: skip
        items = torch.empty(T * G * K // queries + min(P * G, T * G * K), dtype=torch.int32, device=device)
        list_items[(triton.cdiv(P * G, 128),)](
            edge_counts, item_starts, items, P * G, PER_ITEM=queries, LISTS=128, num_warps=4
        )
        parts = torch.empty(T * G * K, H // G, D, dtype=q_THD.dtype, device=device)
        parts_log = torch.empty(T * G * K, H // G, dtype=torch.float32, device=device)
        attend_items[(PROGRAMS,)](
            *cache, blocks_TGK, batch.positions_T, edges, edge_counts, edge_starts, items, item_starts, item_ends[-1:],
            parts, parts_log, *q_strides, *caches_strides, scale_log2, G=G, K=K, KEYS=min(KEYS, S), **tile,
            num_warps=4, num_stages=3,
        )  # fmt: skip
        add_up[(triton.cdiv(T * G, ROWS_TO_ADD),)](
            by_block, blocks_TGK, parts, parts_log, out_THD, out_THD.stride(0), T * G, ROWS=ROWS_TO_ADD, G=G,
            GROUP=H // G, HEADS=heads, D=D, K=K, SLOTS=slots, num_warps=4,
        )  # fmt: skip
    return out_THD
