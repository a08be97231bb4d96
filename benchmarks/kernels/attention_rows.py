"""Rows of the table about attention: scores, selection, attending, and the chain of them."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
from torch import Tensor

from benchmarks.kernels.baselines import dense_decode, dense_prefill
from benchmarks.kernels.data import Layer, Shape, random_selection, real_like_selection
from benchmarks.kernels.rows import Ceilings, Row, relative_error
from benchmarks.kernels.timing import Time, cold, in_graph
from m3_kernels.batch import AttentionBatch
from m3_kernels.block_topk.kernel import block_topk
from m3_kernels.dense_attention.kernel import dense_attention
from m3_kernels.index_scores.kernel import index_scores
from m3_kernels.msa_decode.kernel import msa_decode
from m3_kernels.sparse_prefill.kernel import sparse_prefill

CHAIN_GATES = {8: 1.1, 32: 5.0, 128: 11.0, 512: 17.0, 1024: 20.0}
"""Whole MSA attention of a layer against the best SDPA, by thousands of tokens."""
DECODE_GATES_US = {8: 11.0, 128: 18.0, 1024: 78.0}
L2_BYTES = 50e6
SAMPLES = 64
"""Rows that are compared with a reference."""


def prefill_rows(shape: Shape, length: int, ceilings: Ceilings, device: torch.device, dtype: torch.dtype) -> list[Row]:
    """A chunk of queries at the end of a context."""
    layer = Layer.make(shape, length, min(shape.chunk, length), device=device, dtype=dtype)
    positions_T, T, scale = layer.batch.positions_T, len(layer.q_THD), shape.D**-0.5
    at_1m = length >= 1 << 20
    scores = _score(layer)
    blocks = _select(layer, shape, scores)

    score_time = cold(partial(_score, layer))
    pairs = int(positions_T.sum()) + T
    tflops = 2 * pairs * shape.R * shape.D / score_time.ms / 1e9
    topk_time = cold(partial(_select, layer, shape, scores))
    rows = [
        Row(
            "index scores",
            length,
            score_time,
            value=tflops,
            unit="TFLOP/s",
            against=ceilings.matmul_tflops,
            at_least=550.0 if at_1m else None,
            error=relative_error(*_sampled_scores(layer, scores)),
            flops=2 * pairs * shape.R * shape.D,
            num_bytes=_bytes(layer.index_q_TRD, layer.index_k_PSD, scores),
        ),
        Row(
            "top-k",
            length,
            topk_time,
            value=topk_time.ms,
            unit="ms",
            against=scores.numel() * 4 / ceilings.copy_tbs / 1e9,
            at_most=0.75 if at_1m else None,
            error=_wrong_selections(scores, blocks, positions_T, shape),
            num_bytes=_bytes(scores, blocks),
        ),
    ]
    for name, select, most in (("real-like", real_like_selection, 1.6), ("random", random_selection, 4.0)):
        chosen = select(positions_T, shape)
        time = cold(partial(_attend, layer, chosen, scale))
        flops = 4 * T * shape.H * shape.D * shape.K * shape.S
        error = relative_error(*_sampled_attention(layer, _attend(layer, chosen, scale), chosen, scale))
        row = Row(f"attend, {name}", length, time, value=time.ms, unit="ms", at_most=most, error=error)
        row.note, row.flops = f"{flops / time.ms / 1e9:.0f} useful TFLOP/s", flops
        row.num_bytes = _bytes(layer.q_THD, layer.q_THD, layer.k_PSGD, layer.v_PSGD)
        rows.append(row)
    chosen = real_like_selection(positions_T, shape)
    anything = cold(lambda: _attend(dataclasses.replace(layer, normed=False), chosen, scale))
    rows.append(Row("attend, queries not normed", length, anything, value=anything.ms, unit="ms"))
    dense = dense_prefill(layer, scale)
    best = min(dense, key=lambda n: dense[n].ms)
    real_like_ms = score_time.ms + topk_time.ms + rows[2].time.ms
    own = cold(lambda: dense_attention(layer.q_THD, layer.k_PSGD, layer.v_PSGD, layer.batch, scale=scale))
    return [
        *rows,
        Row(
            "MSA chain, real-like",
            length,
            Time(real_like_ms, 0.0),
            value=dense[best].ms / real_like_ms,
            unit=f"x {best}",
            against=dense[best].ms,
            at_least=CHAIN_GATES.get(length // 1024),
            note="sum of its three steps",
        ),
        Row(
            "MSA chain, random",
            length,
            chain := cold(partial(_chain, layer, shape, scale)),
            value=dense[best].ms / chain.ms,
            unit=f"x {best}",
            against=dense[best].ms,
            note="in one go, its own selection of random scores",
        ),
        Row("dense", length, own, value=dense[best].ms / own.ms, unit=f"x {best}", against=dense[best].ms),
    ]


def _score(layer: Layer) -> Tensor:
    return index_scores(layer.index_q_TRD, layer.index_k_PSD, layer.batch)


def _select(layer: Layer, shape: Shape, scores: Tensor) -> Tensor:
    return block_topk(scores, layer.batch.positions_T, top_k=shape.K, block_size=shape.S)


def _attend(layer: Layer, blocks: Tensor, scale: float) -> Tensor:
    return sparse_prefill(
        layer.q_THD, layer.k_PSGD, layer.v_PSGD, blocks, layer.batch, scale=scale, max_product=layer.max_product
    )


def _chain(layer: Layer, shape: Shape, scale: float) -> Tensor:
    return _attend(layer, _select(layer, shape, _score(layer)), scale)


def decode_rows(shape: Shape, length: int, capacity: int, device: torch.device, dtype: torch.dtype) -> list[Row]:
    """One new token, in a graph captured for a context of `capacity` tokens, over layers that the L2 cannot hold."""
    layers = decode_layers(shape, length, capacity, device, dtype)
    scale = shape.D**-0.5
    chain = in_graph([partial(_decode, layer, shape, scale) for layer in layers])
    dense = dense_decode(layers, scale, in_graph)
    best = min(dense, key=lambda n: dense[n].ms)
    first = layers[0]
    blocks = _select(first, shape, _score(first))
    return [
        Row(
            "decode chain",
            length,
            chain,
            value=1000 * chain.ms,
            unit="us",
            against=1000 * dense[best].ms,
            at_most=DECODE_GATES_US.get(length // 1024),
            error=relative_error(*_sampled_attention(first, _decode(first, shape, scale), blocks, scale)),
            flops=2 * length * shape.R * shape.D + 4 * shape.H * shape.D * shape.K * shape.S,
            num_bytes=_decode_bytes(shape, length),
            note=f"{dense[best].ms / chain.ms:.1f}x {best}",
        )
    ]


def _decode(layer: Layer, shape: Shape, scale: float) -> Tensor:
    return msa_decode(
        layer.q_THD,
        layer.index_q_TRD,
        layer.index_k_PSD,
        layer.k_PSGD,
        layer.v_PSGD,
        layer.batch,
        scale=scale,
        top_k=shape.K,
    )


def decode_layers(shape: Shape, length: int, capacity: int, device: torch.device, dtype: torch.dtype) -> list[Layer]:
    """Layers with caches of their own, more than the L2 holds, and one batch, planned for `capacity` tokens."""
    count = max(4, min(24, int(4 * L2_BYTES / _decode_bytes(shape, length)))) if device.type == "cuda" else 2
    layers = [Layer.make(shape, length, 1, device=device, dtype=dtype, seed=i) for i in range(count)]
    batch = _for_capacity(layers[0], capacity, shape.S).batch
    return [dataclasses.replace(layer, batch=batch) for layer in layers]


def _decode_bytes(shape: Shape, length: int) -> int:
    return length * shape.D * 2 + 2 * shape.K * shape.S * shape.G * shape.D * 2


def _for_capacity(layer: Layer, capacity: int, page_size: int) -> Layer:
    """The same layer with a page table as wide as `capacity` needs, as a captured graph has it."""
    table = layer.batch.page_table_BN
    wide = table.new_full((1, max(table.shape[1], capacity // page_size)), -1)
    wide[:, : table.shape[1]] = table
    batch: AttentionBatch = dataclasses.replace(layer.batch, page_table_BN=wide)
    return dataclasses.replace(layer, batch=batch)


def _bytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _samples(layer: Layer) -> Tensor:
    return torch.linspace(0, len(layer.q_THD) - 1, SAMPLES).long().unique()


def _sampled_scores(layer: Layer, scores: Tensor) -> tuple[Tensor, Tensor]:
    """(kernel's, float32 reference's) scores of visible blocks of some rows."""
    batch = layer.batch
    pages = torch.tensor(batch.pages[0], device=scores.device)
    keys_LD = layer.index_k_PSD[pages].flatten(0, 1)[: batch.lengths[0]].float()
    got, expected = [], []
    for t in _samples(layer).tolist():
        position = int(batch.positions_T[t])
        dots = layer.index_q_TRD[t].float() @ keys_LD[: position + 1].T
        whole = torch.nn.functional.pad(dots, (0, -len(dots[0]) % batch.page_size), value=float("-inf"))
        expected.append(whole.unflatten(1, (-1, batch.page_size)).amax(-1).flatten())
        got.append(scores[t, :, : position // batch.page_size + 1].flatten())
    return torch.cat(got), torch.cat(expected)


def _wrong_selections(scores: Tensor, blocks: Tensor, positions_T: Tensor, shape: Shape) -> float:
    """How many rows chose blocks whose scores are not the best ones: 0 is exact."""
    own_T = positions_T // shape.S
    wrong = 0
    for low in range(0, len(scores), 1024):
        rows = slice(low, low + 1024)
        n = torch.arange(scores.shape[2], device=scores.device)
        ranked = scores[rows].masked_fill(n > own_T[rows, None, None], float("-inf"))
        ranked.scatter_(2, own_T[rows, None, None].expand(-1, scores.shape[1], 1), float("inf"))
        best = ranked.topk(min(shape.K, scores.shape[2]), sorted=True).values
        chosen = blocks[rows].long()
        values = ranked.gather(2, chosen.clamp(min=0)).masked_fill(chosen < 0, float("-inf"))
        values = values.sort(-1, descending=True).values[..., : best.shape[2]]
        wrong += int((values != best).any(-1).sum())
    return float(wrong)


def _sampled_attention(layer: Layer, out: Tensor, blocks: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """(kernel's, float32 reference's) outputs of some rows."""
    batch, G = layer.batch, layer.k_PSGD.shape[2]
    pages = torch.tensor(batch.pages[0], device=out.device)
    got, expected = [], []
    for t in _samples(layer).tolist():
        position = int(batch.positions_T[t])
        for g in range(G):
            chosen = blocks[t, g][blocks[t, g] >= 0].long()
            keys = layer.k_PSGD[pages[chosen], :, g].float().flatten(0, 1)
            values = layer.v_PSGD[pages[chosen], :, g].float().flatten(0, 1)
            at = (chosen[:, None] * batch.page_size + torch.arange(batch.page_size, device=out.device)).flatten()
            queries = layer.q_THD[t].unflatten(0, (G, -1))[g].float()
            weights = (queries @ keys.T * scale).masked_fill(at > position, float("-inf")).softmax(-1)
            expected.append(weights @ values)
            got.append(out[t].unflatten(0, (G, -1))[g])
    return torch.cat(got), torch.cat(expected)
