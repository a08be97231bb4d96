"""Attention of a few new tokens in Triton: every step of it in one launch.

At one token a step is so short that launches cost more than work. So one program a multiprocessor runs all steps, and
between two of them all programs wait for each other:

1. Score. Each program scores every n-th block and keeps the few best of them.
2. Choose and attend. Each program works on a part of the keys of one row and key head. Which blocks are chosen it finds
   out by itself. The best of each group of blocks tell which groups can hold a chosen one at all; the few best of those
   groups are compared. Only if all of one group's are chosen may it hold more: then all blocks are looked at, from the
   best of finer and finer groups down to single blocks.
3. Merge the parts.

There are as many index heads as key heads. Programs that wait for each other must all run at once: the launch is
cooperative. Where that cannot be, each step is a launch.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from m3_kernels.batch import AttentionBatch
from m3_kernels.block_topk.reference import check_forced
from m3_kernels.launch import check_attention, check_cache, check_power_of_two, check_same_device, on_device_of
from m3_kernels.msa_decode.reference import check_decode
from m3_kernels.softmax import LOG2_E, accumulate
from m3_kernels.sort_keys import block_of, competing_rank, largest_blocks, num_larger, rank_of, sort_key

MAX_PROGRAMS = 128
KEYS = 64
"""Keys that a part attends to at a time."""
KEPT = 4
"""The best blocks that a program keeps of those it scored."""
MIN_GROUPS = 64
"""Groups that are compared with each other: more take longer to compare, fewer are compared more often."""
NOWHERE = tl.constexpr(1 << 30)
"""Block numbers from here on are of no block."""
WARPS, STAGES = 4, 7
NUM_THREADS = tl.constexpr(32 * WARPS)
EARLY = True
"""Whether a launch may begin while the one before ends; it waits for that one's results."""
_waiting: dict[tuple[torch.device, int, int, int], tuple[Tensor, Tensor, Tensor]] = {}


def msa_decode(
    q_THD: Tensor,
    index_q_TGD: Tensor,
    index_k_PSD: Tensor,
    k_PSGD: Tensor,
    v_PSGD: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    top_k: int,
    init_blocks: int = 0,
    local_blocks: int = 1,
) -> Tensor:
    """As the reference. Errors: ValueError also for dtypes, strides or sizes that the tiles cannot take."""
    check_attention(q_THD, k_PSGD, v_PSGD, batch.page_table_BN)
    check_forced(top_k, init_blocks, local_blocks)
    check_decode(q_THD, index_q_TGD, k_PSGD, batch)
    check_same_device(q=q_THD, index_q=index_q_TGD, index_k=index_k_PSD)
    check_cache("the index cache", index_k_PSD, like=index_q_TGD)
    T, H, D = q_THD.shape
    _, S, G, _ = k_PSGD.shape
    check_power_of_two(index_head_dim=index_q_TGD.shape[2])
    if index_q_TGD.stride(2) != 1:
        raise ValueError(f"the last axis of the index queries must be contiguous, got strides {index_q_TGD.stride()}")
    device = q_THD.device
    out_THD = torch.empty(T, H, D, dtype=q_THD.dtype, device=device)
    if T == 0:
        return out_THD
    B, N = batch.page_table_BN.shape
    slots = triton.next_power_of_2(top_k)
    groups = max(MIN_GROUPS, KEPT * slots)
    together, programs = _programs(device, groups)
    early = together and EARLY
    keys = min(KEYS, S)
    rows = B * batch.max_queries * G
    parts = max(1, min(slots * (S // keys), 1 << ((programs // rows).bit_length() - 1) if rows <= programs else 1))
    heads = max(16, triton.next_power_of_2(H // G))
    # Blocks of a group, as a power of the number of parts that each level cuts a group into.
    cut = groups // slots
    levels = 0
    while cut**levels * groups < N:
        levels += 1
    keys_TGN = torch.empty(T, G, N, dtype=torch.int64, device=device)
    arrived, best, partial = _shared_memory(device, T * G * KEPT * programs, programs * heads * (D + 2))
    with on_device_of(q_THD):
        for first, last in [(1, 3)] if together else [(1, 1), (2, 2), (3, 3)]:
            _decode[(programs,)](
                q_THD,
                index_q_TGD,
                index_k_PSD,
                k_PSGD,
                v_PSGD,
                out_THD,
                keys_TGN,
                best,
                arrived,
                partial,
                batch.query_starts,
                batch.lengths_B,
                batch.page_table_BN,
                q_THD.stride(0),
                q_THD.stride(1),
                index_q_TGD.stride(0),
                index_q_TGD.stride(1),
                index_k_PSD.stride(0),
                k_PSGD.stride(0),
                k_PSGD.stride(1),
                v_PSGD.stride(0),
                v_PSGD.stride(1),
                N,
                scale * LOG2_E,
                init_blocks,
                local_blocks,
                B,
                batch.max_queries,
                ROWS=triton.next_power_of_2(max(16, batch.max_queries * triton.next_power_of_2(G))),
                PROGRAMS=programs,
                GROUPS=groups,
                G=G,
                G_TILE=triton.next_power_of_2(G),
                INDEX_D=index_q_TGD.shape[2],
                GROUP=H // G,
                HEADS=heads,
                D=D,
                S=S,
                TOP_K=top_k,
                SLOTS=slots,
                CUT=cut,
                LEVELS=levels,
                KEYS=keys,
                PARTS=parts,
                FIRST=first,
                LAST=last,
                STAGES=STAGES,
                KEPT=KEPT,
                EARLY=early,
                num_warps=WARPS,
                launch_cooperative_grid=together,
                launch_pdl=early,
            )
    return out_THD


@functools.cache
def _programs(device: torch.device, groups: int) -> tuple[bool, int]:
    """Whether all programs of a launch can run at once, and how many there are: `groups` or twice as many."""
    if device.type != "cuda":
        return False, groups
    count = torch.cuda.get_device_properties(device).multi_processor_count
    return count >= groups, 2 * groups if min(MAX_PROGRAMS, count) >= 2 * groups else groups


def _shared_memory(device: torch.device, num_best: int, num_partial: int) -> tuple[Tensor, Tensor, Tensor]:
    """What programs tell each other through, one of each for a stream and a shape.

    A count of arrivals, never reset: int64 [1]. The best blocks of programs, each launch's marked otherwise than those
    of the launch before, which leaves none unwritten: int64 [num_best]. And partial results: int32 [num_partial], all
    -1 between launches. Made at the first call, so that a captured graph neither makes nor clears them: run once before
    capturing.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    key = device, stream, num_best, num_partial
    if key not in _waiting:
        arrived = torch.zeros(1, dtype=torch.int64, device=device)
        best = torch.full((num_best,), -1, dtype=torch.int64, device=device)  # as marked by launch -1
        _waiting[key] = arrived, best, torch.full((num_partial,), -1, dtype=torch.int32, device=device)
    return _waiting[key]


@triton.jit
def _decode(
    q, index_q, index_k, k, v, out, keys, best, arrived, partial, query_starts, lengths, page_table,
    q_stride_t, q_stride_h, index_q_stride_t, index_q_stride_r, index_k_stride_p,
    k_stride_p, k_stride_s, v_stride_p, v_stride_s,
    N, scale_log2, init_blocks, local_blocks, B, MAX_QUERIES,
    ROWS: tl.constexpr, PROGRAMS: tl.constexpr, GROUPS: tl.constexpr, G: tl.constexpr, G_TILE: tl.constexpr,
    INDEX_D: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, S: tl.constexpr,
    TOP_K: tl.constexpr, SLOTS: tl.constexpr, CUT: tl.constexpr, LEVELS: tl.constexpr, KEYS: tl.constexpr,
    PARTS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, STAGES: tl.constexpr, KEPT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Steps FIRST to LAST of the three."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    logs = partial + PROGRAMS * HEADS * D
    # Read before this program arrives, so nobody of this launch can have been counted twice.
    launch = tl.load(arrived) // PROGRAMS
    all_arrived = (launch + 1) * PROGRAMS
    mark = (launch & 1) << 31
    if FIRST == 1:
        for b in range(B):
            _score(
                index_q, index_k, keys, best, mark, query_starts, lengths, page_table + b * N, b, program,
                index_q_stride_t, index_q_stride_r, index_k_stride_p, N, init_blocks, local_blocks,
                ROWS, PROGRAMS, G, G_TILE, INDEX_D, S, STAGES, KEPT,
            )  # fmt: skip
        if LAST >= 2:
            _arrive(arrived)
    if (FIRST <= 2) & (LAST >= 2):
        for job in range(program, B * MAX_QUERIES * G * PARTS, PROGRAMS):
            _attend(
                q, k, v, out, keys, best, mark, arrived, all_arrived, partial, logs, query_starts, lengths, page_table,
                job, q_stride_t, q_stride_h, k_stride_p, k_stride_s, v_stride_p, v_stride_s, N, scale_log2, MAX_QUERIES,
                PROGRAMS, GROUPS, G, GROUP, HEADS, D, S, TOP_K, SLOTS, CUT, LEVELS, KEYS, PARTS, KEPT, FIRST < LAST,
            )  # fmt: skip
    if (LAST >= 3) & (PARTS > 1):
        for job in range(program, B * MAX_QUERIES * G * GROUP * 2, PROGRAMS):
            _merge(
                out, partial, logs, query_starts, job, MAX_QUERIES, PROGRAMS, G, GROUP, HEADS, D, PARTS, FIRST < LAST
            )


@triton.jit
def _arrive(arrived):
    """Say that this program has written its scores."""
    tl.debug_barrier()  # every thread has written its share before one of them reports it
    tl.atomic_add(arrived, 1, sem="release")


@triton.jit
def _wait_for_all(arrived, all_arrived):
    """Return when every program has arrived; what they had written by then can be read."""
    # One thread asks; the barrier after it holds the others.
    tl.inline_asm_elementwise(
        """{
        .reg .pred p;
        .reg .b64 count;
        .reg .b32 thread;
        mov.u32 thread, %tid.x;
        setp.ne.u32 p, thread, 0;
        @p bra DONE;
        WAIT:
        ld.acquire.gpu.global.b64 count, [$1];
        setp.lt.s64 p, count, $2;
        @p bra WAIT;
        DONE:
        mov.b32 $0, 0;
        }""",
        "=r,l,l", [arrived, all_arrived], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    tl.debug_barrier()


@triton.jit
def _score(
    index_q, index_k, keys, best, mark, query_starts, lengths, page_table, b, program,
    q_stride_t, q_stride_r, k_stride_p, N, init_blocks, local_blocks,
    ROWS: tl.constexpr, PROGRAMS: tl.constexpr, G: tl.constexpr, G_TILE: tl.constexpr,
    D: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """One program's share of the blocks of sequence b: all its rows are columns of a tile whose rows are keys."""
    first_row = tl.load(query_starts + b)
    count = tl.load(query_starts + b + 1) - first_row
    length = tl.load(lengths + b)
    num_blocks = tl.cdiv(length, S)
    # Sequences begin at different programs, so that short ones are spread over all of them.
    share = (program + b * num_blocks) % PROGRAMS
    row = tl.arange(0, ROWS)
    query, head = row // G_TILE, row % G_TILE
    valid = (query < count) & (head < G)
    t = (first_row + query).to(tl.int64)
    position = length - count + query
    d, key = tl.arange(0, D), tl.arange(0, S)
    q_row = index_q + t * q_stride_t + head * q_stride_r
    q_DM = tl.trans(tl.load(q_row[:, None] + d[None, :], mask=valid[:, None], other=0.0))
    k_tile = key[:, None] * D + d[None, :]
    out = keys + (t * G + head) * N
    own = position // S
    # Where a program has too few blocks, its best are some that are not there.
    tl.static_assert(KEPT == 4)
    nowhere = tl.full([ROWS], float("-inf"), tl.float32)
    first_M = sort_key(nowhere, row * 0 + NOWHERE + share)
    second_M = sort_key(nowhere, row * 0 + NOWHERE + PROGRAMS + share)
    third_M = sort_key(nowhere, row * 0 + NOWHERE + 2 * PROGRAMS + share)
    fourth_M = sort_key(nowhere, row * 0 + NOWHERE + 3 * PROGRAMS + share)
    for n in tl.range(share, num_blocks, PROGRAMS, num_stages=STAGES):
        page = tl.load(page_table + n).to(tl.int64)
        dots = tl.dot(tl.load(index_k + page * k_stride_p + k_tile), q_DM, input_precision="ieee")
        seen = key[:, None] <= (position - n * S)[None, :]
        score_M = tl.max(tl.where(seen, dots, float("-inf")), 0)
        key_M = sort_key(competing_rank(score_M, n, own + 1, own, init_blocks, local_blocks), row * 0 + n)
        tl.store(out + n, key_M, mask=valid)
        first_M, key_M = tl.maximum(first_M, key_M), tl.minimum(first_M, key_M)
        second_M, key_M = tl.maximum(second_M, key_M), tl.minimum(second_M, key_M)
        third_M, key_M = tl.maximum(third_M, key_M), tl.minimum(third_M, key_M)
        fourth_M = tl.maximum(fourth_M, key_M)
    slot = best + (t * G + head) * (KEPT * PROGRAMS) + share
    tl.store(slot, first_M | mark, mask=valid)
    tl.store(slot + PROGRAMS, second_M | mark, mask=valid)
    tl.store(slot + 2 * PROGRAMS, third_M | mark, mask=valid)
    tl.store(slot + 3 * PROGRAMS, fourth_M | mark, mask=valid)


@triton.jit
def _attend(
    q, k, v, out, keys, best, mark, arrived, all_arrived, partial, logs, query_starts, lengths, page_table, job,
    q_stride_t, q_stride_h, k_stride_p, k_stride_s, v_stride_p, v_stride_s, N, scale_log2, MAX_QUERIES,
    PROGRAMS: tl.constexpr, GROUPS: tl.constexpr, G: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr,
    D: tl.constexpr, S: tl.constexpr, TOP_K: tl.constexpr, SLOTS: tl.constexpr, CUT: tl.constexpr,
    LEVELS: tl.constexpr, KEYS: tl.constexpr, PARTS: tl.constexpr, KEPT: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """One part of one row and key head: choose the row's blocks, attend to every PARTS-th step of them."""
    part, row = job % PARTS, job // PARTS
    g, query, b = row % G, row // G % MAX_QUERIES, row // (G * MAX_QUERIES)
    first_row = tl.load(query_starts + b)
    count = tl.load(query_starts + b + 1) - first_row
    if query < count:
        position = tl.load(lengths + b) - count + query
        t = (first_row + query).to(tl.int64)
        head, d = tl.arange(0, HEADS), tl.arange(0, D)
        q_row = q + t * q_stride_t + (g * GROUP + head) * q_stride_h
        q_HD = tl.load(q_row[:, None] + d[None, :], mask=(head < GROUP)[:, None], other=0.0)
        row_best = best + (t * G + g) * (KEPT * PROGRAMS)
        num_blocks = tl.cdiv(position + 1, S)
        top_J = _best_of_groups(row_best, mark, PROGRAMS, GROUPS, WAIT)
        best_J = top_J
        if num_blocks > GROUPS:
            best_J = _best_few(row_best, mark, top_J, PROGRAMS, GROUPS, SLOTS, KEPT, WAIT)
        block_J, page_J, place_J = _places(best_J, page_table + b * N)
        if num_blocks > KEPT * GROUPS:  # noqa: SIM102  # short contexts must not pay for the question below
            if _one_is_all_chosen(place_J, SLOTS, GROUPS, KEPT):
                if WAIT:
                    _wait_for_all(arrived, all_arrived)
                best_J = top_J
                for level in tl.static_range(LEVELS):
                    best_J = _narrowed(
                        best_J, keys + (t * G + g) * N, num_blocks, GROUPS, SLOTS, CUT, CUT ** (LEVELS - level - 1)
                    )  # fmt: skip
                block_J, page_J, place_J = _places(best_J, page_table + b * N)
        acc_HD = tl.zeros([HEADS, D], tl.float32)
        top_H = tl.full([HEADS], -1.0e30, tl.float32)
        sum_H = tl.zeros([HEADS], tl.float32)
        STEPS: tl.constexpr = S // KEYS
        for i in tl.range(part, TOP_K * STEPS, PARTS, num_stages=1 if PARTS == SLOTS * STEPS else 2):
            mine_J = place_J == i // STEPS
            n = tl.max(tl.where(mine_J, block_J, -1), 0)
            page = tl.max(tl.where(mine_J, page_J, 0), 0).to(tl.int64)
            offset = (i % STEPS) * KEYS
            num_seen = tl.where(n >= 0, position + 1 - n * S - offset, 0)
            k_ND = _keys_of(k + page * k_stride_p + offset * k_stride_s + g * D, k_stride_s, num_seen, KEYS, D)
            v_ND = _keys_of(v + page * v_stride_p + offset * v_stride_s + g * D, v_stride_s, num_seen, KEYS, D)
            dots = tl.dot(q_HD, tl.trans(k_ND), input_precision="ieee")
            dots = tl.where((tl.arange(0, KEYS) < num_seen)[None, :], dots, float("-inf"))
            acc_HD, top_H, sum_H = accumulate(dots, scale_log2, v_ND, acc_HD, top_H, sum_H)
        result = acc_HD / tl.where(sum_H > 0, sum_H, 1.0)[:, None]
        if PARTS == 1:
            out_row = out + (t * G * GROUP + g * GROUP + head) * D
            tl.store(out_row[:, None] + d[None, :], result.to(out.dtype.element_ty), mask=(head < GROUP)[:, None])
        else:
            _give(partial + (job * HEADS + head)[:, None] * D + d[None, :], result)
            log_H = tl.where(sum_H > 0, top_H + tl.log2(sum_H), -1.0e30)
            _give(logs + job * HEADS + head, log_H)
            _give(logs + (PROGRAMS + job) * HEADS + head, log_H)  # one for each half of `_merge`


@triton.jit
def _keys_of(cache, stride, num_seen, KEYS: tl.constexpr, D: tl.constexpr):
    key = tl.arange(0, KEYS)
    return tl.load(cache + key[:, None] * stride + tl.arange(0, D)[None, :], mask=(key < num_seen)[:, None], other=0.0)


@triton.jit
def _best_of_groups(best, mark, PROGRAMS: tl.constexpr, GROUPS: tl.constexpr, WAIT: tl.constexpr):
    """The best of each group: block n belongs to group n % GROUPS, and was scored by program n % PROGRAMS."""
    group = tl.arange(0, GROUPS)
    return _best_at(best + group, best + PROGRAMS - GROUPS + group, group >= 0, mark, WAIT)


@triton.jit
def _best_few(
    best, mark, best_J, PROGRAMS: tl.constexpr, GROUPS: tl.constexpr, SLOTS: tl.constexpr, KEPT: tl.constexpr,
    WAIT: tl.constexpr,
):  # fmt: skip
    """The KEPT best of each of the SLOTS best groups.

    Those of two programs, of which each has them in order, are the larger ones of the best of one and the worst of the
    other, and so on.
    """
    group_K = largest_blocks(best_J, SLOTS) % GROUPS
    slot = tl.arange(0, GROUPS)
    mine = (slot // KEPT)[:, None] == tl.arange(0, SLOTS)[None, :]
    group_J = tl.sum(tl.where(mine, group_K[None, :], 0), 1)
    place = slot % KEPT
    one = best + place * PROGRAMS + group_J
    other = best + (KEPT - 1 - place) * PROGRAMS + GROUPS + group_J
    used = slot < SLOTS * KEPT
    few_J = _best_at(one, one if PROGRAMS == GROUPS else other, used, mark, WAIT)
    nobody_J = sort_key(tl.full([GROUPS], float("-inf"), tl.float32), slot + KEPT * PROGRAMS + NOWHERE)
    return tl.where(used, few_J, nobody_J)


@triton.jit
def _best_at(one, other, used, mark, WAIT: tl.constexpr):
    """The larger keys of two places each, once both bear the launch's mark; keys without it."""
    a = tl.load(one, mask=used, other=mark, volatile=True)
    b = tl.load(other, mask=used, other=mark, volatile=True)
    if WAIT:
        while _any((((a ^ mark) | (b ^ mark)) >> 31 & 1).to(tl.int32)):
            a = tl.load(one, mask=used, other=mark, volatile=True)
            b = tl.load(other, mask=used, other=mark, volatile=True)
    return tl.maximum(a ^ mark, b ^ mark)


@triton.jit
def _places(best_J, page_table):
    """Of each key: its block, -1 if it is of none; the block's page; and its place in the order, 0 for the best."""
    block_J = tl.where(rank_of(best_J) > float("-inf"), block_of(best_J), -1)
    page_J = tl.load(page_table + block_J, mask=block_J >= 0, other=0)  # comes while places are counted
    return block_J, page_J, num_larger(best_J)


@triton.jit
def _one_is_all_chosen(place_J, SLOTS: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr):
    """Whether all that is kept of one group is among the SLOTS best: the group may hold more of these."""
    chosen_J = (place_J < SLOTS).to(tl.int32)
    return tl.max(tl.sum(tl.reshape(chosen_J, [GROUPS // KEPT, KEPT]), 1), 0) == KEPT


@triton.jit
def _narrowed(
    best_J, keys, num_blocks, GROUPS: tl.constexpr, SLOTS: tl.constexpr, CUT: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """From the best of groups of CUT * WIDTH blocks to the best of groups of WIDTH blocks, among them the SLOTS best.

    The SLOTS best blocks lie in the SLOTS groups whose best are best; each of these is cut into CUT groups.
    """
    # Where no block is so deep that it lies in a second part, all first parts are what their groups were.
    if num_blocks > WIDTH * GROUPS:
        block_K = largest_blocks(best_J, SLOTS)
        first_K = block_K // GROUPS // (CUT * WIDTH) * (CUT * WIDTH) * GROUPS + block_K % GROUPS
        part = tl.arange(0, GROUPS)
        mine = (part // CUT)[:, None] == tl.arange(0, SLOTS)[None, :]
        n = tl.sum(tl.where(mine, first_K[None, :], 0), 1) + (part % CUT) * (WIDTH * GROUPS)
        block_JW = n[:, None] + (tl.arange(0, WIDTH) * GROUPS)[None, :]
        hidden_JW = sort_key(tl.full([GROUPS, WIDTH], float("-inf"), tl.float32), block_JW)
        best_J = tl.max(tl.load(keys + block_JW, mask=block_JW < num_blocks, other=hidden_JW), 1)
    return best_J


@triton.jit
def _merge(
    out, partial, logs, query_starts, job, MAX_QUERIES,
    PROGRAMS: tl.constexpr, G: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr,
    PARTS: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """Half of the output of one row and head: the mean of its parts' results, weighted by their sums of weights."""
    HALF: tl.constexpr = D // 2
    half, head, row = job % 2, job // 2 % GROUP, job // (2 * GROUP)
    g, query, b = row % G, row // G % MAX_QUERIES, row // (G * MAX_QUERIES)
    first_row = tl.load(query_starts + b)
    if query < tl.load(query_starts + b + 1) - first_row:
        d = half * HALF + tl.arange(0, HALF)
        at = (row * PARTS + tl.arange(0, PARTS)) * HEADS + head
        log_W = _take(logs + half * (PROGRAMS * HEADS) + at, WAIT)
        part_WD = _take(partial + at[:, None] * D + d[None, :], WAIT)
        share_W = tl.exp2(log_W - tl.max(log_W, 0))
        result_D = tl.sum(part_WD * (share_W / tl.sum(share_W, 0))[:, None], 0)
        out_row = out + ((first_row + query).to(tl.int64) * G * GROUP + g * GROUP + head) * D
        tl.store(out_row + d, result_D.to(out.dtype.element_ty))


@triton.jit
def _give(slots, value):
    """Put float32 numbers where `_take` waits for them. That takes half the time of waiting for all programs."""
    number = tl.where(value == value, value, float("nan"))  # the one NaN that does not mean "empty"
    tl.store(slots, number.to(tl.int32, bitcast=True))


@triton.jit
def _take(slots, WAIT: tl.constexpr):
    """Wait until no slot is empty, and leave all empty for the next launch."""
    bits = tl.load(slots, volatile=True)
    if WAIT:
        while _any((bits == -1).to(tl.int32)):
            bits = tl.load(slots, volatile=True)
    tl.store(slots, bits * 0 - 1)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _any(flags):
    """Whether one of the flags, 0 or 1, is set for any thread.

    With fewer flags than threads several threads hold the same flag, and may have read it at different times: all of
    them are asked before flags are put together.
    """
    if flags.numel < NUM_THREADS:
        return tl.max(_of_all_threads(flags), None) > 0
    return _of_all_threads(tl.max(flags, None)) > 0


@triton.jit
def _of_all_threads(flags):
    """1 where the flag of any thread is set; waits for all threads."""
    return tl.inline_asm_elementwise(
        """{
        .reg .pred mine, any;
        setp.ne.s32 mine, $1, 0;
        barrier.cta.red.or.pred any, 0, mine;
        selp.b32 $0, 1, 0, any;
        }""",
        "=r,r", [flags], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
