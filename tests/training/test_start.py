"""What a run begins with: the reverse of the export gives its weights back, and layers can be left out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from m3_model.checkpoint import Checkpoint
from tests.training.test_export import export, small_model
from training.model import TrainedNano
from training.start import first_weights, without_layers


def with_layers(model: TrainedNano, layers: int) -> TrainedNano:
    """A fresh model like this one, but for its number of layers."""
    return TrainedNano(dataclasses.replace(model.shape, layers=layers), model.eyes.config)


@pytest.mark.parametrize("quantized", [False, True])
def test_an_export_of_what_was_read_is_what_was_read(tmp_path: Path, quantized: bool) -> None:
    model, config = small_model(tmp_path / "trained")
    export(model, config, tmp_path / "one", quantized=quantized)
    again = with_layers(model, 3)
    again.load_state_dict(first_weights(tmp_path / "one", again, []))
    export(again, config, tmp_path / "two", quantized=quantized)
    one, two = Checkpoint.open(tmp_path / "one"), Checkpoint.open(tmp_path / "two")
    text = [name for name in one.entries if name.startswith("language_model.")]
    for name in (name for name in text if not name.endswith("_scale_inv") and ".index_" not in name):
        assert torch.equal(one.read(name, torch.float32), two.read(name, torch.float32)), name


def test_the_layers_behind_one_that_is_left_out_move_up(tmp_path: Path) -> None:
    model, _ = small_model(tmp_path / "trained")
    weights = model.state_dict()
    fewer = without_layers(weights, [1])
    with_layers(model, 2).load_state_dict(fewer)
    assert torch.equal(fewer["layers.1.q"], weights["layers.2.q"])
    assert torch.equal(fewer["layers.0.q"], weights["layers.0.q"])
    with pytest.raises(ValueError, match="layers 1 to 2 can be left out, not 0"):
        without_layers(weights, [0])


def test_a_run_starts_from_a_checkpoint_or_from_an_earlier_runs_weights(tmp_path: Path) -> None:
    model, config = small_model(tmp_path / "trained")
    export(model, config, tmp_path / "exported", quantized=False)
    torch.save(without_layers(model.state_dict(), [2]), tmp_path / "weights.pt")
    for place in (tmp_path / "exported", tmp_path / "weights.pt"):
        started = with_layers(model, 2)
        started.load_state_dict(first_weights(place, started, [2]))
        torch.testing.assert_close(started.layers[1].gate, model.layers[1].gate)
