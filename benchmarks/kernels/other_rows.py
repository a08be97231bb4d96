"""Rows of the table about experts and the small steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.baselines import grouped_mm_experts
from benchmarks.kernels.data import Shape
from benchmarks.kernels.rows import Ceilings, Row, relative_error
from benchmarks.kernels.timing import Time, cold, in_graph
from m3_kernels.moe_experts import reference as moe_reference
from m3_kernels.moe_experts.kernel import moe_experts
from m3_kernels.norm_rope_insert import reference as heads_reference
from m3_kernels.norm_rope_insert.kernel import norm_rope_insert
from m3_kernels.rms_norm import reference as norm_reference
from m3_kernels.rms_norm.kernel import rms_norm

ACTIVATION = {"alpha": 1.702, "limit": 7.0}
MX_GATES: dict[str, dict[int | str, float]] = {"MXFP8": {1: 1.6, 512: 1.3, "chunk": 0.85}, "MXFP4": {}}
"""Least speed of the stored form over bf16, by tokens."""


def expert_rows(shape: Shape, ceilings: Ceilings, device: torch.device, dtype: torch.dtype) -> list[Row]:
    """One, a few, many tokens through their experts."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*sizes: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*sizes, device=device, dtype=dtype, generator=generator) * scale

    E, K, C, width = shape.experts, shape.experts_per_token, shape.hidden, shape.expert_width
    w13, w2 = normal(E, 2 * width, C, scale=C**-0.5), normal(E, C, width, scale=width**-0.5)
    powers = tuple(
        torch.randint(118, 122, (*w.shape[:2], w.shape[2] // 32), device=device, dtype=torch.uint8, generator=generator)
        for w in (w13, w2)
    )
    stored = {
        "MXFP8": tuple(w.to(torch.float8_e4m3fn) for w in (w13, w2)),
        "MXFP4": tuple(
            torch.randint(
                0, 256, (*w.shape[:2], w.shape[2] // 2), device=device, dtype=torch.uint8, generator=generator
            )
            for w in (w13, w2)
        ),
    }
    rows = []
    for tokens in sorted({1, 16, min(512, shape.chunk), shape.chunk}):
        x = normal(tokens, C)
        ids = torch.rand(tokens, E, device=device, generator=generator).topk(K).indices
        weights = torch.rand(tokens, K, device=device, generator=generator)
        arguments = (x, w13, w2, ids, weights)
        time = _experts_time(x, (w13, w2), ids, weights, generator)
        few = slice(0, min(tokens, 64))
        expected = moe_reference.moe_experts(x[few], w13, w2, ids[few], weights[few], **ACTIVATION)
        error = relative_error(moe_experts(*arguments, **ACTIVATION)[few], expected)
        flops = 6 * tokens * K * C * width
        num_bytes = 3 * C * width * w13.element_size() * len(ids.unique())
        bound_ms = max(flops / ceilings.matmul_tflops / 1e9, num_bytes / ceilings.copy_tbs / 1e9)
        gate = {"at_least": 0.6} if tokens == shape.chunk else {"at_least": 0.7} if tokens == 1 else {}
        note = f"{flops / time.ms / 1e9:.0f} TFLOP/s, {num_bytes / time.ms / 1e9:.2f} TB/s of weights"
        rows.append(
            Row("experts", tokens, time, bound_ms / time.ms, "of bound", bound_ms, error=error, note=note, **gate)
        )
        rows[-1].flops, rows[-1].num_bytes = flops, num_bytes
        for form, matrices in stored.items():
            mx_time = _experts_time(x, matrices, ids, weights, generator, scales=powers)
            ratio = time.ms / mx_time.ms
            at_least = MX_GATES[form].get("chunk" if tokens == shape.chunk else tokens)
            rows.append(Row(f"experts, {form} vs bf16", tokens, mx_time, ratio, "x", time.ms, at_least=at_least))
        if device.type == "cuda" and tokens > 16:
            theirs = cold(partial(grouped_mm_experts, *arguments, **ACTIVATION))
            at_least = 1.2 if tokens == shape.chunk else None
            rows.append(
                Row("experts vs grouped_mm", tokens, time, theirs.ms / time.ms, "x", theirs.ms, at_least=at_least)
            )
    return rows


def _experts_time(
    x: Tensor, matrices: tuple[Tensor, ...], ids: Tensor, weights: Tensor, generator: torch.Generator, **options: Any
) -> Time:
    """Of one layer. Decoding runs in a CUDA graph, and each layer finds other experts, out of the cache."""
    if len(x) > 16:
        return cold(partial(moe_experts, x, *matrices, ids, weights, **ACTIVATION, **options))
    E, count = len(matrices[0]), 12 if x.is_cuda else 1
    layers = [
        torch.rand(len(x), E, device=x.device, generator=generator).topk(ids.shape[1]).indices for _ in range(count)
    ]
    return in_graph([partial(moe_experts, x, *matrices, i, weights, **ACTIVATION, **options) for i in layers])


def small_rows(shape: Shape, ceilings: Ceilings, device: torch.device, dtype: torch.dtype) -> list[Row]:
    """Norm, rotation and insertion; residual and norm."""
    H, G, R, D = shape.H, shape.G, shape.R, shape.D
    rows = []
    for tokens in (shape.chunk, 1):
        heads = H + G + R + 1
        pages = -(-tokens // shape.S)
        projected = torch.randn(tokens, (heads + G) * D, device=device, dtype=dtype)
        norms = (torch.randn(heads, D, device=device, dtype=dtype),)
        angles = torch.randn(tokens, shape.pairs, device=device)
        slots = torch.randperm(pages * shape.S, device=device)[:tokens]
        caches = [torch.zeros(pages, shape.S, G, D, device=device, dtype=dtype) for _ in range(2)]
        index_cache = torch.zeros(pages, shape.S, D, device=device, dtype=dtype)
        args = (projected, norms, angles.cos(), angles.sin(), slots, *caches, index_cache)
        moved = 2 * projected.numel() * projected.element_size()
        rows += _against_eager(
            "norm, rope, insert", tokens, norm_rope_insert, heads_reference.norm_rope_insert, args,
            {"num_heads": H, "eps": 1e-6}, moved, ceilings,
        )  # fmt: skip
        x, residual = (torch.randn(tokens, shape.hidden, device=device, dtype=dtype) for _ in range(2))
        weight = torch.randn(shape.hidden, device=device, dtype=dtype)
        moved = 4 * x.numel() * x.element_size()
        rows += _against_eager(
            "residual, norm", tokens, rms_norm, norm_reference.rms_norm, (x, residual, weight), {"eps": 1e-6}, moved,
            ceilings,
        )  # fmt: skip
    return rows


def _against_eager(
    name: str, tokens: int, kernel: Callable[..., Any], eager: Callable[..., Any], args: tuple[Any, ...],
    kwargs: dict[str, Any], num_bytes: int, ceilings: Ceilings,
) -> list[Row]:  # fmt: skip
    time, theirs = cold(lambda: kernel(*args, **kwargs)), cold(lambda: eager(*args, **kwargs))
    error = relative_error(kernel(*args, **kwargs)[0], eager(*args, **kwargs)[0])
    share = num_bytes / time.ms / 1e9 / ceilings.copy_tbs
    many = tokens > 1
    own = Row(name, tokens, time, share, "of copy", ceilings.copy_tbs, at_least=0.75 if many else None, error=error)
    own.num_bytes = num_bytes
    ratio = Row(f"{name} vs eager", tokens, time, theirs.ms / time.ms, "x", theirs.ms, at_least=3.0 if many else None)
    return [own, ratio]
