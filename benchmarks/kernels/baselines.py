"""What kernels are compared with: the machine's ceilings, torch's dense attention, and torch's grouped products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.kernels.data import Layer
from benchmarks.kernels.timing import Time, cold
from m3_kernels.moe_experts.reference import swiglu


def matmul_tflops(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Rate of a square product of random numbers, in TFLOP/s."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / cold(lambda: a @ b, repeat_ms=400).ms / 1e9


def copy_tbs(device: torch.device, num_bytes: int) -> float:
    """Bytes read and written by a copy, in TB/s."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return 2 * num_bytes / cold(lambda: target.copy_(source)).ms / 1e9


def dense_prefill(layer: Layer, scale: float) -> dict[str, Time]:
    """SDPA flash and cuDNN for a chunk of queries on all keys: causal if the chunk is the whole context, else unmasked.

    Unmasked does a little more work than causal would; above four chunks that is less than an eighth.
    """
    q, k, v = layer.q_THD.transpose(0, 1)[None], layer.contiguous(layer.k_PSGD), layer.contiguous(layer.v_PSGD)
    return _sdpa(q, k, v, scale, causal=q.shape[2] == k.shape[2])


def dense_decode(
    layers: list[Layer], scale: float, timer: Callable[[list[Callable[[], object]]], Time]
) -> dict[str, Time]:
    """SDPA flash and cuDNN for one query a layer, by a timer of many layers."""
    tensors = [(x.q_THD.transpose(0, 1)[None], x.contiguous(x.k_PSGD), x.contiguous(x.v_PSGD)) for x in layers]
    found = {}
    for name, backend in _backends():

        def attend(q: Tensor, k: Tensor, v: Tensor, backend: SDPBackend = backend) -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)

        found[name] = timer([lambda t=t, attend=attend: attend(*t) for t in tensors])  # type: ignore[misc]
    return found


def _backends() -> list[tuple[str, SDPBackend]]:
    if not torch.cuda.is_available():
        return [("math", SDPBackend.MATH)]
    return [("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)]


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool) -> dict[str, Time]:
    found = {}
    for name, backend in _backends():
        with sdpa_kernel(backend):
            found[name] = cold(
                lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True)
            )
    return found


def grouped_mm_experts(
    x_TC: Tensor, w13_EXC: Tensor, w2_ECI: Tensor, ids_TK: Tensor, weights_TK: Tensor, *, alpha: float, limit: float
) -> Tensor:
    """Routed experts composed of torch's own operations around torch._grouped_mm."""
    T, K = ids_TK.shape
    flat = ids_TK.flatten()
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=len(w13_EXC)).cumsum(0).int()
    x = x_TC[order // K]
    hidden = swiglu(torch._grouped_mm(x, w13_EXC.transpose(1, 2), offs=ends), alpha=alpha, limit=limit)
    down = torch._grouped_mm(hidden.to(x.dtype), w2_ECI.transpose(1, 2), offs=ends)
    down = down * weights_TK.flatten()[order, None].to(x.dtype)
    return torch.empty_like(down).index_copy_(0, order, down).view(T, K, -1).sum(1)
