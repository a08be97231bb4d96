"""Block-sparse attention in three steps: score the blocks, choose the best, attend to them alone.

With top_k * block_size keys or fewer every visible block is chosen, and the result equals dense attention.
"""

import torch

from m3_kernels.batch import AttentionBatch
from m3_kernels.block_topk import block_topk
from m3_kernels.index_scores import index_scores

BLOCK, TOP_K, LENGTH = 128, 4, 1000
torch.manual_seed(0)
pages = [list(range(-(-LENGTH // BLOCK)))]
batch = AttentionBatch.build([LENGTH], [LENGTH], pages, page_size=BLOCK)
index_q_TRD = torch.randn(LENGTH, 2, 64)
index_k_PSD = torch.randn(len(pages[0]), BLOCK, 64)

scores = index_scores(index_q_TRD, index_k_PSD, batch)
blocks = block_topk(scores, batch.positions_T, top_k=TOP_K, block_size=BLOCK)
for position in (0, 300, 999):
    print(position, [sorted(b for b in head if b >= 0) for head in blocks[position].tolist()])
assert blocks[300, 0].tolist().count(-1) == TOP_K - 3  # three blocks are visible at position 300
assert all(999 // BLOCK in head for head in blocks[999].tolist())  # the own block is always chosen
