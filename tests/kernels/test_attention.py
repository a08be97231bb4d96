"""Attention and selection against their definitions, written out key by key in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from m3_kernels.batch import AttentionBatch
from m3_kernels.block_topk import block_topk
from m3_kernels.dense_attention import dense_attention
from m3_kernels.index_scores import index_scores
from m3_kernels.msa_decode import msa_decode
from m3_kernels.sparse_prefill import sparse_prefill

Case = Callable[[torch.Generator], Any]


def cached(cache: Tensor, batch: AttentionBatch, b: int) -> Tensor:
    S = batch.page_size
    return torch.stack([cache[batch.pages[b][j // S], j % S] for j in range(batch.lengths[b])]).double()


def rows(batch: AttentionBatch) -> list[tuple[int, int, int]]:
    """(row, sequence, position) of every new token."""
    out, row = [], 0
    for b, (count, length) in enumerate(zip(batch.query_counts, batch.lengths, strict=True)):
        for i in range(count):
            out.append((row, b, length - count + i))
            row += 1
    return out


def by_definition(
    q: Tensor, k: Tensor, v: Tensor, batch: AttentionBatch, scale: float, blocks: Tensor | None
) -> Tensor:
    out = torch.empty(q.shape, dtype=torch.float64)
    H, G = q.shape[1], k.shape[2]
    for row, b, position in rows(batch):
        keys, values = cached(k, batch, b), cached(v, batch, b)
        for h in range(H):
            g = h // (H // G)
            allowed = range(position + 1)
            if blocks is not None:
                chosen = set(blocks[row, g].tolist()) - {-1}
                allowed = [j for j in allowed if j // batch.page_size in chosen]  # type: ignore[assignment]
            scores = keys[list(allowed), g] @ q[row, h].double() * scale
            out[row, h] = scores.softmax(0) @ values[list(allowed), g]
    return out


def test_dense(dense_attention_case: Case, generator: torch.Generator) -> None:
    (q, k, v, batch), kwargs = dense_attention_case(generator)
    expected = by_definition(q, k, v, batch, kwargs["scale"], None)
    torch.testing.assert_close(dense_attention(q, k, v, batch, **kwargs).double(), expected, atol=1e-5, rtol=1e-5)


def test_prefill(sparse_prefill_case: Case, generator: torch.Generator) -> None:
    (q, k, v, blocks, batch), kwargs = sparse_prefill_case(generator)
    expected = by_definition(q, k, v, batch, kwargs["scale"], blocks)
    torch.testing.assert_close(
        sparse_prefill(q, k, v, blocks, batch, **kwargs).double(), expected, atol=1e-5, rtol=1e-5
    )


def test_decode_attends_to_what_the_index_branch_chooses(msa_decode_case: Case, generator: torch.Generator) -> None:
    (q, index_q, index_k, k, v, batch), kwargs = msa_decode_case(generator)
    forced = {key: n for key, n in kwargs.items() if key != "scale"}
    blocks = block_topk(index_scores(index_q, index_k, batch), batch.positions_T, block_size=batch.page_size, **forced)
    expected = by_definition(q, k, v, batch, kwargs["scale"], blocks)
    got = msa_decode(q, index_q, index_k, k, v, batch, **kwargs)
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attend", [dense_attention, sparse_prefill])
def test_sixteen_bit_inputs_are_summed_in_float32(
    attend: Any, cases: dict[str, dict[str, Case]], generator: torch.Generator
) -> None:
    args, kwargs = cases[attend.name]["forks, heads (6, 2)"](generator)
    half = [a.bfloat16() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
    exact = [a.float() if isinstance(a, Tensor) and a.is_floating_point() else a for a in half]
    got = attend(*half, **kwargs)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, attend(*exact, **kwargs).bfloat16(), atol=0, rtol=0.01)


def test_scores_are_maxima_over_the_visible_keys_of_a_block(
    index_scores_case: Case, generator: torch.Generator
) -> None:
    (q, k, batch), _ = index_scores_case(generator)
    got = index_scores(q, k, batch)
    expected = torch.full(got.shape, float("-inf"), dtype=torch.float64)
    for row, b, position in rows(batch):
        scores = q[row].double() @ cached(k, batch, b)[: position + 1].T
        for n in range(position // batch.page_size + 1):
            expected[row, :, n] = scores[:, n * batch.page_size : (n + 1) * batch.page_size].amax(-1)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=1e-5)


def test_selection_is_exact(block_topk_case: Case, generator: torch.Generator) -> None:
    """Against a sort of Python tuples: forced first, then the higher score, then the lower block."""
    (scores, positions), kwargs = block_topk_case(generator)
    got = block_topk(scores, positions, **kwargs)
    assert got.dtype == torch.int32
    assert got.shape == (*scores.shape[:2], kwargs["top_k"])
    for row, position in enumerate(positions.tolist()):
        own = position // kwargs["block_size"]
        for g in range(scores.shape[1]):
            forced = [n for n in range(own + 1) if n > own - kwargs["local_blocks"] or n < kwargs["init_blocks"]]
            ranking = sorted(range(own + 1), key=lambda n: (n not in forced, -scores[row, g, n].item(), n))
            chosen = got[row, g].tolist()
            valid = [n for n in chosen if n >= 0]
            assert chosen == valid + [-1] * (kwargs["top_k"] - len(valid))
            assert sorted(valid) == sorted(ranking[: kwargs["top_k"]])


def test_nan_scores_rank_last_but_stay_visible() -> None:
    scores = torch.tensor([[[float("nan"), 1.0, float("nan"), 0.0, 2.0]]])
    got = block_topk(scores, torch.tensor([70]), top_k=4, block_size=16)
    assert set(got[0, 0].tolist()) == {4, 1, 3, 0}


def test_more_forced_blocks_than_chosen_are_refused() -> None:
    with pytest.raises(ValueError, match="2 initial and 3 local blocks are forced, but only 4"):
        block_topk(torch.zeros(1, 1, 9), torch.tensor([0]), top_k=4, block_size=16, init_blocks=2, local_blocks=3)


@pytest.mark.parametrize("attend", [dense_attention, sparse_prefill])
def test_uneven_heads_are_refused(attend: Any, cases: dict[str, dict[str, Case]], generator: torch.Generator) -> None:
    args, kwargs = cases[attend.name]["one token, heads (4, 2)"](generator)
    with pytest.raises(ValueError, match="3 query heads cannot share 2 key heads"):
        attend(args[0][:, :3], *args[1:], **kwargs)


def test_decode_refuses_prompts(cases: dict[str, dict[str, Case]], generator: torch.Generator) -> None:
    (q, k, v, _, batch), _ = cases["sparse_prefill"]["a prompt, heads (4, 2)"](generator)
    with pytest.raises(ValueError, match="takes 16 new tokens a sequence, got 50"):
        msa_decode(q, q[:, :2], k[:, :, 0], k, v, batch, scale=1.0, top_k=2)
    with pytest.raises(ValueError, match="50 queries of 2 key heads, but index queries"):
        msa_decode(q, q[:, :3], k[:, :, 0], k, v, batch, scale=1.0, top_k=2)
