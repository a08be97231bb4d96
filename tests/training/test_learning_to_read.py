"""A tiny model with eyes learns to read small pictures, as a proof that pixels reach the loss in the right places."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator

import pytest
import torch

from m3_model import reading
from m3_model.vision.config import VisionConfig
from training.feed import joined
from training.model import Shape, TrainedNano
from training.optimizer import Muon, split_parameters
from training.pictures import SeenExample, cut, seen_example
from training.screens.canvas import Canvas
from training.screens.draw import Screen
from training.screens.fonts import FONTS
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
FONT = next(font for font in FONTS if font.file == "DejaVuSansMono.ttf")
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
STEPS = 150
PICTURES = 48
"""In a step."""


def numbers(encoder: Encoder, seed: int) -> Iterator[SeenExample]:
    """Pictures of two to four digits, which nothing but their pixels foretells."""
    rng = random.Random(seed)
    while True:
        canvas = Canvas(rng, "train", width=56, height=28, mono=True)
        canvas.font, canvas.size = FONT, 18
        canvas.write(rng.randint(1, 8), rng.randint(0, 3), "".join(rng.choices("0123456789", k=rng.randint(2, 4))))
        made = Screen(kind="form", image=canvas.image, lines=tuple(canvas.shown), layout="", font="")
        yield seen_example(encoder, VISION, made, reading.READ, cut(made.image, VISION))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_numbers_in_pictures_that_were_never_shown_are_read(encoder: Encoder) -> None:
    torch.manual_seed(1)
    device = torch.device("cpu")
    cases, source = list(itertools.islice(numbers(encoder, 1), 100)), numbers(encoder, 2)
    model = TrainedNano(SHAPE, VISION)
    matrices, rest = split_parameters(model)
    muon, adam = Muon(matrices), torch.optim.AdamW(rest, lr=2e-3, betas=(0.9, 0.95))
    weights = torch.tensor([0.0, 1.0, 0.3, 1.0])
    for step in range(STEPS):
        shown = list(itertools.islice(source, PICTURES))
        size, patches = sum(len(c.tokens) for c in shown), sum(len(c.patches) for c in shown)
        batch = to_batch(joined(shown, size, patches, 4), device)
        hidden, _ = model(batch.ids, batch.positions, batch.starts, batch.longest, batch.seen)
        loss, _ = weighted_loss(hidden, model.embedding, batch.targets, weights, batch.classes)
        torch.autograd.backward(loss)
        muon.step(0.02 * min(1.0, 2 * (1 - step / STEPS)))
        adam.step()
        model.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(step, round(loss.item(), 3), flush=True)
    result = evaluate_seen(model, cases, device)
    print(result)
    assert result["read_exact"] > 0.9
    blind = [dataclasses.replace(case, patches=0 * case.patches) for case in cases]
    assert evaluate_seen(model, blind, device)["read_exact"] < 0.1
