"""What fits over several GPUs: the same numbers as of what is loaded, and M3's own as far as they are known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from m3_model import names
from m3_model.checkpoint import CheckpointError, write_checkpoint
from m3_model.config import M3Config
from m3_model.group import Alone, Parallel
from m3_model.loading import load_decoder
from m3_model.random_checkpoint import (
    random_tensors,
    released_config,
    tiny_config,
    tiny_vision_config,
    write_random_checkpoint,
)
from m3_model.share import Share
from m3_model.sizes import count_parameters, share_parameters, weight_bytes
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


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_keeps_mxfp8_in_the_bytes_that_are_counted(tmp_path: Path, size: int) -> None:
    config = tiny_config(dense_intermediate_size=160, shared_intermediate_size=128, num_experts=6)
    _write_as_released(tmp_path, config)
    held = []
    for rank in range(size):
        share = Share.of(config, rank, size, mxfp8=True)
        parameters = share_parameters(config, share, mxfp8=True)
        decoder = load_decoder(tmp_path, dtype=torch.bfloat16, parallel=Parallel(ranks=Place(rank, size)))
        heads = len(share.heads) + len(share.kv_heads)  # whose norms stand once a head, and once in the files
        norms = 3 * heads * 32 + 2 * (len(share.kv_heads) + 1) * 32 - (2 * 4 * 32 + 2 * 32)
        tensors = list(flat(decoder))
        held.append(sum(tensor.nbytes for tensor in tensors) - 2 * norms)
        assert held[-1] == weight_bytes(parameters, 2)
        assert sum(t.numel() for t in tensors if t.dtype == torch.float8_e4m3fn) == parameters.mxfp8
    assert max(held) == {plan.ranks: plan for plan in plans(config, [0] * size, mxfp8=True)}[size].weights_bytes


def test_scales_that_kernels_cannot_take_are_refused(tmp_path: Path) -> None:
    _write_as_released(tmp_path, tiny_config())
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    name = "language_model.model.layers.2.block_sparse_moe.experts.1.w2.weight"
    stored[name + names.SCALE][3, 0] = 129
    save_file(stored, file)
    load_decoder(tmp_path)
    with pytest.raises(CheckpointError, match=rf"{name} has a scale of 129, and several GPUs take 128 at most: use"):
        load_decoder(tmp_path, parallel=Parallel(ranks=Place(0, 2)))


def test_cuts_fall_between_scales_or_are_refused() -> None:
    for size in (2, 4, 8, 16, 32, 64):
        shares = [Share.of(M3, rank, size, mxfp8=True) for rank in range(size)]
        for widths in ([s.dense_width for s in shares], [s.shared_width for s in shares]):
            assert all(width and width.start % 32 == width.stop % 32 == 0 for width in widths)
            assert [width.start for width in widths[1:]] == [width.stop for width in widths[:-1]]
    with pytest.raises(ValueError, match=r"^4 GPUs would cut the dense feed-forward part at 24, within 32 numbers"):
        Share.of(tiny_config(), 0, 4, mxfp8=True)
    with pytest.raises(ValueError, match=r"cut the shared expert at 16, .*: use fewer GPUs, or the BF16 checkpoint$"):
        Share.of(tiny_config(dense_intermediate_size=128), 0, 4, mxfp8=True)
    with pytest.raises(ValueError, match="cut the attention's output at 16"):
        Share.of(tiny_config(head_dim=16, index_dim=16, dense_intermediate_size=128), 3, 4, mxfp8=True)
    assert [plan.ranks for plan in plans(tiny_config(), [0] * 4, mxfp8=True)] == [1, 2]


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


def test_m3_needs_four_large_gpus_in_mxfp8() -> None:
    found = {plan.ranks: plan for plan in plans(M3, [139 * GIB] * 8, mxfp8=True)}
    assert [(plan.dtype, plan.context_tokens > 0) for plan in found.values()] == [
        ("bfloat16", False), ("mxfp8", False), ("mxfp8", True), ("mxfp8", True),
    ]  # fmt: skip
    assert found[4].weights_bytes < 0.27 * 443_742_085_120  # of the released files
    assert found[4].context_tokens > 256_000


def _write_as_released(folder: Path, config: M3Config) -> None:
    """A random checkpoint whose embedding, head and routers alone are not in MXFP8."""
    matrices = {n for n, s in names.text_tensors(config).items() if len(s.shape) == 2 and not s.float32}
    kept = matrices - {names.EMBEDDING, names.HEAD}
    write_checkpoint(folder, config, random_tensors(config), quantized=kept.__contains__)


def test_what_is_kept_free_is_not_given_to_the_cache() -> None:
    config = tiny_config()
    (plan,) = plans(config, [STEP_BYTES + 10**6])
    assert 0 < plan.context_tokens * plan.cache_bytes_per_token <= 10**6 - plan.weights_bytes
    (plan,) = plans(config, [STEP_BYTES + plan.weights_bytes])
    assert plan.context_tokens == 0
