"""What fits over several GPUs: the same numbers as of what is loaded, and M3's own as far as they are known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from m3_model.group import Alone, Parallel
from m3_model.loading import load_decoder
from m3_model.random_checkpoint import released_config, tiny_config, tiny_vision_config, write_random_checkpoint
from m3_model.share import Share
from m3_model.sizes import count_parameters, share_parameters
from m3_runtime.parallel.planner import STEP_BYTES, plans
from tests.model.test_loading import flat

GIB = 2**30
M3 = released_config()


class Place(Alone):
    """A rank that nothing is asked of."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_rank_holds_what_is_counted_and_needs_nothing_else_of_the_files(tmp_path: Path, size: int) -> None:
    config = tiny_config(num_experts=6, vision=tiny_vision_config())
    write_random_checkpoint(tmp_path, config)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    for rank in range(size):
        share = Share.of(config, rank, size)
        others = {n: t for n, t in stored.items() if ".experts." in n and int(n.split(".")[6]) not in share.experts}
        save_file(stored | {name: torch.full_like(t, torch.nan) for name, t in others.items()}, file)
        parallel = Parallel(ranks=Place(rank, size))
        tensors = list(flat(load_decoder(tmp_path, dtype=torch.bfloat16, parallel=parallel)))
        assert not any(tensor.isnan().any() for tensor in tensors)
        held, heads = share_parameters(config, share), len(share.heads) + len(share.kv_heads)
        norms = (
            2 * (heads + len(share.kv_heads) + 1) * 32 + heads * 32
        )  # one row a head: two sparse layers, a dense one
        once = 2 * 4 * 32 + 2 * 32
        assert sum(tensor.numel() for tensor in tensors) == held.total + held.vision + norms - once


def test_all_ranks_together_hold_the_model() -> None:
    whole = count_parameters(M3)
    assert whole.total == 426_174_572_928
    for size in (2, 4, 8, 16):
        shares = [share_parameters(M3, Share.of(M3, rank, size)) for rank in range(size)]
        assert sum(share.routed for share in shares) == whole.routed
        assert sum(share.embedding + share.head for share in shares) == whole.embedding + whole.head
        assert whole.total / size <= max(share.total for share in shares) < 1.05 * whole.total / size + 4e9


def test_m3_needs_eight_large_gpus_in_bfloat16() -> None:
    found = {plan.ranks: plan for plan in plans(M3, [139 * GIB] * 8)}
    assert list(found) == [1, 2, 4, 8]
    assert [plan.context_tokens for plan in found.values()][:3] == [0, 0, 0]
    assert found[8].context_tokens > 128_000
    assert found[8].cache_bytes_per_token == (60 * 2 * 128 + 57 * 128) * 2  # one key head of four, and the index key
    least = plans(M3, [139 * GIB] * 7 + [120 * GIB])[-1]
    assert (least.free_bytes, least.context_tokens < found[8].context_tokens) == (120 * GIB, True)


def test_what_is_kept_free_is_not_given_to_the_cache() -> None:
    config = tiny_config()
    (plan,) = plans(config, [STEP_BYTES + 10**6])
    assert 0 < plan.context_tokens * plan.cache_bytes_per_token <= 10**6 - plan.weights_bytes
    (plan,) = plans(config, [STEP_BYTES + plan.weights_bytes])
    assert plan.context_tokens == 0
