"""The same weights give the same text on a GPU, through the kernels, as on a CPU, through their references."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
import torch

from m3_model import attention, names
from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.inputs import ModelInputs
from m3_model.loading import load_decoder
from m3_model.offload import ExpertPlacement
from m3_model.random_checkpoint import tiny_config, tiny_vision_config, write_random_checkpoint
from m3_model.tokenizer import Tokenizer
from m3_runtime.chat.session import ChatEngine
from m3_runtime.engine import Engine
from m3_runtime.request import Request, SamplingParams, TokenOutput

FOLDER = Path(names.__file__).parent / "nano"
SHORT = "def total(prices):\n    result = 1\n    for price in prices:\n        result +="
PAST_THE_LIMIT = inspect.getsource(attention) * 3
"""More tokens than all chosen blocks hold, so that blocks are really chosen."""
CHUNK = 512


def greedy(decoder: Decoder, ids: Sequence[int], count: int, device: str) -> tuple[list[int], torch.Tensor]:
    """(the most likely next tokens, all logits they were read from), the prompt in chunks and then token by token."""
    size = decoder.config.block_size
    pages = list(range(-(-(len(ids) + count) // size)))[::-1]
    cache = KVCache.zeros(decoder.config, len(pages), device=device)
    found: list[int] = []
    rows = []
    chunks = [list(ids[i : i + CHUNK]) for i in range(0, len(ids), CHUNK)]
    start = 0
    while len(found) < count:
        new = chunks.pop(0) if chunks else [found[-1]]
        logits = decoder(ModelInputs.build([new], [start], [pages], page_size=size, device=device), cache)[-1]
        start += len(new)
        if not chunks:
            found.append(int(logits.argmax()))
            rows.append(logits.float().cpu())
    return found, torch.stack(rows)


@pytest.mark.gpu
@pytest.mark.parametrize("text", [SHORT, PAST_THE_LIMIT], ids=["short", "past the limit"])
def test_nano_says_the_same_on_a_gpu(text: str) -> None:
    ids = Tokenizer.from_folder(FOLDER).encode(text, special=False)[:3000]
    expected, logits = greedy(load_decoder(FOLDER), ids, 48, "cpu")
    got, on_gpu = greedy(load_decoder(FOLDER, device="cuda"), ids, 48, "cuda")
    assert got == expected
    torch.testing.assert_close(on_gpu, logits, atol=1e-3, rtol=1e-3)


def answers(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Greedy continuations of all prompts, which run together."""
    sampling = SamplingParams(temperature=0, max_tokens=24)
    found = {engine.add(Request(prompt=prompt, sampling=sampling)): list[int]() for prompt in prompts}
    while engine.has_work:
        for output in engine.step():
            if isinstance(output, TokenOutput):
                found[output.request_id] += output.token_ids
    return list(found.values())


def loaded(device: str, *, cuda_graphs: bool = True) -> Engine:
    return ChatEngine.load("nano", device=device, cuda_graphs=cuda_graphs).engine


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 3])
def test_the_engine_says_the_same_on_a_gpu_with_graphs_and_without(count: int) -> None:
    ids = Tokenizer.from_folder(FOLDER).encode(PAST_THE_LIMIT, special=False)
    prompts = [ids[100 * i : 100 * i + 400 + 50 * i] for i in range(count)]
    expected = answers(loaded("cpu"), prompts)
    graphed, plain = loaded("cuda"), loaded("cuda", cuda_graphs=False)
    assert answers(plain, prompts) == expected
    assert answers(graphed, prompts) == expected
    assert graphed.runner.graphs is not None
    assert graphed.runner.graphs.sizes


@pytest.mark.gpu
@pytest.mark.parametrize(("where", "bits"), [("streamed", 16), ("streamed", 4), ("cpu", 16)])
def test_experts_elsewhere_give_the_same_logits(
    where: Literal["streamed", "cpu"], bits: Literal[16, 4], tmp_path: Path
) -> None:
    config = tiny_config(num_experts=8)
    write_random_checkpoint(tmp_path, config, dtype=torch.float32)
    ids = torch.randint(config.vocab_size, (600,), generator=torch.Generator().manual_seed(1)).tolist()
    beside = load_decoder(tmp_path, device="cuda", experts=ExpertPlacement(bits=bits))
    elsewhere = load_decoder(tmp_path, device="cuda", experts=ExpertPlacement(where=where, bits=bits, slots=3))
    expected, got = (greedy(decoder, ids, 8, "cuda")[1] for decoder in (beside, elsewhere))
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.gpu
def test_images_look_the_same_on_a_gpu(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, tiny_config(vision=tiny_vision_config()))
    pixels = torch.randint(256, (10, 3, 56, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected, got = (load_decoder(tmp_path, device=device).vision for device in ("cpu", "cuda"))
    assert expected is not None
    assert got is not None
    torch.testing.assert_close(got(pixels).cpu(), expected(pixels), atol=1e-3, rtol=1e-3)
