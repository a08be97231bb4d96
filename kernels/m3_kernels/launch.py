"""What every kernel's wrapper checks and sets before a launch."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

new_stream: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
"""Makes a stream of a device. torch has no types for it, so they stand here once."""


def check_same_device(**tensors: Tensor) -> None:
    """Errors: ValueError naming the tensors if they do not all lie on one device."""
    if len({t.device for t in tensors.values()}) > 1:
        places = ", ".join(f"{name} on {t.device}" for name, t in tensors.items())
        raise ValueError(f"all tensors must lie on one device: {places}")


def check_cache(name: str, cache: Tensor, like: Tensor) -> None:
    """Errors: ValueError if a paged cache is not contiguous within a page or of another dtype than the queries."""
    if cache.dtype != like.dtype:
        raise ValueError(f"{name} is {cache.dtype} and the queries are {like.dtype}: they must be of one dtype")
    if not cache[0].is_contiguous():
        raise ValueError(f"the pages of {name} must be contiguous, got strides {cache.stride()}")


def check_power_of_two(**sizes: int) -> None:
    """Errors: ValueError naming the size that a tile cannot have."""
    for name, size in sizes.items():
        if size < 16 or size & (size - 1):
            raise ValueError(f"{name} must be a power of two of at least 16, got {size}")


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device: make it the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def check_attention(
    q_THD: Tensor, k_PSGD: Tensor, v_PSGD: Tensor, page_table_BN: Tensor, blocks_TGK: Tensor | None = None
) -> None:
    """What every attention kernel needs of its tensors.

    Errors: ValueError for devices, dtypes, strides or sizes that do not fit together or into tiles.
    """
    check_same_device(q=q_THD, k=k_PSGD, v=v_PSGD, page_table=page_table_BN)
    check_cache("the key cache", k_PSGD, like=q_THD)
    check_cache("the value cache", v_PSGD, like=q_THD)
    H, G = q_THD.shape[1], k_PSGD.shape[2]
    if H % G:
        raise ValueError(f"{H} query heads cannot share {G} key heads evenly")
    check_power_of_two(page_size=k_PSGD.shape[1], head_dim=q_THD.shape[2])
    if q_THD.stride(2) != 1:
        raise ValueError(f"the last axis of q must be contiguous, got strides {q_THD.stride()}")
    if blocks_TGK is not None:
        check_same_device(q=q_THD, blocks=blocks_TGK)
        if not blocks_TGK.is_contiguous() or blocks_TGK.dtype != torch.int32:
            raise ValueError(f"block lists must be contiguous int32, got {blocks_TGK.dtype} {blocks_TGK.stride()}")
