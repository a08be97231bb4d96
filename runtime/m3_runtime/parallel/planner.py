"""What fits on the GPUs of a machine: over how many of them, in which dtype, with which context.

Arithmetic over the configuration and the free memory; nothing is loaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from m3_model.config import M3Config
from m3_model.share import Share
from m3_model.sizes import cache_bytes_per_token, share_parameters, weight_bytes

STEP_BYTES = 2 * 2**30
"""Kept free on each GPU for the work space of a step and for the libraries: an estimate."""

ELEMENT_BYTES = 2
"""What is not kept in MXFP8, the cache too, is bfloat16."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A model over `ranks` GPUs. Bytes are those of the fullest GPU."""

    ranks: int
    dtype: str
    """Of the layers' matrices."""
    weights_bytes: int
    cache_bytes_per_token: int
    free_bytes: int
    """Of the GPU that has least."""
    context_tokens: int
    """The longest context whose cache fits beside the weights; 0 if it does not fit."""


def plans(config: M3Config, free_bytes: Sequence[int], *, mxfp8: bool = False) -> list[Plan]:
    """One plan for each number of GPUs that the model can be split among, the first ones of `free_bytes`.

    `mxfp8`: the checkpoint is stored so, which several GPUs keep and one GPU dequantises.
    """
    found = []
    for ranks in range(1, len(free_bytes) + 1):
        kept = mxfp8 and ranks > 1
        try:
            shares = [Share.of(config, rank, ranks, mxfp8=kept) for rank in range(ranks)]
        except ValueError:
            continue
        weights = max(weight_bytes(share_parameters(config, share, mxfp8=kept), ELEMENT_BYTES) for share in shares)
        per_token = max(cache_bytes_per_token(share.local(config), ELEMENT_BYTES) for share in shares)
        free = min(free_bytes[:ranks])
        pages = max(0, free - weights - STEP_BYTES) // (per_token * config.block_size)
        found.append(
            Plan(
                ranks=ranks,
                dtype="mxfp8" if kept else "bfloat16",
                weights_bytes=weights,
                cache_bytes_per_token=per_token,
                free_bytes=free,
                context_tokens=min(pages * config.block_size, config.max_positions),
            )
        )
    return found
