"""Search: it finds what enumeration finds, and leaves no page behind."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch

from m3_model.cache import KVCache
from m3_model.inputs import ModelInputs
from m3_runtime.chat.events import Candidate, Finish
from m3_runtime.chat.options import ChatOptions
from m3_runtime.chat.session import ChatEngine
from m3_runtime.engine import Engine
from m3_runtime.request import Matcher, Request, SamplingParams
from m3_runtime.sampling import mask_logits

Tools = list[dict[str, Any]]
MESSAGES = [{"role": "user", "content": "The test fails in inventory/stock.py. " * 12}]
FIXED = {
    "path": ["inventory/stock.py", "a.py"],
    "line": [f"L{i}|" for i in (3, 8, 14, 30)],
    "text": ["return x", "return x + 1", "return x + 1 + level"],
}
CALL_OPTIONS = ChatOptions(tool_choice="edit_line", thinking="disabled", fixed_arguments=FIXED, candidates=60)


def _free(engine: Engine) -> bool:
    assert engine.prefix_cache is not None
    return engine.pool.num_free + engine.prefix_cache.num_pages == engine.pool.num_pages


def _request(chat: ChatEngine, tools: Tools, options: ChatOptions = CALL_OPTIONS) -> Request:
    return chat.prepare(MESSAGES, tools, options).request


def _by_hand(chat: ChatEngine, request: Request, tokens: tuple[int, ...]) -> float:
    """The sum that a hypothesis claims, from logits of every place of the whole sequence and a fresh grammar."""

    runner, vocab = chat.engine.runner, chat.engine.config.vocab_size
    whole = [*request.prompt, *tokens]
    cache = KVCache.zeros(runner.decoder.config, 12)
    rows = list(range(len(request.prompt) - 1, len(whole) - 1))
    logits_RV = runner.decoder(ModelInputs.build([whole], [0], [list(range(12))], output_rows=rows), cache)
    assert request.grammar is not None
    matcher, total = request.grammar.copy(), 0.0
    forced: list[int] = []
    for row, token in enumerate(tokens):
        forced = forced or matcher.forced()
        if forced:
            assert forced.pop(0) == token
        else:
            masked = mask_logits(logits_RV[row : row + 1], [matcher], vocab)
            total += float(torch.log_softmax(masked[0], 0)[token])
        matcher.consume([token])
    assert matcher.is_complete()
    return total


def test_a_wide_beam_finds_every_call_of_a_finite_grammar_with_its_true_probability(
    chat: ChatEngine, tools: Tools
) -> None:
    request = _request(chat, tools)
    found = chat.engine.search(request, 100, 200)
    assert len(found) == 2 * 3 * 4 * 3
    assert all(h.finished for h in found)
    assert [h.logprob for h in found] == sorted((h.logprob for h in found), reverse=True)
    assert len({h.token_ids for h in found}) == len(found)
    assert math.fsum(math.exp(h.logprob) for h in found) == pytest.approx(1, abs=1e-4)
    for hypothesis in found[:3] + found[-3:]:
        assert hypothesis.logprob == pytest.approx(_by_hand(chat, request, hypothesis.token_ids), abs=1e-3)
    assert _free(chat.engine)


def test_a_narrow_beam_gives_a_part_of_the_wide_one_best_first(chat: ChatEngine, tools: Tools) -> None:
    request = _request(chat, tools)
    everything = {h.token_ids: h.logprob for h in chat.engine.search(request, 100, 200)}
    for width in (1, 5, 20):
        found = chat.engine.search(request, width, 200)
        assert len(found) == width
        for hypothesis in found:
            assert everything[hypothesis.token_ids] == pytest.approx(hypothesis.logprob, abs=1e-4)
    assert found[0].logprob == pytest.approx(max(everything.values()), abs=1e-4)


def _plain_beam(chat: ChatEngine, request: Request, width: int) -> list[tuple[float, tuple[int, ...]]]:
    """The same search without sharing, forks or pruning: every step computes whole sequences."""
    runner, vocab = chat.engine.runner, chat.engine.config.vocab_size
    assert request.grammar is not None
    live: list[tuple[float, tuple[int, ...], Matcher]] = [(0.0, (), request.grammar.copy())]
    done: list[tuple[float, tuple[int, ...]]] = []
    while live:
        children: list[tuple[float, tuple[int, ...], Matcher]] = []
        for score, tokens, matcher in live:
            forced = matcher.forced()
            matcher.consume(forced)
            tokens = (*tokens, *forced)
            if matcher.is_complete():
                done.append((score, tokens))
                continue
            whole = [*request.prompt, *tokens]
            cache = KVCache.zeros(runner.decoder.config, 12)
            logits = runner.decoder(ModelInputs.build([whole], [0], [list(range(12))]), cache)
            row = torch.log_softmax(mask_logits(logits, [matcher], vocab)[0], 0)
            allowed = row.isfinite().nonzero().flatten().tolist()
            children += [(score + float(row[token]), (*tokens, token), matcher) for token in allowed]
        live = []
        for score, tokens, parent in sorted(children, key=lambda child: -child[0]):
            matcher = parent.copy()
            matcher.consume(tokens[-1:])
            forced = matcher.forced()
            if not matcher.is_complete() and forced:
                matcher.consume(forced)
                tokens = (*tokens, *forced)
            if matcher.is_complete():
                done.append((score, tokens))
            else:
                live.append((score, tokens, matcher))
            if len(live) == width:
                break
    return sorted(done, reverse=True)[:width]


@pytest.mark.parametrize("width", [1, 2, 4, 9, 20])
def test_a_beam_equals_the_plain_algorithm(chat: ChatEngine, tools: Tools, width: int) -> None:
    # Answers that end at many different lengths: each text is the beginning of the next.
    texts = ["x" + " + x" * n for n in range(8)]
    options = dataclasses.replace(CALL_OPTIONS, fixed_arguments={**FIXED, "path": ["a.py"], "text": texts})
    request = _request(chat, tools, options)
    found = chat.engine.search(request, width, 200)
    plain = _plain_beam(chat, request, width)
    assert [h.token_ids for h in found] == [tokens for _, tokens in plain]
    assert [h.logprob for h in found] == pytest.approx([score for score, _ in plain], abs=1e-3)


def test_free_text_beams_cross_pages_and_keep_their_own_cache(chat: ChatEngine) -> None:
    """Long answers split and copy across a page boundary; each sum must still be that of its own tokens."""

    engine = chat.engine
    prompt = [7 + i % 90 for i in range(250)]
    found = engine.search(Request(prompt=prompt, sampling=SamplingParams(max_tokens=20)), 8)
    assert len(found) == 8
    assert {len(h.token_ids) for h in found} == {20}
    assert not any(h.finished for h in found)
    for hypothesis in found:
        whole = [*prompt, *hypothesis.token_ids]
        cache = KVCache.zeros(engine.runner.decoder.config, 4)
        rows = list(range(len(prompt) - 1, len(whole) - 1))
        inputs = ModelInputs.build([whole], [0], [[0, 1, 2, 3]], output_rows=rows)
        logits_RV = engine.runner.decoder(inputs, cache)[:, : engine.config.vocab_size]
        chosen = torch.log_softmax(logits_RV, 1).gather(1, torch.tensor(hypothesis.token_ids)[:, None])
        assert hypothesis.logprob == pytest.approx(float(chosen.sum()), abs=1e-3)
    assert _free(engine)


def test_width_one_is_greedy(chat: ChatEngine) -> None:
    request = Request(prompt=list(range(40)), sampling=SamplingParams(temperature=0, max_tokens=15))
    (only,) = chat.engine.search(request, 1)
    tokens = [t for output in chat.engine.stream(request) for t in getattr(output, "token_ids", ())]
    assert list(only.token_ids) == tokens


def test_closing_a_search_frees_its_pages(chat: ChatEngine, tools: Tools) -> None:
    steps = chat.engine.iter_search(_request(chat, tools), 50, 200)
    for _ in itertools.islice(steps, 3):
        pass
    assert not _free(chat.engine)
    steps.close()
    assert _free(chat.engine)


def test_candidates_are_distinct_calls_best_first_and_end_with_usage(chat: ChatEngine, tools: Tools) -> None:
    events = list(chat.stream(MESSAGES, tools, CALL_OPTIONS))
    candidates = [e for e in events if type(e).__name__ == "Candidate"]
    assert len(candidates) == 60
    assert len({str(c.call.arguments) for c in candidates}) == 60  # type: ignore[union-attr]
    assert len({c.call.id for c in candidates}) == 60  # type: ignore[union-attr]
    assert events[-1].reason == "tool_calls"  # type: ignore[union-attr]
    again = [e for e in chat.stream(MESSAGES, tools, CALL_OPTIONS) if type(e).__name__ == "Candidate"]
    assert [c.call for c in again] == [c.call for c in candidates]  # type: ignore[union-attr]


def test_scores_of_calls_order_them_as_the_model_does(chat: ChatEngine, tools: Tools) -> None:
    arguments = [
        {"path": p, "action": "delete", "line": line, "text": t}
        for p, line, t in itertools.product(FIXED["path"], FIXED["line"][:2], FIXED["text"][:2])
    ]
    options = ChatOptions(thinking="disabled")
    scores = chat.score_calls(MESSAGES, tools, [("edit_line", a) for a in arguments], options)
    # Against one whole computation without any sharing.
    alone = [chat.score_calls(MESSAGES, tools, [("edit_line", a)], options)[0] for a in arguments]
    assert scores == pytest.approx(alone, abs=1e-3)
    assert len(set(scores)) == len(scores)


def test_a_senseless_width_is_refused(chat: ChatEngine, tools: Tools) -> None:
    with pytest.raises(ValueError, match="width is 0"):
        chat.engine.search(_request(chat, tools), 0)


def test_proposed_calls_come_after_the_found_ones_scored_best_first(chat: ChatEngine, tools: Tools) -> None:
    proposed = [{"path": "a.py", "action": "replace", "line": "L1|", "text": text} for text in ("x", "y = 2", "")]
    options = dataclasses.replace(CALL_OPTIONS, candidates=2, proposed=proposed)
    found = [event for event in chat.stream(MESSAGES, tools, options) if isinstance(event, Candidate)]
    own, others = [c for c in found if not c.proposed], [c for c in found if c.proposed]
    assert found == own + others
    assert len(own) <= 2
    arguments = [dict(c.call.arguments) for c in others]
    assert all(a in arguments or a in [dict(c.call.arguments) for c in own] for a in proposed)
    assert [c.logprob for c in others] == sorted((c.logprob for c in others), reverse=True)
    alone = chat.score_calls(MESSAGES, tools, [("edit_line", a) for a in arguments], options)
    assert [c.logprob for c in others] == pytest.approx(alone, abs=1e-3)
    assert len({c.call.id for c in found}) == len(found)


def test_a_turn_of_proposed_calls_alone_ends_as_one_with_calls(chat: ChatEngine, tools: Tools) -> None:
    proposed = [{"path": "a.py", "action": "replace", "line": "L1|", "text": "x"}]
    for wanted, reason in ((proposed, "tool_calls"), ([], "length")):
        options = dataclasses.replace(CALL_OPTIONS, candidates=2, proposed=wanted, max_tokens=1)
        *found, end = chat.stream(MESSAGES, tools, options)
        assert isinstance(end, Finish)
        assert end.reason == reason
        assert [c.proposed for c in found if isinstance(c, Candidate)] == [True] * len(wanted)


def test_proposed_calls_need_a_named_tool() -> None:
    with pytest.raises(ValueError, match="proposed needs"):
        ChatOptions(candidates=1, proposed=[{}], tool_choice="edit_line")
