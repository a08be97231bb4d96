"""Loading: nothing is held twice, and a quantised model is its dequantised twin."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from m3_model import names
from m3_model.cache import KVCache
from m3_model.checkpoint import write_checkpoint
from m3_model.loading import load_decoder
from m3_model.quantization import dequantize, quantize
from m3_model.random_checkpoint import random_tensors, released_config, tiny_config, write_random_checkpoint
from m3_model.sizes import cache_bytes_per_token, count_parameters, weight_bytes

MEASURE = """
import dataclasses, re, sys, torch
from pathlib import Path
from m3_model.checkpoint import Checkpoint
from m3_model.loading import DecoderBuilder
from m3_model.tensor_files import TensorReader

def status(key):
    return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

def load(folder):
    checkpoint = Checkpoint.open(folder)
    reader = TensorReader(checkpoint.entries, mapped_bytes=4 << 20)
    return DecoderBuilder(dataclasses.replace(checkpoint, reader=reader), torch.bfloat16, "cpu").decoder()

torch.set_num_threads(1)
load(sys.argv[2])
before = status("VmRSS")
decoder = load(sys.argv[1])
print(status("VmHWM") - before)
"""
"""Prints how far the memory of a process grows at most while it loads; the small model before loads the libraries."""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of one program's memory")
@pytest.mark.parametrize("quantized", [False, True])
def test_the_peak_of_memory_is_one_model_and_a_little(quantized: bool, tmp_path: Path) -> None:
    config = tiny_config(hidden_size=256, expert_intermediate_size=512, num_experts=64)
    expected = weight_bytes(count_parameters(config), 2)
    write_random_checkpoint(tmp_path / "large", config, quantized=quantized)
    write_random_checkpoint(tmp_path / "small", tiny_config())
    command = [sys.executable, "-c", MEASURE, tmp_path / "large", tmp_path / "small"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def peak() -> int:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        return int(done.stdout)

    assert expected > 95e6
    # On a busy machine some runs hold megabytes more, of pages that the system maps ahead; none holds less.
    assert 0.9 * expected < min(peak() for _ in range(3)) < expected + 16e6


@pytest.mark.parametrize("shard_bytes", [None, 50_000])
def test_a_quantised_model_is_its_dequantised_twin(shard_bytes: int | None, tmp_path: Path) -> None:
    """Whatever the layout of the files, and however small the part of them that is mapped."""
    config = tiny_config()
    specs = names.text_tensors(config)
    matrices = {
        n for n, s in specs.items() if len(s.shape) == 2 and not s.float32 and n not in (names.EMBEDDING, names.HEAD)
    }
    tensors = random_tensors(config)
    twins = {n: dequantize(*quantize(t)) if n in matrices else t for n, t in tensors.items()}
    write_checkpoint(tmp_path / "mxfp8", config, tensors, quantized=matrices.__contains__, shard_bytes=shard_bytes)
    write_checkpoint(tmp_path / "bf16", config, twins)
    ours, theirs = (list(flat(load_decoder(tmp_path / kind, dtype=torch.bfloat16))) for kind in ("mxfp8", "bf16"))
    assert len(ours) == len(theirs) > 20
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def flat(part: Any) -> Iterator[torch.Tensor]:
    """All tensors of a decoder."""
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, tuple):
        for inner in part:
            yield from flat(inner)
    elif dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            yield from flat(getattr(part, field.name))


def test_a_loaded_model_does_not_need_its_files(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, tiny_config())
    decoder = load_decoder(tmp_path, dtype=torch.bfloat16)
    before = [tensor.clone() for tensor in flat(decoder)]
    file = tmp_path / "model.safetensors"
    with file.open("r+b") as stream:
        stream.write(b"\xff" * file.stat().st_size)
    assert all(torch.equal(one, other) for one, other in zip(before, flat(decoder), strict=True))


def test_sizes_are_those_of_the_loaded_model_and_its_cache(tmp_path: Path) -> None:
    config = tiny_config()
    write_random_checkpoint(tmp_path, config)
    loaded = sum(tensor.nbytes for tensor in flat(load_decoder(tmp_path, dtype=torch.bfloat16)))
    # The norms of heads are shared in the file and stand once a head in memory.
    assert loaded == pytest.approx(weight_bytes(count_parameters(config), 2), rel=0.02)
    cache = KVCache.zeros(config, 3, dtype=torch.bfloat16)
    assert cache_bytes_per_token(config, 2) * config.block_size == cache.bytes_per_page


def test_the_release_has_its_published_sizes() -> None:
    config = released_config()
    parameters = count_parameters(config)
    assert (parameters.total, parameters.active) == (426_174_572_928, 23_504_087_424)
    assert (cache_bytes_per_token(config, 2), cache_bytes_per_token(config, 1)) == (137_472, 68_736)
