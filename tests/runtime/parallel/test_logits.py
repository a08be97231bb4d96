"""Several ranks compute what one computes: logits to 1e-5 in float32, and the very same blocks."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from m3_model.cache import KVCache
from m3_model.layers import GatedMlp
from m3_model.loading import load_decoder
from m3_model.matrix import QuantizedMatrix
from m3_model.moe import StackedExperts
from m3_model.random_checkpoint import tiny_config, write_random_checkpoint
from m3_model.share import Share
from m3_runtime.parallel.ranks import Ranks
from m3_runtime.runner import Chunk, Runner
from tests.runtime.parallel.conftest import NEVER, dumped, led
from tests.runtime.parallel.recording import recorded

PAGES = 16
ATOL = 1e-5


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and whether a step's rows are spread and replicas share the scoring."""

    config: dict[str, Any]
    spread: bool = False
    shared: bool = False
    quantized: bool = False
    tokens: int = 560


MANY = {"num_heads": 8, "num_kv_heads": 4, "index_heads": 4, "head_dim": 16, "index_dim": 16}
WIDE = {"dense_intermediate_size": 160, "shared_intermediate_size": 128}
"""Widths with a group of 32 for each of four ranks."""
ONE = {"num_heads": 4, "num_kv_heads": 1, "index_heads": 1}
CASES = {
    "split heads": Case({**MANY, "vocab_size": 383, "tie_word_embeddings": True}),
    "split heads, spread rows": Case(MANY, spread=True),
    "one key head, uneven experts": Case({**ONE, "num_experts": 6, "experts_per_token": 3}),
    "one key head, shared scoring": Case(ONE, shared=True),
    "forced blocks": Case({**ONE, "init_blocks": 1, "local_blocks": 2, "top_k_blocks": 4}, shared=True, tokens=900),
    "rows sent to experts": Case({"num_experts": 8, "experts_per_token": 1}, spread=True),
    "all at once": Case({**ONE, "num_experts": 7, "experts_per_token": 3}, spread=True, shared=True, tokens=900),
    "quantised, index heads of another size": Case({**WIDE, "index_dim": 64}, quantized=True, shared=True),
    "quantised, rows sent to experts": Case({**WIDE, "experts_per_token": 1}, quantized=True, spread=True),
    "dense alone": Case(
        {"attention_kinds": ("dense",) * 2, "mlp_kinds": ("dense",) * 2, "index_heads": 0}, spread=True
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_blocks_are_those_of_one_process(ranks: Ranks, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    config = tiny_config(**{"top_k_blocks": 2, "num_experts": 8, **case.config})
    write_random_checkpoint(tmp_path, config, seed=len(name), quantized=case.quantized)
    alone = load_decoder(tmp_path)
    expected = _run(Runner(alone, KVCache.zeros(alone.config, PAGES)), case.tokens)
    spread_rows, shared_blocks = 2 if case.spread else NEVER, 1 if case.shared else NEVER
    spec = led(ranks, tmp_path, num_pages=PAGES, spread_rows=spread_rows, shared_blocks=shared_blocks)
    dumped(ranks, tmp_path)
    attention, experts = spec.decoder.layers[1].attention, spec.decoder.layers[1].mlp
    assert isinstance(attention.projection, QuantizedMatrix) == case.quantized
    assert isinstance(experts, GatedMlp) or isinstance(experts.experts, StackedExperts) == case.quantized
    got = _run(spec.runner, case.tokens)
    for logits, logits_alone in zip(got.logits, expected.logits, strict=True):
        torch.testing.assert_close(logits, logits_alone, atol=ATOL, rtol=0)
    for rank, chosen in enumerate([got.blocks, *dumped(ranks, tmp_path)]):
        heads = Share.of(config, rank, ranks.size).kv_heads
        assert len(chosen) == len(expected.blocks)
        for blocks, blocks_alone in zip(chosen, expected.blocks, strict=True):
            assert torch.equal(blocks, blocks_alone[:, heads.start : heads.stop])
    assert len(expected.blocks) >= 3 * config.num_sparse_layers  # so that blocks were chosen in this test


@dataclasses.dataclass
class _Found:
    logits: list[torch.Tensor]
    blocks: list[torch.Tensor]


def _run(runner: Runner, num_tokens: int) -> _Found:
    """A prompt beside another, its rest beside an answer, then a fork of it, and several tokens at once."""
    numbers = random.Random(7)
    long, other = ([numbers.randrange(380) for _ in range(n)] for n in (num_tokens, 38))
    own, others = list(range(8)), [12]
    with torch.inference_mode(), recorded() as blocks:
        steps = [
            [Chunk(long[:300], 0, own, num_rows=60), Chunk(other[:37], 0, others, num_rows=37)],
            [Chunk(other[37:38], 37, others), Chunk(long[300:-1], 300, own, num_rows=200)],
        ]
        logits = [runner.forward(step) for step in steps]
        runner.cache.copy_pages([own[(num_tokens - 1) // 128]], [15])
        fork = [*own[: (num_tokens - 1) // 128], 15]
        logits.append(runner.forward([Chunk([5], num_tokens - 1, own), Chunk([6], num_tokens - 1, fork)]))
        logits.append(runner.forward([Chunk([9, 8, 7, 6], num_tokens, fork, num_rows=4)]))
    return _Found(logits, blocks)
