"""From logits to a token, one row at a time, so that a sequence's choices never depend on who shares its batch."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch

from m3_runtime.request import Matcher, SamplingParams, TokenLogprob


def mask_logits(logits_RV: torch.Tensor, matchers: Sequence[Matcher | None], vocab_size: int) -> torch.Tensor:
    """Logits of the assigned ids, with -inf where a row's grammar forbids the token."""
    logits_RV = logits_RV[:, :vocab_size]
    if all(matcher is None for matcher in matchers):
        return logits_RV
    num_rows = len(logits_RV)
    bits_RW = np.full((num_rows, -(-vocab_size // 32)), -1, dtype=np.int32)
    for row, matcher in enumerate(matchers):
        if matcher is not None:
            matcher.fill_mask(bits_RW[row])
    forbidden_RV = np.unpackbits(~bits_RW.view(np.uint8), axis=1, bitorder="little", count=vocab_size).view(np.bool_)
    return logits_RV.masked_fill(torch.from_numpy(forbidden_RV).to(logits_RV.device), float("-inf"))


def sample(logits_V: torch.Tensor, params: SamplingParams, generator: random.Random) -> int:
    """One token id from a row of masked logits (float32).

    Greedy takes the lowest id among equals. Otherwise one uniform number of `generator` picks from the distribution
    after temperature, then top-k, then top-p (the smallest set whose sum reaches top_p, at least one token).
    """
    if params.temperature == 0:
        return int(torch.argmax(logits_V))
    keep = min(params.top_k, logits_V.numel()) if params.top_k else logits_V.numel()
    if params.top_k:
        values_K, ids_K = torch.topk(logits_V, keep)
    elif params.top_p < 1:
        values_K, ids_K = torch.sort(logits_V, descending=True, stable=True)
    else:  # the whole distribution needs no order, and sorting a vocabulary takes longer than the rest of the choice
        values_K, ids_K = logits_V, torch.arange(keep)
    # The draw is the host's, and with it all sums: a GPU would add up in another order.
    values_K, ids_K = values_K.cpu(), ids_K.cpu()
    probabilities_K = torch.softmax(values_K.double() / params.temperature, dim=0)
    cumulative_K = torch.cumsum(probabilities_K, dim=0)
    if params.top_p < 1:
        # The tokens before the one that crosses top_p, and that one.
        keep = min(int((cumulative_K < params.top_p).sum()) + 1, keep)
    total = float(cumulative_K[keep - 1])
    draw = generator.random() * total
    index = int(torch.searchsorted(cumulative_K[:keep], torch.tensor(draw, dtype=torch.float64), right=True))
    return int(ids_K[min(index, keep - 1)])


def logprob_of(logits_V: torch.Tensor, token_id: int, num_top: int) -> TokenLogprob:
    """The log-probability of a token, and of the `num_top` most likely ones, from a row of logits (float32)."""
    logprobs_V = torch.log_softmax(logits_V, dim=0)
    values_K, ids_K = torch.topk(logprobs_V, min(num_top, logprobs_V.numel()))
    top = tuple(zip(ids_K.tolist(), values_K.tolist(), strict=True))
    return TokenLogprob(token_id, float(logprobs_V[token_id]), top)
