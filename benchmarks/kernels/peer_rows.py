"""Rows of the table against the peer that users have today, both on the same tensors in the same run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.kernels import attention_rows as ours
from benchmarks.kernels.data import Layer, Shape, random_selection, real_like_selection
from benchmarks.kernels.peer import Peer
from benchmarks.kernels.rows import Row, relative_error
from benchmarks.kernels.timing import Time, cold, in_graph

CHAIN_GATES = {8: 2.3, 32: 1.9, 128: 1.6, 1024: 1.5}
"""Times the peer's speed, by thousands of tokens."""
DECODE_GATES = {8: 1.4, 128: 1.4, 1024: 1.2}
Run = Callable[[], object]


def peer_prefill_rows(peer: Peer, shape: Shape, length: int, device: torch.device, dtype: torch.dtype) -> list[Row]:
    """A chunk of queries at the end of a context."""
    layer = Layer.make(shape, length, min(shape.chunk, length), device=device, dtype=dtype)
    scale = shape.D**-0.5
    theirs = peer.prefill(layer, shape, scale)
    our_scores, their_scores = ours._score(layer), theirs.score()
    visible_N = our_scores.shape[2]
    score_error = relative_error(
        *(_finite(s, our_scores) for s in (their_scores[..., :visible_N].transpose(0, 1), our_scores))
    )
    steps: list[tuple[str, Run, Run, float | None]] = [
        ("index scores", partial(ours._score, layer), theirs.score, score_error),
        ("top-k", partial(ours._select, layer, shape, our_scores), partial(theirs.select, their_scores), None),
    ]
    for name, choose in (("real-like", real_like_selection), ("random", random_selection)):
        blocks = choose(layer.batch.positions_T, shape)
        swapped = blocks.transpose(0, 1).contiguous()
        error = relative_error(ours._attend(layer, blocks, scale), theirs.attend(swapped))
        steps.append(
            (f"attend, {name}", partial(ours._attend, layer, blocks, scale), partial(theirs.attend, swapped), error)
        )
    rows = [_row(name, length, cold(our), cold(their), error) for name, our, their, error in steps]
    real_like = [row for row in rows if "random" not in row.name]
    chain = [Time(sum(times), 0.0) for times in zip(*((r.time.ms, r.against or 0.0) for r in real_like), strict=True)]
    whole = _row("MSA chain, real-like", length, chain[0], chain[1], None)
    return [*rows, dataclasses.replace(whole, at_least=CHAIN_GATES.get(length // 1024), note="sum of its three steps")]


def peer_decode_rows(
    peer: Peer, shape: Shape, length: int, capacity: int, device: torch.device, dtype: torch.dtype
) -> list[Row]:
    """One new token, both in graphs captured for a context of `capacity` tokens."""
    scale = shape.D**-0.5
    layers = ours.decode_layers(shape, length, capacity, device, dtype)
    theirs = [peer.decode(layer, shape, scale, capacity) for layer in layers]
    error = relative_error(ours._decode(layers[0], shape, scale), theirs[0].chain())
    our_time = in_graph([partial(ours._decode, layer, shape, scale) for layer in layers])
    their_time = in_graph([t.chain for t in theirs])
    row = _row("decode chain", length, our_time, their_time, error)
    return [dataclasses.replace(row, at_least=DECODE_GATES.get(length // 1024))]


def _row(name: str, length: int, our: Time, their: Time, error: float | None) -> Row:
    return Row(
        f"vs vllm: {name}",
        length,
        our,
        value=their.ms / our.ms,
        unit="x",
        against=their.ms,
        at_least=1.0,
        error=error,
    )


def _finite(scores: Tensor, like: Tensor) -> Tensor:
    """The scores of blocks that a query sees; what the others hold is nobody's business."""
    return scores[like > float("-inf")].float()
