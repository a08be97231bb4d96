"""Checkpoints in the released format: what is written is read back, others read it too, and wrong tensors are named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLConfig
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3SparseForConditionalGeneration

from m3_model import names
from m3_model.checkpoint import Checkpoint, CheckpointError, write_checkpoint
from m3_model.config import M3Config
from m3_model.loading import load_decoder
from m3_model.quantization import dequantize, quantize
from m3_model.random_checkpoint import random_tensors, tiny_config, write_random_checkpoint

DTYPES = (torch.float32, torch.bfloat16)
SMALL_BLOCKS = {"block_size": 16, "top_k_blocks": 3}
EXPERT = "language_model.model.layers.1.block_sparse_moe.experts.2.w1.weight"
ROUTER = "language_model.model.layers.1.block_sparse_moe.gate.weight"


def is_expert(name: str) -> bool:
    return ".experts." in name or name == names.EMBEDDING


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_reads_what_we_write(tied: bool, tmp_path: Path, run: Any) -> None:
    """Through its own renaming of released names, as the whole multimodal model with an untrained image side."""
    config = tiny_config(tie_word_embeddings=tied, **SMALL_BLOCKS)
    write_random_checkpoint(tmp_path, config, seed=4, dtype=torch.float32)
    data = json.loads((tmp_path / "config.json").read_text())
    data["vision_config"] = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    data["projector_hidden_size"] = 32
    for key in ("architectures", "hidden_act", "n_shared_experts", "scoring_func"):
        data["text_config"].pop(key)
    theirs = MiniMaxM3SparseForConditionalGeneration.from_pretrained(
        tmp_path, config=MiniMaxM3VLConfig(**data), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = run.tokens(100, config)
    with torch.inference_mode():
        expected = theirs(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    torch.testing.assert_close(run.chunks(load_decoder(tmp_path), ids, [100]), expected, atol=1e-4, rtol=0)


def test_a_quantised_checkpoint_computes_what_its_dequantised_tensors_do(
    make_oracle: Callable[..., Any], run: Any
) -> None:
    oracle = make_oracle(tiny_config(**SMALL_BLOCKS), quantized=True)
    ids = run.tokens(100, oracle.config)
    torch.testing.assert_close(run.chunks(oracle.decoder, ids, [100]), oracle.expected(ids), atol=1e-4, rtol=0)


def test_quantised_files_have_the_released_names_dtypes_and_shapes(tmp_path: Path) -> None:
    config = tiny_config()
    write_checkpoint(tmp_path, config, random_tensors(config), quantized=is_expert)
    stored = load_file(tmp_path / "model.safetensors")
    assert stored[EXPERT].dtype == torch.float8_e4m3fn
    assert stored[EXPERT + "_scale_inv"].dtype == torch.uint8
    assert stored[EXPERT + "_scale_inv"].shape == (config.expert_intermediate_size, config.hidden_size // 32)
    assert stored[ROUTER].dtype == torch.float32
    assert stored["language_model.model.norm.weight"].dtype == torch.bfloat16
    quantization = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert quantization["quant_method"] == "mxfp8"
    assert ROUTER.removesuffix(".weight") in quantization["ignored_layers"]
    assert EXPERT.removesuffix(".weight") not in quantization["ignored_layers"]


@pytest.mark.parametrize("shard_bytes", [None, 20_000])
def test_every_tensor_is_read_back(shard_bytes: int | None, tmp_path: Path) -> None:
    config = tiny_config()
    tensors = random_tensors(config)
    write_checkpoint(tmp_path, config, tensors, quantized=is_expert, shard_bytes=shard_bytes)
    files = len(list(tmp_path.glob("*.safetensors")))
    assert files == 1 if shard_bytes is None else files > 5
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.config == config
    for name, tensor in tensors.items():
        read = checkpoint.read(name, torch.float32)
        if is_expert(name):
            expected = dequantize(*quantize(tensor))
        elif name.endswith(names.FLOAT32_NAMES):
            expected = tensor
        else:
            expected = tensor.bfloat16().float()
        torch.testing.assert_close(read, expected, rtol=0, atol=0)


def test_the_router_stays_float32_in_a_16_bit_model(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, tiny_config())
    decoder = load_decoder(tmp_path, dtype=torch.bfloat16)
    router = decoder.layers[1].mlp.router  # type: ignore[union-attr]
    assert (router.gate_EC.dtype, router.bias_E.dtype) == (torch.float32, torch.float32)
    assert decoder.layers[1].attention.projection.weight_XC.dtype == torch.bfloat16


def test_a_16_bit_model_is_near_the_exact_one(tmp_path: Path, run: Any) -> None:
    """Same bfloat16 weights; activations and cache are rounded in one of the two. With all experts in use, since
    rounding may flip the choice of an expert."""
    config = tiny_config(tie_word_embeddings=True, num_experts=2)
    write_random_checkpoint(tmp_path, config)
    ids = run.tokens(60, config)
    exact, rounded = (run.chunks(load_decoder(tmp_path, dtype=d), ids, [40] + [1] * 20) for d in DTYPES)
    assert rounded.dtype == torch.float32
    assert (rounded - exact).norm() < 0.03 * exact.norm()


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file(stored, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop(EXPERT), f"{EXPERT} is missing"),
        (lambda s: s.update({EXPERT: s[EXPERT][:-1]}), f"{EXPERT} has shape .31, 64., expected .32, 64."),
        (lambda s: s.update({ROUTER: s[ROUTER].bfloat16()}), f"{ROUTER} has dtype BF16, expected F32"),
        (lambda s: s.update({names.FINAL_NORM: s[names.FINAL_NORM].int()}), "norm.weight has dtype I32, expected F32"),
        (lambda s: s.update({"mtp.weight": torch.ones(1)}), "mtp.weight is no tensor of this configuration"),
        (lambda s: s.pop(EXPERT + names.SCALE), f"{EXPERT} has dtype F8_E4M3, expected F32 or BF16"),
        (
            lambda s: s.update({EXPERT + names.SCALE: s[EXPERT + names.SCALE][:, :1].contiguous()}),
            "expected U8 .32, 2.",
        ),
        (lambda s: s.update({EXPERT: s[EXPERT].float()}), f"{EXPERT} has scales and dtype F32, expected F8_E4M3"),
        (lambda s: s.update({ROUTER + names.SCALE: torch.ones(4, 2)}), f"{ROUTER} cannot be quantised"),
    ],
)
def test_a_wrong_tensor_is_named_before_anything_is_loaded(
    change: Callable[[dict[str, torch.Tensor]], Any], message: str, tmp_path: Path
) -> None:
    write_random_checkpoint(tmp_path, tiny_config(), quantized=True)
    edit(tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(EXPERT), "is missing"),
        (lambda t: t.update({"x": torch.ones(1)}), "x is no tensor"),
        (lambda t: t.update({EXPERT: torch.ones(1, 1)}), "has shape .1, 1., expected"),
    ],
)
def test_only_whole_checkpoints_are_written(
    change: Callable[[dict[str, torch.Tensor]], Any], message: str, tmp_path: Path
) -> None:
    config: M3Config = tiny_config()
    tensors = random_tensors(config)
    change(tensors)
    with pytest.raises(CheckpointError, match=message):
        write_checkpoint(tmp_path, config, tensors)
    assert not list(tmp_path.iterdir())
