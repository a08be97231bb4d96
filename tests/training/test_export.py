"""What was trained is what is shipped: the trainer's model and the decoder that loads its export give equal logits."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import training.export
from m3_model import names
from m3_model.cache import KVCache
from m3_model.checkpoint import write_checkpoint
from m3_model.config import M3Config
from m3_model.inputs import ModelInputs, VisualInputs
from m3_model.loading import load_decoder
from m3_model.vision.images import read_image
from m3_model.vision.resize import default_rule
from training.export import is_quantized, released_eyes, released_tensors
from training.model import Seen, Shape, TrainedNano
from training.pictures import cut
from training.write_config import eyes_config, nano_config


def small_model(folder: Path) -> tuple[TrainedNano, M3Config]:
    """Nano with three layers and a small vocabulary, every parameter away from its initial zero."""
    values = nano_config(500, eyes_config(498, 499))
    text = values["text_config"]
    assert isinstance(text, dict)
    text["num_hidden_layers"] = 3
    text["moe_layer_freq"] = text["moe_layer_freq"][:3]
    sparse = text["sparse_attention_config"]
    for key in ("sparse_disable_index_value", "sparse_attention_freq"):
        sparse[key] = sparse[key][:3]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    torch.manual_seed(3)
    config = M3Config.from_folder(folder)
    assert config.vision is not None
    model = TrainedNano(Shape.from_config(folder / "config.json"), config.vision)
    for parameter in model.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    for layer in model.layers[1:]:
        layer.router_bias.copy_(0.1 * torch.randn(4))
    return model, config


def export(model: TrainedNano, config: M3Config, folder: Path, *, quantized: bool) -> None:
    tensors = released_tensors(
        model.state_dict(),
        query_heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        index_heads=config.index_heads,
    )
    assert config.vision is not None
    tensors |= released_eyes(model.state_dict(), config.vision)
    chosen = (lambda name: is_quantized(name, tensors[name])) if quantized else None
    write_checkpoint(folder, config, tensors, quantized=chosen, dtype=torch.float32)


@torch.no_grad()
@torch.no_grad()
def test_the_exported_eyes_give_the_trainers_tokens_for_pictures_of_all_sizes(tmp_path: Path) -> None:
    model, config = small_model(tmp_path / "trained")
    assert config.vision is not None
    export(model, config, tmp_path / "exported", quantized=False)
    encoder = load_decoder(tmp_path / "exported").vision
    assert encoder is not None
    sizes = [(28, 28), (112, 140), (197, 333), (84, 1500), (300, 113)]
    images = [
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (*s, 3), np.uint8)) for i, s in enumerate(sizes)
    ]
    patches, places = (np.concatenate(part) for part in zip(*(cut(i, config.vision) for i in images), strict=True))
    counts = [len(cut(image, config.vision)[0]) for image in images]
    starts = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    actual = model.eyes(torch.from_numpy(patches), torch.from_numpy(places), starts, max(counts))
    expected = [encoder(read_image(png(i), config.vision, default_rule(config.vision))) for i in images]
    torch.testing.assert_close(actual, torch.cat(expected), atol=1e-4, rtol=1e-4)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@torch.no_grad()
def test_a_picture_in_a_conversation_is_seen_by_the_exported_model_as_by_the_trained_one(tmp_path: Path) -> None:
    model, config = small_model(tmp_path / "trained")
    assert config.vision is not None
    export(model, config, tmp_path / "exported", quantized=False)
    decoder = load_decoder(tmp_path / "exported")
    assert decoder.vision is not None
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (112, 196, 3), np.uint8))
    patches, places = (torch.from_numpy(part) for part in cut(image, config.vision))
    run = range(3, 3 + len(patches) // 4)
    ids = torch.randint(0, 490, (run.stop + 9,))
    starts = torch.tensor([0, len(ids)], dtype=torch.int32)
    seen = Seen(patches, places, torch.tensor([0, len(patches)], dtype=torch.int32), torch.tensor(run), len(patches))
    hidden, _ = model(ids, torch.arange(len(ids)), starts, len(ids), seen)
    vectors = decoder.vision(read_image(png(image), config.vision, default_rule(config.vision)))
    inputs = ModelInputs.build(
        [ids.tolist()], [0], [[0]], output_rows=range(len(ids)),
        visual=VisualInputs(rows_N=torch.tensor(run), vectors_NC=vectors),
    )  # fmt: skip
    actual = decoder(inputs, KVCache.zeros(config, 2))
    torch.testing.assert_close(actual, model.logits(hidden), atol=2e-4, rtol=1e-4)


def test_a_model_that_is_too_large_for_the_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = small_model(tmp_path / "trained")
    monkeypatch.setattr(training.export, "MAX_BYTES", 1_000_000)
    with pytest.raises(ValueError, match=r"bytes, more than 1,000,000: leave out a layer"):
        training.export.export(model.state_dict(), config, tmp_path / "exported")
    assert not (tmp_path / "exported" / "model.safetensors").exists()


def test_the_decoder_gives_the_trainers_logits(tmp_path: Path) -> None:
    model, config = small_model(tmp_path / "trained")
    export(model, config, tmp_path / "exported", quantized=False)
    decoder = load_decoder(tmp_path / "exported")
    lengths = [1, 130, 300]
    ids = [torch.randint(0, 500, (n,)) for n in lengths]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    positions = torch.cat([torch.arange(n) for n in lengths])
    hidden, _ = model(torch.cat(ids), positions, starts, max(lengths))
    expected = model.logits(hidden)
    pages = [[0], [1, 2], [3, 4, 5]]
    inputs = ModelInputs.build([i.tolist() for i in ids], [0, 0, 0], pages, output_rows=range(sum(lengths)))
    actual = decoder(inputs, KVCache.zeros(config, 6))
    torch.testing.assert_close(actual, expected, atol=2e-4, rtol=1e-4)


def test_the_shipped_format_is_mxfp8_but_for_norms_and_routers(tmp_path: Path) -> None:
    model, config = small_model(tmp_path / "trained")
    export(model, dataclasses.replace(config), tmp_path / "exported", quantized=True)
    from safetensors import safe_open

    with safe_open(tmp_path / "exported" / "model.safetensors", "pt") as file:
        types = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    matrices = {name for name in types if f"{name}_scale_inv" in types}
    assert "language_model.model.embed_tokens.weight" in matrices
    assert all(types[name] == torch.float8_e4m3fn for name in matrices)
    assert all(types[f"{name}_scale_inv"] == torch.uint8 for name in matrices)
    rest = {name for name in types if name not in matrices and not name.endswith("_scale_inv")}
    eyes = {name for name in rest if name.startswith(names.OTHER_TOWERS)}
    assert {name for name in eyes if not name.endswith(".bias") and "norm" not in name} == {names.PATCH_EMBEDDING}
    rest -= eyes
    assert {name.rsplit(".", 2)[-2] for name in rest} <= {
        "input_layernorm", "post_attention_layernorm", "norm", "q_norm", "k_norm", "index_q_norm", "index_k_norm",
        "gate", "block_sparse_moe",
    }  # fmt: skip
