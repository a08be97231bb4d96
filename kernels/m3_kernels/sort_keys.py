"""Scores and block numbers as integers that order as blocks compete: by score, and among equals the lower block first.

Used by every kernel that chooses blocks. A block that cannot be chosen has the rank minus infinity; as block numbers
differ, so do all keys.
"""

import triton
import triton.language as tl


@triton.jit
def competing_rank(score, n, num_visible, own, init_blocks, local_blocks):
    """The scores of blocks n as they compete: forced ones at infinity, hidden ones out."""
    forced = (n < init_blocks) | (n > own - local_blocks)
    rank = tl.where(forced, float("inf"), comparable(score))
    return tl.where(n < num_visible, rank, float("-inf"))


@triton.jit
def comparable(score):
    """NaN becomes the last of the numbers, and -0.0 becomes 0.0, which it is equal to, in its bits too."""
    score = tl.where(score != score, -3.4028234663852886e38, score)
    return tl.where(score == 0, 0.0, score)


@triton.jit
def ordered_bits(rank):
    """int32 that order as the numbers do."""
    bits = rank.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def sort_key(rank, n):
    """Rank and block number in one int64."""
    return (ordered_bits(rank).to(tl.int64) << 32) | (0x7FFFFFFF - n).to(tl.int64)


@triton.jit
def rank_of(key):
    """The rank that a key was made of."""
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def block_of(key):
    """The block number that a key was made of."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def num_larger(keys):
    """How many of the keys, all different, are larger than each."""
    return tl.sum((keys[None, :] > keys[:, None]).to(tl.int32), 1)


@triton.jit
def largest_blocks(keys, COUNT: tl.constexpr):
    """The block numbers of the COUNT largest keys, which are all different, the largest first."""
    mine = num_larger(keys)[:, None] == tl.arange(0, COUNT)[None, :]
    return tl.sum(tl.where(mine, block_of(keys)[:, None], 0), 0)
