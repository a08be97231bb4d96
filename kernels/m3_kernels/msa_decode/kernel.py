"""Attention of a few new tokens in Triton: every step of it in one launch.

At one token a step is so short that launches cost more than work. So one program a multiprocessor runs all steps, and
between two of them all programs wait for each other:

1. Score. Each program scores every n-th block and keeps the best of them.
2. Choose and attend. Each program works on a part of the keys of one row and key head. Which blocks are chosen it finds
   out by itself: the best of each group of blocks tell which groups can hold a chosen one at all, and so on in finer
   groups, until they are single blocks.
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
MIN_GROUPS = 64
"""Groups that are compared with each other: more take longer to compare, fewer are compared more often."""
WARPS, STAGES = 4, 9
_waiting: dict[tuple[torch.device, int, int], tuple[Tensor, Tensor]] = {}


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
    groups = max(MIN_GROUPS, 2 * slots)
    together, programs = _programs(device, groups)
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
    best_TGP = torch.empty(T, G, programs, dtype=torch.int64, device=device)
    arrived, partial = _shared_memory(device, programs * heads * (D + 2))
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
                best_TGP,
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
                num_warps=WARPS,
                launch_cooperative_grid=together,
            )
    return out_THD


@functools.cache
def _programs(device: torch.device, groups: int) -> tuple[bool, int]:
    """Whether all programs of a launch can run at once, and how many there are: a power of two, at least `groups`."""
    if device.type != "cuda":
        return False, groups
    count = torch.cuda.get_device_properties(device).multi_processor_count
    return count >= groups, max(groups, min(MAX_PROGRAMS, 1 << (count.bit_length() - 1)))


def _shared_memory(device: torch.device, size: int) -> tuple[Tensor, Tensor]:
    """What programs tell each other through, one of each for a stream.

    A count of arrivals, never reset: int64 [1]. And partial results: int32 [size], all -1 between launches.
    Made at the first call, so that a captured graph neither makes nor clears them: run once before capturing.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    key = device, stream, size
    if key not in _waiting:
        arrived = torch.zeros(1, dtype=torch.int64, device=device)
        _waiting[key] = arrived, torch.full((size,), -1, dtype=torch.int32, device=device)
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
    PARTS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Steps FIRST to LAST of the three."""
    program = tl.program_id(0)
    logs = partial + PROGRAMS * HEADS * D
    if FIRST == 1:
        # Read before this program arrives, so nobody of this launch can have been counted twice.
        all_arrived = (tl.load(arrived) // PROGRAMS + 1) * PROGRAMS
        for b in range(B):
            _score(
                index_q, index_k, keys, best, query_starts, lengths, page_table + b * N, b, program,
                index_q_stride_t, index_q_stride_r, index_k_stride_p, N, init_blocks, local_blocks,
                ROWS, PROGRAMS, G, G_TILE, INDEX_D, S, STAGES,
            )  # fmt: skip
        if LAST >= 2:
            _wait_for_all(arrived, all_arrived)
    if (FIRST <= 2) & (LAST >= 2):
        for job in range(program, B * MAX_QUERIES * G * PARTS, PROGRAMS):
            _attend(
                q, k, v, out, keys, best, partial, logs, query_starts, lengths, page_table, job,
                q_stride_t, q_stride_h, k_stride_p, k_stride_s, v_stride_p, v_stride_s, N, scale_log2, MAX_QUERIES,
                PROGRAMS, GROUPS, G, GROUP, HEADS, D, S, TOP_K, SLOTS, CUT, LEVELS, KEYS, PARTS,
            )  # fmt: skip
    if (LAST >= 3) & (PARTS > 1):
        for job in range(program, B * MAX_QUERIES * G * GROUP * 2, PROGRAMS):
            _merge(
                out, partial, logs, query_starts, job, MAX_QUERIES, PROGRAMS, G, GROUP, HEADS, D, PARTS, FIRST < LAST
            )


@triton.jit
def _wait_for_all(arrived, all_arrived):
    """Return when every program has come here; what they had written by then can be read."""
    tl.debug_barrier()  # every thread has written its share before one of them reports it
    tl.atomic_add(arrived, 1, sem="release")
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
    index_q, index_k, keys, best, query_starts, lengths, page_table, b, program,
    q_stride_t, q_stride_r, k_stride_p, N, init_blocks, local_blocks,
    ROWS: tl.constexpr, PROGRAMS: tl.constexpr, G: tl.constexpr, G_TILE: tl.constexpr,
    D: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr,
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
    # Where a program has no block its best is one that cannot be chosen.
    best_M = sort_key(tl.full([ROWS], float("-inf"), tl.float32), row * 0 + share)
    for n in tl.range(share, num_blocks, PROGRAMS, num_stages=STAGES):
        page = tl.load(page_table + n).to(tl.int64)
        dots = tl.dot(tl.load(index_k + page * k_stride_p + k_tile), q_DM, input_precision="ieee")
        seen = key[:, None] <= (position - n * S)[None, :]
        score_M = tl.max(tl.where(seen, dots, float("-inf")), 0)
        key_M = sort_key(competing_rank(score_M, n, own + 1, own, init_blocks, local_blocks), row * 0 + n)
        tl.store(out + n, key_M, mask=valid)
        best_M = tl.maximum(best_M, key_M)
    tl.store(best + (t * G + head) * PROGRAMS + share, best_M, mask=valid)


@triton.jit
def _attend(
    q, k, v, out, keys, best, partial, logs, query_starts, lengths, page_table, job,
    q_stride_t, q_stride_h, k_stride_p, k_stride_s, v_stride_p, v_stride_s, N, scale_log2, MAX_QUERIES,
    PROGRAMS: tl.constexpr, GROUPS: tl.constexpr, G: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr,
    D: tl.constexpr, S: tl.constexpr, TOP_K: tl.constexpr, SLOTS: tl.constexpr, CUT: tl.constexpr,
    LEVELS: tl.constexpr, KEYS: tl.constexpr, PARTS: tl.constexpr,
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
        best_J = _best_of_groups(best + (t * G + g) * PROGRAMS, PROGRAMS, GROUPS)
        num_blocks = tl.cdiv(position + 1, S)
        for level in tl.static_range(LEVELS):
            best_J = _narrowed(
                best_J, keys + (t * G + g) * N, num_blocks, GROUPS, SLOTS, CUT, CUT ** (LEVELS - level - 1)
            )  # fmt: skip
        place_J = num_larger(best_J)
        block_J = tl.where(rank_of(best_J) > float("-inf"), block_of(best_J), -1)
        acc_HD = tl.zeros([HEADS, D], tl.float32)
        top_H = tl.full([HEADS], -1.0e30, tl.float32)
        sum_H = tl.zeros([HEADS], tl.float32)
        STEPS: tl.constexpr = S // KEYS
        for i in tl.range(part, TOP_K * STEPS, PARTS, num_stages=1 if PARTS == SLOTS * STEPS else 2):
            n = tl.max(tl.where(place_J == i // STEPS, block_J, -1), 0)
            offset = (i % STEPS) * KEYS
            page = tl.load(page_table + b * N + tl.maximum(n, 0)).to(tl.int64)
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
def _best_of_groups(best, PROGRAMS: tl.constexpr, GROUPS: tl.constexpr):
    """The best of each group: block n belongs to group n % GROUPS, and was scored by program n % PROGRAMS."""
    group = tl.arange(0, GROUPS)
    best_J = tl.load(best + group)
    for i in tl.static_range(1, PROGRAMS // GROUPS):
        best_J = tl.maximum(best_J, tl.load(best + i * GROUPS + group))
    return best_J


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
        while _any_thread(tl.max((bits == -1).to(tl.int32), None)) > 0:
            bits = tl.load(slots, volatile=True)
    tl.store(slots, bits * 0 - 1)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _any_thread(flag):
    """1 if the flag is set for any thread, which waits for all threads.

    Where threads hold the same numbers twice, they may have read them at different times.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .pred mine, any;
        setp.ne.s32 mine, $1, 0;
        barrier.cta.red.or.pred any, 0, mine;
        selp.b32 $0, 1, 0, any;
        }""",
        "=r,r", [flag], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
