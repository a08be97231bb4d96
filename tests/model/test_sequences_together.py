"""Sequences of one step do not influence each other, and forks equal independent runs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from m3_model.cache import KVCache
from m3_model.config import M3Config
from m3_model.decoder import Decoder
from m3_model.inputs import ModelInputs
from m3_model.loading import load_decoder
from m3_model.random_checkpoint import tiny_config, write_random_checkpoint

SPARSE = {"block_size": 8, "top_k_blocks": 2}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_random_checkpoint(folder, tiny_config(**SPARSE), seed=2)
    return load_decoder(folder)


def build(config: M3Config, *args: Any, **kwargs: Any) -> ModelInputs:
    return ModelInputs.build(*args, page_size=config.block_size, **kwargs)


@pytest.mark.parametrize("top_k_blocks", [2, 100])
@pytest.mark.parametrize("prompt", [1, 7, 8, 9, 31, 32, 40])
def test_a_fork_equals_an_independent_run(
    prompt: int, top_k_blocks: int, make_oracle: Callable[..., Any], run: Any
) -> None:
    """Forks share the full pages of the prompt and copy its partial last page."""
    oracle = make_oracle(tiny_config(block_size=8, top_k_blocks=top_k_blocks))
    config, S = oracle.config, oracle.config.block_size
    ids = run.tokens(prompt, config)
    endings = [run.tokens(12, config, seed=10 + i) for i in range(5)]
    cache = KVCache.zeros(config, 64)
    full, partial = prompt // S, prompt % S
    free = iter(range(63, -1, -1))
    pages = [next(free) for _ in range(full + 3)]
    oracle.decoder(build(config, [ids], [0], [pages]), cache)
    tables = []
    for _ in endings:
        own = [next(free) for _ in range(3)]
        if partial:
            cache.copy_pages([pages[full]], [own[0]], tokens=partial)
        tables.append(pages[:full] + own)
    got = []
    for step in range(12):
        inputs = build(config, [[e[step]] for e in endings], [prompt + step] * 5, tables)
        got.append(oracle.decoder(inputs, cache))
    for i, ending in enumerate(endings):
        expected = oracle.expected(ids + ending)[prompt:]
        torch.testing.assert_close(torch.stack(got)[:, i], expected, atol=1e-4, rtol=0)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 40),  # tokens of the common prompt in the cache
            st.integers(0, 20),  # own tokens in the cache
            st.integers(1, 40),  # new tokens
        ),
        min_size=1,
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_a_mixed_batch_equals_single_runs(decoder: Decoder, sequences: list[tuple[int, int, int]], random: Any) -> None:
    """Prompts, parts of prompts, verifications and single tokens in any mixture, with and without shared pages."""
    config, S = decoder.config, decoder.config.block_size
    common = [random.randrange(config.vocab_size) for _ in range(40)]
    cache = KVCache.zeros(config, 200)
    free = list(range(200))
    random.shuffle(free)
    common_pages = [free.pop() for _ in range(5)]
    decoder(build(config, [common], [0], [common_pages]), cache)
    texts, starts, tables = [], [], []
    for shared, own, new in sequences:
        shared -= shared % S
        text = common[:shared] + [random.randrange(config.vocab_size) for _ in range(own + new)]
        table = common_pages[: shared // S] + [free.pop() for _ in range(-(-(own + new) // S))]
        if own:
            decoder(build(config, [text[shared : shared + own]], [shared], [table]), cache)
        texts.append(text)
        starts.append(shared + own)
        tables.append(table)
    together = decoder(build(config, [t[s:] for t, s in zip(texts, starts, strict=True)], starts, tables), cache)
    for text, logits in zip(texts, together, strict=True):
        alone = decoder(build(config, [text], [0], [list(range(20))]), KVCache.zeros(config, 20))[0]
        torch.testing.assert_close(logits, alone, atol=1e-4, rtol=0)


def test_wanted_rows_come_in_the_order_asked_for(decoder: Decoder, run: Any) -> None:
    ids = run.tokens(30, decoder.config)
    pages = [[3, 1, 2, 0]]
    every = decoder(build(decoder.config, [ids], [0], pages, output_rows=range(30)), KVCache.zeros(decoder.config, 4))
    some = decoder(build(decoder.config, [ids], [0], pages, output_rows=[29, 0, 7]), KVCache.zeros(decoder.config, 4))
    torch.testing.assert_close(some, every[[29, 0, 7]])


@pytest.mark.parametrize(
    ("token_ids", "starts", "pages", "message"),
    [
        ([[1]], [0], [], "give one each"),
        ([[]], [0], [[0]], "sequence 0: 0 new tokens"),
        ([[1], [1] * 9], [0, 0], [[0], [1]], "sequence 1: 9 tokens need 2 pages of 8, got 1"),
    ],
)
def test_inputs_that_do_not_fit_together_are_refused(
    token_ids: list[list[int]], starts: list[int], pages: list[list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ModelInputs.build(token_ids, starts, pages, page_size=8)


def test_pages_of_another_size_are_refused(decoder: Decoder) -> None:
    with pytest.raises(ValueError, match="this model needs 8"):
        decoder(ModelInputs.build([[1]], [0], [[0]], page_size=128), KVCache.zeros(decoder.config, 1))
