"""Guessed tokens save steps and change nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.loading import load_decoder
from m3_runtime.chat.session import ChatEngine
from m3_runtime.config import EngineConfig
from m3_runtime.engine import Engine
from m3_runtime.request import Request, SamplingParams, TokenOutput
from m3_runtime.speculation import Lookup


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Decoder:
    return load_decoder(folder)


def engine(decoder: Decoder, draft_tokens: int, pages: int = 24) -> Engine:
    config = EngineConfig(num_pages=pages, max_context=1024, vocab_size=500, draft_tokens=draft_tokens)
    return Engine(decoder, KVCache.zeros(decoder.config, pages), config)


def run(engine: Engine, request: Request) -> tuple[list[int], int]:
    """The tokens, and the steps that they took."""
    request_id = engine.add(request)
    tokens: list[int] = []
    steps = 0
    while engine.has_work:
        for output in engine.step():
            if isinstance(output, TokenOutput):
                assert output.request_id == request_id
                tokens += output.token_ids
        steps += 1
    return tokens, steps


def test_what_followed_the_last_occurrence_of_the_longest_end_is_the_draft() -> None:
    assert Lookup().draft([1, 2, 3, 9, 2, 3, 4, 5, 6, 7, 2, 3], 3) == [4, 5, 6]
    assert Lookup().draft([1, 2, 3, 9, 2, 3, 4, 8, 1, 2, 3], 2) == [9, 2]  # three tokens agree here, only two there
    assert Lookup().draft([7, 7, 7], 4) == [7]
    assert Lookup().draft([1, 2, 3, 4], 4) == Lookup().draft([], 4) == Lookup().draft([5], 4) == []
    # The bytes of [256, 256] stand in those of [65536, 65537, 0], across the borders of tokens.
    assert Lookup().draft([65536, 65537, 0, 3, 256, 256], 4) == []


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 8))
def test_a_lookup_that_grows_finds_what_a_new_one_finds(tokens: list[int], limit: int) -> None:
    grown = Lookup()
    for end in range(len(tokens) + 1):
        seen = tokens[:end]
        draft = grown.draft(seen, limit)
        assert draft == Lookup().draft(seen, limit)
        assert not draft or any(
            seen[i - 2 : i] == seen[-2:] and seen[i : i + len(draft)] == draft for i in range(2, end)
        )


def test_drafts_become_short_where_they_fail_and_long_where_they_come_true() -> None:
    lookup, text = Lookup(), [1, 2, *range(10, 30), 1, 2]
    lengths = []
    for right in (0, 0, 0, 0, 1, 2):
        draft = lookup.draft(text, 8)
        lengths.append(len(draft))
        lookup.learn(len(draft), right)
    assert lengths == [8, 4, 2, 1, 1, 2]


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_the_tokens_are_those_of_an_engine_without_drafts(decoder: Decoder, temperature: float, seed: int) -> None:
    """Random models soon repeat themselves, so that drafts come true, in part come true, and fail."""
    numbers = random.Random(seed)
    block = [numbers.randrange(500) for _ in range(20)]
    prompt = block * 4 + [numbers.randrange(500) for _ in range(seed * 30)] + block[:7]
    sampling = SamplingParams(temperature=temperature, top_k=2 if temperature else 0, seed=seed, max_tokens=150)
    request = Request(prompt=prompt, sampling=sampling)
    plain, plain_steps = run(engine(decoder, 0), request)
    found, steps = run(engine(decoder, 7), request)
    assert found == plain
    assert plain_steps == 150
    assert temperature or steps < plain_steps


def test_a_stop_token_in_a_draft_ends_the_answer_there_and_every_page_comes_back(decoder: Decoder) -> None:
    prompt = [random.Random(1).randrange(500) for _ in range(20)] * 4
    plain, _ = run(engine(decoder, 0), Request(prompt=prompt, sampling=SamplingParams(temperature=0, max_tokens=100)))
    for stop in set(plain):
        sampling = SamplingParams(temperature=0, max_tokens=100, stop_token_ids=(stop,))
        guessing = engine(decoder, 7)
        found, _ = run(guessing, Request(prompt=prompt, sampling=sampling))
        assert found == plain[: plain.index(stop) + 1]
        assert guessing.prefix_cache is not None
        assert guessing.pool.num_free + guessing.prefix_cache.num_pages == guessing.pool.num_pages


def test_a_rejected_draft_leaves_nothing_that_a_later_prompt_could_find(decoder: Decoder) -> None:
    """The prefix cache keeps pages of computed tokens: those of a draft that failed must not be among them."""
    numbers = random.Random(3)
    prompt = [numbers.randrange(500) for _ in range(30)] * 4
    guessing, plain = engine(decoder, 7), engine(decoder, 0)
    sampling = SamplingParams(temperature=1, seed=1, max_tokens=200)
    answer, _ = run(guessing, Request(prompt=prompt, sampling=sampling))
    again = Request(prompt=prompt + answer, sampling=SamplingParams(temperature=0, max_tokens=20))
    assert run(guessing, again)[0] == run(plain, again)[0]


def test_a_cancelled_answer_stops_within_a_step(decoder: Decoder) -> None:
    guessing = engine(decoder, 7)
    stream = guessing.stream(Request(prompt=[5, 6, 7] * 20, sampling=SamplingParams(temperature=0, max_tokens=300)))
    next(output for output in stream if isinstance(output, TokenOutput))
    stream.close()
    assert not guessing.has_work
    assert guessing.pool.num_used == 0


def test_beside_others_no_sequence_is_given_a_draft(decoder: Decoder) -> None:
    guessing = engine(decoder, 7)
    request = Request(prompt=[5, 6, 7] * 20, sampling=SamplingParams(temperature=0, max_tokens=40))
    first, _ = guessing.add(request), guessing.add(request)
    while len(guessing._scheduler.running) == 2:
        assert len([o for o in guessing.step() if isinstance(o, TokenOutput) and o.request_id == first]) <= 1


def test_an_answer_bound_to_a_grammar_is_the_same(chat: ChatEngine, tools: list[dict[str, object]]) -> None:
    from m3_runtime.chat.options import ChatOptions

    code = "def reorder_quantity(stock, level):\n    return max(0, level - stock.count)\n" * 3
    messages = [{"role": "user", "content": f"path inventory/stock.py\n{code}"}]
    for seed in range(3):
        options = ChatOptions(tool_choice="edit_line", thinking="disabled", seed=seed, top_k=3, max_tokens=120)
        answers = []
        for draft_tokens in (0, 7):
            turn = chat.prepare(messages, tools, options)
            config = EngineConfig(
                num_pages=24, max_context=1024, vocab_size=chat.engine.config.vocab_size, draft_tokens=draft_tokens
            )
            decoder = chat.engine.runner.decoder
            answers.append(run(Engine(decoder, KVCache.zeros(decoder.config, 24), config), turn.request)[0])
        assert answers[0] == answers[1]
