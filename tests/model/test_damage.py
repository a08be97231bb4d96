"""Damaged checkpoints: one sentence names the tensor, the file and what was expected, before any weight is read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from m3_model import names
from m3_model.checkpoint import Checkpoint, CheckpointError, write_checkpoint
from m3_model.loading import load_decoder
from m3_model.random_checkpoint import random_tensors, tiny_config, write_random_checkpoint
from m3_model.tensor_files import INDEX

EXPERT = "language_model.model.layers.1.block_sparse_moe.experts.2.w1.weight"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    config = tiny_config()
    write_checkpoint(tmp_path, config, random_tensors(config), shard_bytes=50_000)
    return tmp_path


def problems(folder: Path) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder)
    return caught.value.problems


def change_index(folder: Path, change: Callable[[dict[str, Any]], Any]) -> dict[str, str]:
    index = json.loads((folder / INDEX).read_text())
    before = dict(index["weight_map"])
    change(index)
    (folder / INDEX).write_text(json.dumps(index))
    return before


def change_shard(shard: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    stored = load_file(shard)
    change(stored)
    save_file(stored, shard)


def test_every_wrong_tensor_is_named_with_its_file(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, tiny_config())

    def damage(stored: dict[str, torch.Tensor]) -> None:
        del stored[names.FINAL_NORM]
        stored[EXPERT] = stored[EXPERT][:-1]
        stored[names.HEAD] = stored[names.HEAD].int()
        stored["language_model.model.layers.9.input_layernorm.weight"] = torch.ones(64)

    change_shard(tmp_path / "model.safetensors", damage)
    assert problems(tmp_path) == (
        f"model.safetensors: {EXPERT} has shape (31, 64), expected (32, 64)",
        f"{names.FINAL_NORM} is missing: expected with shape (64,), but no file holds it",
        f"model.safetensors: {names.HEAD} has dtype I32, expected F32 or BF16 or F16",
        "model.safetensors: language_model.model.layers.9.input_layernorm.weight is no tensor of this configuration",
    )
    with pytest.raises(CheckpointError, match=r"expected \(32, 64\) \(and 3 more such problems\)$"):
        load_decoder(tmp_path)


def test_quantised_numbers_without_their_scales_are_told(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, tiny_config(), quantized=True)
    change_shard(tmp_path / "model.safetensors", lambda stored: stored.pop(EXPERT + names.SCALE))
    (problem,) = problems(tmp_path)
    assert problem.endswith(f"has dtype F8_E4M3, expected F32 or BF16 or F16 or {EXPERT}_scale_inv beside it")


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_file_that_is_cut_off_is_named_with_its_size(sharded: Path, kept: int) -> None:
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    whole = first.read_bytes()
    first.write_bytes(whole[:kept])
    second.unlink()
    cut, missing = problems(sharded)
    assert f"{first} is damaged or cut off at {len(whole[:kept]):,} bytes" in cut
    assert missing == f"{second} is missing: fetch the checkpoint again"


def test_an_index_must_name_the_file_of_each_tensor_and_of_no_other(sharded: Path) -> None:
    where = change_index(sharded, lambda index: index["weight_map"].pop(EXPERT))
    assert problems(sharded) == (f"{where[EXPERT]}: {EXPERT} is not in {INDEX}",)
    other = next(file for file in where.values() if file != where[EXPERT])
    change_index(sharded, lambda index: index["weight_map"].update({EXPERT: other}))
    assert problems(sharded) == (f"{EXPERT} should be in {other} according to {INDEX}, but is not",)


def test_a_tensor_in_two_files_is_named(sharded: Path) -> None:
    where = change_index(sharded, lambda index: None)
    other = next(file for file in sorted(where.values()) if file > where[EXPERT])
    change_shard(sharded / other, lambda stored: stored.update({EXPERT: torch.ones(32, 64)}))
    assert problems(sharded)[0] == f"{EXPERT} is both in {where[EXPERT]} and in {other}"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": "../x.safetensors"}}'])
def test_an_index_of_another_form_is_told(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    (problem,) = problems(sharded)
    assert str(sharded / INDEX) in problem
    assert "weight_map" in problem


def test_folders_without_config_or_tensors_are_told(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    assert problems(empty) == (f"{empty} has no config.json: give the folder of a checkpoint",)
    (sharded / INDEX).unlink()
    (problem,) = problems(sharded)
    assert f"has neither model.safetensors nor {INDEX}" in problem
    (sharded / "config.json").unlink()
    assert "has no config.json" in problems(sharded)[0]


@pytest.mark.parametrize(
    "quantization", [{"quant_method": "fp8"}, {"quant_method": "mxfp8", "weight_block_size": [128, 128]}]
)
def test_another_quantisation_is_refused(sharded: Path, quantization: dict[str, Any]) -> None:
    data = json.loads((sharded / "config.json").read_text())
    (sharded / "config.json").write_text(json.dumps({**data, "quantization_config": quantization}))
    assert "only mxfp8 in [1, 32] is read" in problems(sharded)[0]


@pytest.mark.parametrize(
    "text", ["[]", "7", '{"text_config": 3}', '{"text_config": null}', '{"quantization_config": 1}']
)
def test_a_config_of_another_form_is_told(sharded: Path, text: str) -> None:
    (sharded / "config.json").write_text(text)
    (problem,) = problems(sharded)
    assert "config.json" in problem


def test_a_size_of_null_is_told(sharded: Path) -> None:
    data = json.loads((sharded / "config.json").read_text())
    data["text_config"]["hidden_size"] = None
    (sharded / "config.json").write_text(json.dumps(data))
    assert "has a value of another type" in problems(sharded)[0]


def test_a_scale_that_is_no_number_is_found_where_it_is_read(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, tiny_config(), quantized=True)

    def damage(stored: dict[str, torch.Tensor]) -> None:
        stored[EXPERT + names.SCALE][5, 1] = 0xFF

    change_shard(tmp_path / "model.safetensors", damage)
    with pytest.raises(
        CheckpointError,
        match=rf"^model.safetensors: {EXPERT}_scale_inv holds 0xFF, which is no number, "
        r"in 1 places, the first in row 5, group 1; expected 0 to 254",
    ):
        load_decoder(tmp_path)


def test_an_image_side_that_the_config_does_not_describe_is_listed_and_ignored(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, tiny_config())
    tower = "vision_tower.vision_model.pre_layrnorm.weight"
    change_shard(tmp_path / "model.safetensors", lambda stored: stored.update({tower: torch.ones(4)}))
    assert Checkpoint.open(tmp_path).ignored == (tower,)
