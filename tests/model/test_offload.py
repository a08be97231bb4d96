"""Experts elsewhere give the logits of experts beside the others; what is used stays, and what was not goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from m3_kernels.moe_experts.reference import unpacked_e2m1
from m3_model import offload
from m3_model.decoder import Decoder
from m3_model.group import ALONE
from m3_model.loading import load_decoder
from m3_model.moe import MoE, StackedExperts
from m3_model.offload import ExpertPlacement, StreamedExperts
from m3_model.quantization import quantize_4bit
from m3_model.random_checkpoint import tiny_config, write_random_checkpoint

CONFIG = tiny_config(num_experts=8, hidden_size=64, expert_intermediate_size=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    write_random_checkpoint(folder, CONFIG, seed=2, dtype=torch.float32)
    return folder


def moes(decoder: Decoder) -> list[MoE]:
    return [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, MoE)]


@pytest.mark.parametrize("slots", [2, 3, 5, 8])
@pytest.mark.parametrize("bits", [16, 4])
def test_streamed_experts_give_the_same_logits(folder: Path, run: Any, slots: int, bits: int) -> None:
    """A prompt, which needs more experts than there are slots, and then token by token."""
    ids = run.tokens(50, CONFIG)
    expected = run.chunks(load_decoder(folder, experts=ExpertPlacement(bits=bits)), ids, [40] + [1] * 10)
    streamed = load_decoder(folder, experts=ExpertPlacement(where="streamed", bits=bits, slots=slots))
    torch.testing.assert_close(run.chunks(streamed, ids, [40] + [1] * 10), expected, atol=1e-4, rtol=1e-5)


def test_experts_on_the_cpu_give_the_same_logits(folder: Path, run: Any) -> None:
    ids = run.tokens(20, CONFIG)
    plain = load_decoder(folder)
    beside = load_decoder(folder)
    for moe in moes(beside):  # as on a GPU, where tokens travel and weights do not
        object.__setattr__(moe, "experts", offload.CpuExperts(moe.experts))
    torch.testing.assert_close(run.chunks(beside, ids, [20]), run.chunks(plain, ids, [20]))


def stacked(count: int = 6) -> StackedExperts:
    generator = torch.Generator().manual_seed(0)
    w13, w2 = (torch.randn(count, rows, 32, generator=generator) for rows in (64, 32))
    return StackedExperts(w13_EXC=w13, w2_ECI=w2, alpha=1.7, limit=7.0)


def call(experts: Any, *chosen: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(chosen))
    x_TC = torch.randn(1, 32, generator=generator)
    out: torch.Tensor = experts(x_TC, torch.tensor([chosen]), torch.full((1, len(chosen)), 0.5))
    return out


def test_the_expert_that_was_used_longest_ago_makes_room() -> None:
    host = stacked()
    experts = StreamedExperts(host, slots=3, device="cpu")
    copies = []
    for chosen in ((0, 1), (2, 1), (1, 0), (3, 0), (1, 0), (2, 4)):
        before = experts.num_copied
        torch.testing.assert_close(call(experts, *chosen), call(host, *chosen))
        copies.append(experts.num_copied - before)
    assert copies == [2, 1, 0, 1, 0, 2], "3 takes the place of 2, the others stay until the end"


def test_what_the_next_layer_will_need_is_there_before_it_asks(folder: Path) -> None:
    decoder = load_decoder(folder, experts=ExpertPlacement(where="streamed", slots=8))
    first, second = moes(decoder)
    assert isinstance(second.experts, StreamedExperts)
    x_TC = torch.randn(1, CONFIG.hidden_size, generator=torch.Generator().manual_seed(4))
    first(x_TC, ALONE.rows(1))
    fetched = second.experts.num_copied
    assert fetched == CONFIG.experts_per_token
    second(x_TC, ALONE.rows(1))  # the same hidden state, so the guess was right
    assert second.experts.num_copied == fetched


def test_one_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="1 slots: two at least"):
        StreamedExperts(stacked(), slots=1, device="cpu")


def test_four_bits_hold_the_nearest_numbers_of_their_group() -> None:
    grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    exact = torch.cat([grid, -grid, grid, -grid]).view(1, 32) * torch.tensor([[0.25], [2.0]])
    torch.testing.assert_close(dequantized(exact), exact, atol=0, rtol=0)
    matrix = torch.randn(7, 64, generator=torch.Generator().manual_seed(1))
    largest = matrix.view(7, 2, 32).abs().amax(-1, keepdim=True)
    worst = (dequantized(matrix) - matrix).view(7, 2, 32).abs()
    assert (worst <= largest / 3).all(), "half of the widest step, under the smallest power of two that clips nothing"
    assert torch.equal(dequantized(torch.zeros(2, 32)), torch.zeros(2, 32))


def dequantized(matrix: torch.Tensor) -> torch.Tensor:
    packed, scales = quantize_4bit(matrix)
    factors = torch.exp2(scales.double() - 127).float().repeat_interleave(32, 1)
    return unpacked_e2m1(packed) * factors


@pytest.mark.parametrize(
    ("matrix", "problem"), [(torch.zeros(1, 33), "groups of 32"), (torch.full((1, 32), 13.0), "up to 12")]
)
def test_what_four_bits_cannot_hold_is_refused(matrix: torch.Tensor, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        quantize_4bit(matrix)
