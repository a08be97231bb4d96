"""A tiny model with eyes learns to read small pictures, as a proof that pixels reach the loss in the right places."""

from __future__ import annotations

import random

import pytest
import torch

from m3_model import reading
from m3_model.vision.config import VisionConfig
from training.feed import joined
from training.model import Shape, TrainedNano
from training.optimizer import Muon, split_parameters
from training.pictures import SeenExample, cut, seen_example
from training.screens.draw import Screen
from training.screens.strips import strip
from training.train import evaluate_seen, to_batch, weighted_loss
from training.transcript import Encoder

VISION = VisionConfig(
    hidden_size=64,
    num_layers=2,
    num_heads=2,
    intermediate_size=128,
    projector_size=64,
    image_token_id=8217,
    video_token_id=8218,
)
SHAPE = Shape(
    vocab_size=9344,
    hidden=128,
    layers=2,
    query_heads=2,
    kv_heads=1,
    head_dim=64,
    rotary_dim=32,
    rope_theta=1e4,
    dense_width=256,
    experts=2,
    experts_per_token=1,
    expert_width=64,
    routed_scaling=1.0,
    swiglu_alpha=1.702,
    swiglu_limit=7.0,
    norm_eps=1e-6,
)
STEPS = 140


def small_strips(encoder: Encoder, count: int) -> list[SeenExample]:
    """Pictures of at most two rows, the same size of prompt not being the same text."""
    rng, found = random.Random(4), []
    while len(found) < count:
        made: Screen = strip(rng)
        example = seen_example(encoder, VISION, made, reading.READ, cut(made.image, VISION))
        if len(example.patches) <= 4 * 32:
            found.append(example)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_was_shown_is_read_without_an_error(encoder: Encoder) -> None:
    torch.manual_seed(1)
    cases = small_strips(encoder, 32)
    model = TrainedNano(SHAPE, VISION)
    matrices, rest = split_parameters(model)
    muon, adam = Muon(matrices), torch.optim.AdamW(rest, lr=2e-3, betas=(0.9, 0.95))
    size, patches = sum(len(c.tokens) for c in cases), sum(len(c.patches) for c in cases)
    batch = to_batch(joined(cases, size, patches, 4), torch.device("cpu"))
    weights = torch.tensor([0.0, 1.0, 0.3, 1.0])
    for step in range(STEPS):
        hidden, _ = model(batch.ids, batch.positions, batch.starts, batch.longest, batch.seen)
        loss, _ = weighted_loss(hidden, model.embedding, batch.targets, weights, batch.classes)
        loss.backward()
        muon.step(0.02 * min(1.0, 2 * (1 - step / STEPS)))
        adam.step()
        model.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(step, round(loss.item(), 3), flush=True)
    result = evaluate_seen(model, cases, torch.device("cpu"))
    print(result)
    assert result["right_tokens"] > 0.99
    assert result["read_exact"] > 0.9
    blind = [SeenExample(c.tokens, c.classes, 0 * c.patches, c.places, c.image_start, c.question) for c in cases]
    assert evaluate_seen(model, blind, torch.device("cpu"))["right_tokens"] < 0.6  # it was read, not guessed
