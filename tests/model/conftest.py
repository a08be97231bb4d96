"""The oracle: transformers' own minimax_m3_vl text model, loaded with the same tensors as ours."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.transformers_model import transformers_model
from m3_model.cache import KVCache
from m3_model.config import M3Config
from m3_model.decoder import Decoder
from m3_model.inputs import ModelInputs
from m3_model.loading import load_decoder
from m3_model.random_checkpoint import write_random_checkpoint


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Oracle:
    """One random checkpoint, seen by transformers and by us."""

    def __init__(self, folder: Path, config: M3Config, *, quantized: bool = False) -> None:
        write_random_checkpoint(folder, config, seed=1, quantized=quantized, dtype=torch.float32)
        self.config = config
        self.decoder: Decoder = load_decoder(folder)
        self.theirs = transformers_model(config, folder)

    def expected(self, token_ids: Sequence[int]) -> Tensor:
        """Logits of every token, [T, V]."""
        with torch.inference_mode():
            logits: Tensor = self.theirs(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits
        return logits[0]


def random_tokens(count: int, config: M3Config, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (count,), generator=generator).tolist()


def run_chunks(decoder: Decoder, token_ids: Sequence[int], sizes: Sequence[int], *, scatter: bool = True) -> Tensor:
    """Logits of every token when the tokens come in chunks of these sizes; pages lie in no order if `scatter`."""
    config = decoder.config
    num_pages = -(-len(token_ids) // config.block_size)
    order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(3)).tolist()
    pages = [page + 1 for page in order] if scatter else list(range(num_pages))
    cache = KVCache.zeros(config, num_pages + 1, dtype=decoder.dtype)
    out, start = [], 0
    for size in sizes:
        inputs = ModelInputs.build(
            [list(token_ids[start : start + size])],
            [start],
            [pages],
            page_size=config.block_size,
            output_rows=range(min(size, len(token_ids) - start)),
        )
        out.append(decoder(inputs, cache))
        start += size
    assert start >= len(token_ids)
    return torch.cat(out)


@pytest.fixture
def make_oracle(tmp_path: Path) -> Callable[..., Oracle]:
    def make(config: M3Config, *, quantized: bool = False) -> Oracle:
        return Oracle(tmp_path / "checkpoint", config, quantized=quantized)

    return make


class Run:
    """The helpers above, as a fixture: test modules have no package to import them from."""

    tokens = staticmethod(random_tokens)
    chunks = staticmethod(run_chunks)


@pytest.fixture
def run() -> type[Run]:
    return Run
