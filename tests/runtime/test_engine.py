"""The engine: the same tokens whatever the batch, the chunks and the cache, and nothing left behind."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path

import pytest
import torch

from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.inputs import ModelInputs
from m3_model.loading import load_decoder
from m3_runtime.config import EngineConfig
from m3_runtime.engine import Engine
from m3_runtime.request import Output, PrefillProgress, PromptTooLong, Request, SamplingParams, TokenOutput

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="session")
def decoder(folder: Path) -> Decoder:
    return load_decoder(folder)


def _engine(decoder: Decoder, *, pages: int = 24, context: int = 1024, **settings: object) -> Engine:
    config = EngineConfig(num_pages=pages, max_context=context, vocab_size=500, **settings)  # type: ignore[arg-type]
    return Engine(decoder, KVCache.zeros(decoder.config, pages), config)


def _prompt(length: int, seed: int = 0) -> list[int]:
    numbers = random.Random(seed)
    return [numbers.randrange(500) for _ in range(length)]


def _tokens(outputs: list[Output]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for output in outputs:
        if isinstance(output, TokenOutput):
            found.setdefault(output.request_id, []).extend(output.token_ids)
    return found


def _run(engine: Engine, *requests: Request) -> list[list[int]]:
    ids = [engine.add(request) for request in requests]
    outputs: list[Output] = []
    while engine.has_work:
        outputs += engine.step()
    found = _tokens(outputs)
    return [found[i] for i in ids]


def _reference(decoder: Decoder, prompt: list[int], count: int) -> list[int]:
    """Greedy by whole prefills, without any part of the engine."""
    tokens = list(prompt)
    for _ in range(count):
        cache = KVCache.zeros(decoder.config, 12)
        row = decoder(ModelInputs.build([tokens], [0], [list(range(12))]), cache)[0, :500]
        tokens.append(int(row.argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("length", [1, 127, 128, 129, 400])
def test_greedy_equals_recomputing_everything(decoder: Decoder, length: int) -> None:
    prompt = _prompt(length)
    assert _run(_engine(decoder), Request(prompt=prompt, sampling=GREEDY)) == [_reference(decoder, prompt, 12)]


@pytest.mark.parametrize("chunk", [1, 50, 128, 1000])
def test_chunks_do_not_change_greedy_tokens(decoder: Decoder, chunk: int) -> None:
    prompt = _prompt(300)
    found = _run(_engine(decoder, prefill_chunk=chunk), Request(prompt=prompt, sampling=GREEDY))
    assert found == _run(_engine(decoder), Request(prompt=prompt, sampling=GREEDY))


def test_a_prefix_hit_changes_no_token_and_is_reported(decoder: Decoder) -> None:
    engine = _engine(decoder)
    request = Request(prompt=_prompt(300), sampling=GREEDY)
    first = list(engine.stream(request))
    second = list(engine.stream(request))
    assert _tokens(first).popitem()[1] == _tokens(second).popitem()[1]
    progress = [output for output in second if isinstance(output, PrefillProgress)]
    assert [p.cached_tokens for p in progress] == [256]
    assert progress[-1].done_tokens == progress[-1].total_tokens == 300


@pytest.mark.parametrize("length", [128, 256])
def test_a_prompt_that_is_known_to_its_last_token_is_answered_all_the_same(decoder: Decoder, length: int) -> None:
    engine = _engine(decoder)
    request = Request(prompt=_prompt(length), sampling=GREEDY)
    assert _run(engine, request) == _run(engine, request) == [_reference(decoder, _prompt(length), 12)]
    assert engine.score(_prompt(length), [[5]]) == pytest.approx(
        _engine(decoder).score(_prompt(length), [[5]]), abs=1e-4
    )


def test_a_longer_prompt_uses_the_pages_of_a_shorter_answered_one(decoder: Decoder) -> None:
    engine = _engine(decoder)
    prompt = _prompt(250)
    (answer,) = _run(engine, Request(prompt=prompt, sampling=GREEDY))
    longer = Request(prompt=[*prompt, *answer, 7, 8, 9], sampling=GREEDY)
    outputs = list(engine.stream(longer))
    assert isinstance(outputs[0], PrefillProgress)
    assert outputs[0].cached_tokens == 256
    assert _tokens(outputs).popitem()[1] == _run(_engine(decoder, prefix_cache=False), longer)[0]


def test_a_sequence_does_not_depend_on_its_batch(decoder: Decoder) -> None:
    sampling = [SamplingParams(seed=i, max_tokens=10 + i, temperature=0.8, top_k=20, top_p=0.9) for i in range(5)]
    requests = [Request(prompt=_prompt(40 + 60 * i, i), sampling=s) for i, s in enumerate(sampling)]
    together = _run(_engine(decoder, prefill_chunk=64), *requests)
    alone = [_run(_engine(decoder), request)[0] for request in requests]
    assert together == alone


def test_the_same_seed_repeats_and_another_differs(decoder: Decoder) -> None:
    def once(seed: int) -> list[int]:
        sampling = SamplingParams(seed=seed, max_tokens=20)
        return _run(_engine(decoder), Request(prompt=_prompt(30), sampling=sampling))[0]

    assert once(1) == once(1) != once(2)


def test_cancelling_frees_every_page(decoder: Decoder) -> None:
    engine = _engine(decoder, prefix_cache=False)
    first = engine.add(Request(prompt=_prompt(200), sampling=SamplingParams(max_tokens=100)))
    second = engine.add(Request(prompt=_prompt(20), sampling=SamplingParams(max_tokens=100)))
    engine.step()
    engine.cancel(first)
    engine.cancel(first)
    assert {o.request_id for o in engine.step()} == {second}
    engine.cancel(second)
    assert not engine.has_work
    assert engine.pool.num_free == engine.pool.num_pages


def test_closing_a_stream_cancels_it(decoder: Decoder) -> None:
    engine = _engine(decoder, prefix_cache=False)
    stream = engine.stream(Request(prompt=_prompt(200), sampling=SamplingParams(max_tokens=100)))
    next(stream)
    stream.close()
    assert not engine.has_work
    assert engine.pool.num_free == engine.pool.num_pages


def test_a_prompt_is_read_in_chunks_and_each_is_told(decoder: Decoder) -> None:
    outputs = list(_engine(decoder, prefill_chunk=128).stream(Request(prompt=_prompt(300), sampling=GREEDY)))
    progress = [(o.done_tokens, o.total_tokens) for o in outputs if isinstance(o, PrefillProgress)]
    assert progress == [(128, 300), (256, 300), (300, 300)]
    assert isinstance(outputs[3], TokenOutput)


def test_a_request_cancelled_within_its_prompt_takes_no_further_step(decoder: Decoder) -> None:
    engine = _engine(decoder, prefill_chunk=64, prefix_cache=False)
    request_id = engine.add(Request(prompt=_prompt(300), sampling=GREEDY))
    assert [o.done_tokens for o in engine.step() if isinstance(o, PrefillProgress)] == [64]
    engine.cancel(request_id)
    assert engine.step() == []
    assert engine.pool.num_free == engine.pool.num_pages


def test_an_answer_goes_on_in_every_step_that_reads_another_prompt(decoder: Decoder) -> None:
    engine = _engine(decoder, prefill_chunk=32)
    answering = engine.add(Request(prompt=_prompt(20), sampling=SamplingParams(temperature=0, max_tokens=50)))
    engine.step()
    reading = engine.add(Request(prompt=_prompt(300, 1), sampling=GREEDY))
    while True:
        outputs = engine.step()
        assert answering in _tokens(outputs)
        if reading in _tokens(outputs):
            break


def test_candidates_forked_with_seeds_are_the_same_in_a_replay(decoder: Decoder) -> None:
    def candidates(seeds: list[int]) -> list[list[int]]:
        engine = _engine(decoder)
        parent = engine.add(Request(prompt=_prompt(200), sampling=GREEDY))
        engine.step()
        ids = [engine.fork(parent, SamplingParams(seed=seed, max_tokens=12)) for seed in seeds]
        outputs: list[Output] = []
        while engine.has_work:
            outputs += engine.step()
        return [_tokens(outputs)[i] for i in ids]

    first = candidates([1, 2, 3, 1])
    assert first == candidates([1, 2, 3, 1])
    assert first[0] == first[3]
    assert len({tuple(tokens) for tokens in first}) == 3
    assert candidates([3, 1]) == [first[2], first[0]]


def test_streams_that_alternate_keep_their_own_outputs(decoder: Decoder) -> None:
    engine = _engine(decoder)
    requests = [Request(prompt=_prompt(30, i), sampling=GREEDY) for i in range(2)]
    streams = [engine.stream(request) for request in requests]
    outputs: list[Output] = []
    while streams:
        for stream in list(streams):
            output = next(stream, None)
            if output is None:
                streams.remove(stream)
            else:
                outputs.append(output)
    assert list(_tokens(outputs).values()) == _run(_engine(decoder), *requests)


def test_a_fork_continues_like_an_independent_run(decoder: Decoder) -> None:
    engine = _engine(decoder)
    prompt = _prompt(200)
    parent = engine.add(Request(prompt=prompt, sampling=GREEDY))
    outputs = [*engine.step(), *engine.step(), *engine.step()]
    before = _tokens(outputs)[parent]
    child = engine.fork(parent, SamplingParams(temperature=0, max_tokens=20))
    while engine.has_work:
        outputs += engine.step()
    found = _tokens(outputs)
    expected = _reference(decoder, prompt, 20)
    assert found[parent] == expected[:12]
    assert before + found[child] == expected


def test_when_pages_run_out_the_youngest_waits_and_all_finish_right(decoder: Decoder) -> None:
    requests = [
        Request(prompt=_prompt(200 + i, i), sampling=SamplingParams(temperature=0, max_tokens=80)) for i in range(4)
    ]
    tight = _engine(decoder, pages=5, context=512)
    assert _run(tight, *requests) == [_run(_engine(decoder), r)[0] for r in requests]
    assert tight.prefix_cache is not None
    assert tight.pool.num_free + tight.prefix_cache.num_pages == 5


def test_a_stop_token_ends_the_answer_and_a_full_window_too(decoder: Decoder) -> None:
    expected = _reference(decoder, _prompt(50), 12)
    stop = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=(expected[5],))
    found = _run(_engine(decoder), Request(prompt=_prompt(50), sampling=stop))[0]
    assert found == expected[: expected.index(expected[5]) + 1]
    outputs = list(_engine(decoder, context=128).stream(Request(prompt=_prompt(120), sampling=GREEDY)))
    assert isinstance(outputs[-1], TokenOutput)
    assert outputs[-1].finish_reason == "length"
    assert len(_tokens(outputs).popitem()[1]) == 8


def test_what_cannot_run_is_refused_in_one_line(decoder: Decoder) -> None:
    engine = _engine(decoder, context=256)
    with pytest.raises(PromptTooLong, match="300 tokens and the window holds 256"):
        engine.add(Request(prompt=_prompt(300)))
    with pytest.raises(ValueError, match="empty"):
        engine.add(Request(prompt=[]))
    with pytest.raises(ValueError, match=r"outside 0\.\.499"):
        engine.add(Request(prompt=[500]))
    with pytest.raises(ValueError, match="needs 80 pages"):
        _engine(decoder, context=10240)


def test_scores_equal_the_sums_of_single_steps(decoder: Decoder) -> None:
    engine = _engine(decoder, prefill_chunk=64)
    prompt = _prompt(140)
    continuations = [_prompt(n, n) for n in (1, 5, 30, 0)]
    found = engine.score(prompt, continuations)
    for continuation, value in zip(continuations, found, strict=True):
        total, tokens = 0.0, list(prompt)
        for token in continuation:
            cache = KVCache.zeros(decoder.config, 4)
            row = decoder(ModelInputs.build([tokens], [0], [[0, 1, 2, 3]]), cache)[0, :500]
            total += float(torch.log_softmax(row, 0)[token])
            tokens.append(token)
        assert value == pytest.approx(total, abs=1e-3)
    assert engine.prefix_cache is not None
    assert engine.pool.num_free + engine.prefix_cache.num_pages == engine.pool.num_pages


@pytest.mark.parametrize(
    "sampling", [GREEDY, SamplingParams(temperature=0.7, top_p=0.8, top_k=9, seed=1, max_tokens=12)]
)
@pytest.mark.parametrize("draft_tokens", [0, 4])
def test_log_probabilities_are_those_of_the_whole_vocabulary(
    decoder: Decoder, sampling: SamplingParams, draft_tokens: int
) -> None:
    engine = _engine(decoder, draft_tokens=draft_tokens)
    prompt = [1, 2, 3, 4] * 40  # repeats, so that drafts are right at times
    plain = _run(engine, Request(prompt=prompt, sampling=sampling))[0]
    request_id = engine.add(Request(prompt=prompt, sampling=dataclasses.replace(sampling, logprobs=5)))
    outputs: list[Output] = []
    while engine.has_work:
        outputs += engine.step()
    assert _tokens(outputs)[request_id] == plain
    found = [one for output in outputs if isinstance(output, TokenOutput) for one in output.logprobs]
    assert [one.token_id for one in found] == plain
    whole = [engine.score(prompt, [plain[: i + 1]])[0] for i in range(len(plain))]
    assert list(itertools.accumulate(one.logprob for one in found)) == pytest.approx(whole, abs=1e-3)
    for one in found:
        best = dict(one.top)
        assert len(best) == 5
        assert sorted(best.values(), reverse=True) == list(best.values())
        assert best.get(one.token_id, one.logprob) == pytest.approx(one.logprob)
        assert one.logprob <= max(best.values())
