"""Log-probabilities of given continuations on one shared prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from m3_runtime.config import EngineConfig
from m3_runtime.pages import PagePool
from m3_runtime.prefix_cache import PrefixCache
from m3_runtime.runner import Chunk, Runner
from m3_runtime.shared_prompt import SharedPrompt
from m3_runtime.visuals import Visual


def score(
    runner: Runner,
    pool: PagePool,
    prefix_cache: PrefixCache | None,
    config: EngineConfig,
    prompt: Sequence[int],
    continuations: Sequence[Sequence[int]],
    visuals: Sequence[Visual] = (),
) -> list[float]:
    """The sum of natural log-probabilities of each continuation's tokens, over the assigned vocabulary.

    The prompt is computed once; continuations run in batches of at most `max_rows` rows and about `prefill_chunk` new
    tokens. An empty continuation scores 0. Raises OutOfPages if one continuation does not fit beside the prompt.
    """
    shared = SharedPrompt(runner, pool, prompt, visuals)
    scores = [0.0] * len(continuations)
    try:
        for _ in shared.read(prefix_cache, config):
            pass
        first_V = torch.log_softmax(shared.logits_1V[0, : config.vocab_size].float(), dim=-1)
        # Longest first, so that a batch holds continuations of similar length.
        order = sorted((i for i, c in enumerate(continuations) if c), key=lambda i: -len(continuations[i]))
        while order:
            longest = len(continuations[order[0]])
            count = max(1, min(config.max_rows, config.prefill_chunk // longest))
            batch, order = order[:count], order[count:]
            with shared.slots(len(batch)) as slots:
                for slot, i in enumerate(batch):
                    slots.ensure(slot, len(prompt) + len(continuations[i]))
                chunks = [
                    Chunk(list(continuations[i]), len(prompt), pages, num_rows=len(continuations[i]))
                    for i, pages in zip(batch, slots.pages, strict=True)
                ]
                logits_RV = runner.forward(chunks)[:, : config.vocab_size]
                row = 0
                for i in batch:
                    tokens = torch.tensor(list(continuations[i]), device=logits_RV.device)
                    rows_TV = torch.log_softmax(logits_RV[row : row + len(tokens) - 1].float(), dim=-1)
                    rest = rows_TV.gather(1, tokens[1:, None]).sum() if len(tokens) > 1 else 0.0
                    scores[i] = float(first_V[tokens[0]] + rest)
                    row += len(tokens)
    finally:
        shared.table.free()
    return scores
