"""Images in the engine: their vectors stand where they belong, and no page is taken for that of another picture."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.inputs import ModelInputs, VisualInputs
from m3_model.loading import load_decoder
from m3_runtime.config import PAGE_TOKENS, EngineConfig
from m3_runtime.disk_cache import DiskCache
from m3_runtime.engine import Engine
from m3_runtime.page_file import first_name, next_name
from m3_runtime.pages import PagePool
from m3_runtime.prefix_cache import PrefixCache
from m3_runtime.request import PrefillProgress, Request, SamplingParams, TokenOutput
from m3_runtime.visuals import Encodings, Visual, token_keys
from tests.runtime.conftest import small_cache

PAGES = 40


@pytest.fixture(scope="module")
def decoder(seeing_folder: Path) -> Decoder:
    return load_decoder(seeing_folder)


def engine(decoder: Decoder, *, chunk: int = 512, disk: Path | None = None, encoding_bytes: int = 2**20) -> Engine:
    cache = KVCache.zeros(decoder.config, PAGES)
    kept = None
    if disk is not None:
        kept = DiskCache(disk, "seeing", b"weights", page_bytes=cache.bytes_per_page, max_bytes=10**9)
    config = EngineConfig(
        num_pages=PAGES, max_context=800, vocab_size=400, prefill_chunk=chunk, encoding_bytes=encoding_bytes
    )
    return Engine(decoder, cache, config, kept)


class Picture:
    """Noise of 20 x 10 tokens, and how often its pixels were asked for."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.pixels = torch.randint(256, (2, 3, 560, 280), generator=generator, dtype=torch.uint8)
        self.key = bytes([seed]) * 32
        self.asked = 0

    def at(self, start: int) -> Visual:
        return Visual(key=self.key, runs=(range(start, start + 200),), frames=self.frames)

    def frames(self) -> torch.Tensor:
        self.asked += 1
        return self.pixels


TEXT = [random.Random(1).randrange(380) for _ in range(400)]
MARK = 390


def prompt(*pictures: Picture) -> Request:
    """150 tokens of text, then each picture with ten more behind it."""
    ids, visuals = TEXT[:150], []
    for number, picture in enumerate(pictures):
        visuals.append(picture.at(len(ids)))
        ids = [*ids, *[MARK] * 200, *TEXT[150 + 10 * number :][:10]]
    return Request(prompt=ids, visuals=visuals, sampling=SamplingParams(temperature=0, max_tokens=6))


def reference(decoder: Decoder, request: Request) -> torch.Tensor:
    """Log-probabilities after the prompt, in one pass and without any part of the engine."""
    assert decoder.vision is not None
    rows = [place for visual in request.visuals for run in visual.runs for place in run]
    vectors = torch.cat([decoder.vision(visual.frames()) for visual in request.visuals])
    visual = VisualInputs(rows_N=torch.tensor(rows), vectors_NC=vectors)
    inputs = ModelInputs.build([list(request.prompt)], [0], [list(range(PAGES))], visual=visual)
    return torch.log_softmax(decoder(inputs, KVCache.zeros(decoder.config, PAGES))[0, :400], dim=-1)


def answer(engine: Engine, request: Request) -> tuple[list[int], int]:
    """The tokens of the answer, and how many tokens of the prompt were not computed."""
    outputs = list(engine.stream(request))
    (cached,) = {output.cached_tokens for output in outputs if isinstance(output, PrefillProgress)}
    return [i for output in outputs if isinstance(output, TokenOutput) for i in output.token_ids], cached


@pytest.mark.parametrize("chunk", [512, 150, 37])
def test_scores_are_those_of_one_pass_whatever_the_chunks(decoder: Decoder, chunk: int) -> None:
    request = prompt(Picture(1), Picture(2))
    expected = reference(decoder, request)
    other = reference(decoder, prompt(Picture(2), Picture(1)))
    assert (expected - other).abs().max() > 0.01  # so that the pictures matter in this test
    runs = engine(decoder, chunk=chunk)
    for _ in range(2):  # the second time on the pages of the first
        found = runs.score(request.prompt, [[token] for token in range(0, 400, 20)], request.visuals)
        torch.testing.assert_close(torch.tensor(found), expected[::20], atol=1e-4, rtol=0)
    assert answer(runs, request)[0][0] == int(expected.argmax())
    (best, *_) = runs.search(request, 3, max_tokens=1)
    assert (best.token_ids, best.logprob) == ((int(expected.argmax()),), pytest.approx(float(expected.max()), abs=1e-4))


def test_sequences_with_different_pictures_in_one_batch_do_not_mix(decoder: Decoder) -> None:
    requests = [prompt(Picture(1)), prompt(Picture(2)), prompt(Picture(1), Picture(3))]
    alone = [answer(engine(decoder), request)[0] for request in requests]
    together = engine(decoder, chunk=60)
    ids = [together.add(request) for request in requests]
    found: dict[int, list[int]] = {i: [] for i in ids}
    while together.has_work:
        for output in together.step():
            if isinstance(output, TokenOutput):
                found[output.request_id] += output.token_ids
    assert [found[i] for i in ids] == alone


def test_another_picture_of_the_same_size_shares_only_what_comes_before_it(decoder: Decoder, tmp_path: Path) -> None:
    """In memory, and on disk for the next process."""
    first, second = (prompt(Picture(seed), Picture(3)) for seed in (1, 2))
    assert list(first.prompt) == list(second.prompt)
    expected = [answer(engine(decoder), request)[0] for request in (first, second)]
    runs = engine(decoder, disk=tmp_path)
    assert answer(runs, first) == (expected[0], 0)
    assert answer(runs, second) == (expected[1], 128)
    assert answer(runs, first) == (expected[0], 512)
    assert answer(runs, second) == (expected[1], 512)
    runs.close()
    again = engine(decoder, disk=tmp_path)
    assert answer(again, prompt(Picture(9), Picture(3)))[1] == 128
    assert answer(again, second) == (expected[1], 512)
    assert answer(again, first) == (expected[0], 512)


contents = st.lists(st.tuples(st.sampled_from([b"a" * 32, b"b" * 32, None]), st.integers(1, 200)), max_size=6)


def keys_of(parts: list[tuple[bytes | None, int]]) -> tuple[list[int], list[Visual]]:
    """A prompt of text (None) and pictures of some tokens, with a token of text behind each."""
    ids: list[int] = []
    visuals = []
    for key, count in parts:
        if key is not None:
            visuals.append(Visual(key=key, runs=(range(len(ids), len(ids) + count),), frames=lambda: torch.empty(0)))
        ids += [MARK if key else 7] * count + [8]
    return ids, visuals


@given(contents, contents)
def test_pages_are_shared_exactly_as_far_as_tokens_and_pictures_are_equal(
    one: list[tuple[bytes | None, int]], other: list[tuple[bytes | None, int]]
) -> None:
    keys, other_keys = (token_keys(*keys_of(parts)) for parts in (one, other))
    equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(keys, other_keys, strict=False)))
    pool = PagePool(small_cache(20), 20)
    tree = PrefixCache(pool)
    pages = pool.allocate(len(keys) // PAGE_TOKENS)
    tree.insert(keys, pages)
    assert tree.acquire(other_keys) == pages[: equal // PAGE_TOKENS]
    page, other_page = keys[:PAGE_TOKENS], other_keys[:PAGE_TOKENS]
    start = first_name(b"")
    assert (next_name(start, page) == next_name(start, other_page)) == (page == other_page)


def test_keys_are_the_ids_but_where_a_picture_stands() -> None:
    picture = Visual(key=b"k" * 32, runs=(range(2, 4), range(5, 6)), frames=lambda: torch.empty(0))
    assert token_keys([1, 2, 3, 3, 4, 3, 3], [picture]) == [1, 2, b"k" * 32, b"k" * 32, 4, b"k" * 32, 3]
    assert token_keys([1, 2, 3], [picture]) == [1, 2, b"k" * 32]
    assert list(picture.between(3, 9)) == [(1, range(3, 4)), (2, range(5, 6))]


def test_a_picture_is_encoded_once_and_not_at_all_where_its_pages_are_known(decoder: Decoder) -> None:
    picture, runs = Picture(1), engine(decoder, chunk=30)
    answer(runs, prompt(picture))
    assert picture.asked == 1
    assert runs.runner.encodings is not None
    assert runs.runner.encodings.num_bytes == 200 * decoder.config.hidden_size * 4
    fresh = engine(decoder)
    answer(fresh, prompt(picture))
    assert decoder.vision is not None
    fresh.runner.encodings = Encodings(decoder.vision, 0)
    asked = picture.asked
    request = Request(prompt=[*prompt(picture).prompt, *TEXT[:90]], visuals=[picture.at(150)])
    assert fresh.score(request.prompt, [[1]], request.visuals)[0] < 0
    assert picture.asked == asked + 1  # the last tokens of the picture are in a page that was not whole


def test_of_encodings_those_used_last_are_kept() -> None:
    calls: list[int] = []

    def encode(frames: torch.Tensor) -> torch.Tensor:
        calls.append(int(frames))
        return torch.zeros(10, 2)

    encodings = Encodings(encode, 200)
    visuals = [Visual(key=bytes([i]), runs=(), frames=lambda i=i: torch.tensor(i)) for i in range(4)]  # type: ignore[misc]
    for i in (0, 1, 0, 2, 0, 1):  # 80 bytes each: two fit
        encodings.get(visuals[i])
    assert calls == [0, 1, 2, 1]
    assert encodings.num_bytes == 160
    alone = Encodings(encode, 0)
    for i in (3, 3):
        alone.get(visuals[i])
    assert calls[4:] == [3]


def test_what_does_not_fit_together_is_refused(decoder: Decoder, folder: Path) -> None:
    request = prompt(Picture(1))
    with pytest.raises(ValueError, match="ends before its images"):
        engine(decoder).add(Request(prompt=request.prompt[:250], visuals=request.visuals))
    with pytest.raises(ValueError, match="reads text only"):
        engine(load_decoder(folder)).add(request)
