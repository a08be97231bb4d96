"""A chat over several turns: append-only prompts, forced calls, repeatable answers, errors in one line."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3_model.tokenizer import Tokenizer
from m3_runtime.chat.encoding import PromptEncoder
from m3_runtime.chat.events import Candidate, ChatEvent, Finish, PrefillProgress
from m3_runtime.chat.options import ChatOptions
from m3_runtime.chat.parser import BadCall, Call, TextDelta, ThinkDelta
from m3_runtime.chat.session import ChatEngine
from m3_runtime.chat.template import ChatTemplate, normalise
from m3_runtime.chat.transcript import Transcripts
from m3_runtime.chat.turn import Answer
from m3_runtime.request import PromptTooLong

Tools = list[dict[str, Any]]
START = [{"role": "system", "content": "You fix bugs."}, {"role": "user", "content": "The test fails. " * 20}]
FORCED = ChatOptions(
    tool_choice="edit_line",
    thinking="disabled",
    seed=1,
    fixed_arguments={"path": ["a.py", "b.py"], "line": ["L3|", "L4|"], "text": ["pass", "return x"]},
)


def _message(events: list[ChatEvent]) -> dict[str, Any]:
    """The assistant message that a client would send back."""
    calls = [e.call if isinstance(e, Candidate) else e for e in events if isinstance(e, Call | Candidate)]
    return {
        "role": "assistant",
        "content": "".join(e.text for e in events if isinstance(e, TextDelta)) or None,
        "reasoning_content": "".join(e.text for e in events if isinstance(e, ThinkDelta)),
        "tool_calls": [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
            for c in calls
        ],
    }


def _finish(events: list[ChatEvent]) -> Finish:
    assert isinstance(events[-1], Finish)
    return events[-1]


def test_a_forced_call_comes_out_and_the_next_turn_continues_its_ids(chat: ChatEngine, tools: Tools) -> None:
    first = list(chat.stream(START, tools, FORCED))
    assert _finish(first).reason == "tool_calls"
    (call,) = [e for e in first if isinstance(e, Call)]
    assert call.name == "edit_line"
    history = [*START, _message(first), {"role": "tool", "tool_call_id": call.id, "content": "edited"}]
    second = _finish(list(chat.stream(history, tools, dataclasses.replace(FORCED, seed=2))))
    assert second.reused_tokens == _finish(first).usage.prompt_tokens + _finish(first).usage.completion_tokens
    assert second.note == ""
    assert second.usage.cached_tokens >= second.reused_tokens // 128 * 128 - 128
    assert second.usage.prompt_tokens > second.reused_tokens


def test_an_edited_history_is_encoded_anew_and_says_so(chat: ChatEngine, tools: Tools) -> None:
    first = list(chat.stream(START, tools, FORCED))
    message = _message(first)
    message["tool_calls"][0]["function"]["arguments"]["text"] = "something else"
    history = [*START, message, {"role": "tool", "content": "edited"}]
    finish = _finish(list(chat.stream(history, tools, FORCED)))
    assert finish.reused_tokens == 0
    assert "encoded anew" in finish.note


def test_every_candidate_can_be_continued(chat: ChatEngine, tools: Tools) -> None:
    options = dataclasses.replace(FORCED, candidates=4)
    events = list(chat.stream(START, tools, options))
    candidates = [e for e in events if isinstance(e, Candidate)]
    assert len(candidates) == 4
    for candidate in candidates:
        history = [*START, _message([candidate]), {"role": "tool", "content": "ok"}]
        assert _finish(list(chat.stream(history, tools, FORCED))).reused_tokens > 0


def test_the_same_seed_gives_the_same_events_with_and_without_the_cache(chat: ChatEngine, tools: Tools) -> None:
    def answer(seed: int) -> list[ChatEvent]:
        options = ChatOptions(seed=seed, max_tokens=30)
        return [e for e in chat.stream(START, tools, options) if not isinstance(e, PrefillProgress | Finish)]

    assert answer(3) == answer(3)
    assert any(answer(3) != answer(seed) for seed in (4, 5, 6))


def test_greedy_text_does_not_depend_on_a_cache_hit(chat: ChatEngine) -> None:
    options = ChatOptions(temperature=0, max_tokens=25, tool_choice="none")
    first, second = (list(chat.stream(START, (), options)) for _ in range(2))
    assert _finish(first).usage.cached_tokens == 0
    assert _finish(second).usage.cached_tokens > 0
    assert _message(first) == _message(second)


def test_closing_the_iterator_frees_the_sequence(chat: ChatEngine, tools: Tools) -> None:
    stream = chat.stream(START, tools, ChatOptions(max_tokens=100, seed=1))
    assert isinstance(next(stream), PrefillProgress)
    next(stream)
    stream.close()
    assert not chat.engine.has_work
    assert chat.engine.prefix_cache is not None
    assert chat.engine.pool.num_free + chat.engine.prefix_cache.num_pages == chat.engine.pool.num_pages


def test_a_call_cut_by_the_token_limit_is_no_call(chat: ChatEngine, tools: Tools) -> None:
    events = list(chat.stream(START, tools, dataclasses.replace(FORCED, max_tokens=6)))
    assert _finish(events).reason == "length"
    assert not [e for e in events if isinstance(e, Call)]
    assert [e for e in events if isinstance(e, BadCall)]
    assert _finish(events).usage.completion_tokens == 6


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"candidates": 3}, "candidates needs tool_choice"),
        ({"fixed_arguments": {"a": ["b"]}}, "fixed_arguments needs tool_choice"),
        ({"tool_choice": "f", "fixed_arguments": {"a": []}}, "without values"),
        ({"thinking": "off"}, "thinking is 'off'"),
        ({"temperature": -1}, "temperature"),
        ({"candidates": 0}, "candidates is 0"),
    ],
)
def test_senseless_options_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ChatOptions(**options)


@pytest.mark.parametrize("candidates", [1, 5])
def test_a_call_without_any_choice_comes_out_as_the_grammar_says(
    chat: ChatEngine, tools: Tools, candidates: int
) -> None:
    values = {"path": "a.py", "action": "insert", "line": "L3|", "text": "    pass\n<x>"}
    fixed = {name: [value] for name, value in values.items()}
    options = ChatOptions(
        tool_choice="edit_line", thinking="disabled", fixed_arguments=fixed, candidates=candidates, seed=0
    )
    events = list(chat.stream(START, tools, options))
    calls = [e.call if isinstance(e, Candidate) else e for e in events if isinstance(e, Call | Candidate)]
    assert [call.arguments for call in calls] == [values]
    assert [e.logprob for e in events if isinstance(e, Candidate)] == ([0.0] if candidates > 1 else [])
    assert _finish(events).reason == "tool_calls"


def test_prompts_that_cannot_be_answered_are_refused(chat: ChatEngine) -> None:
    with pytest.raises(PromptTooLong, match="window holds 1024"):
        list(chat.stream([{"role": "user", "content": "x, y! " * 900}]))


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json"):
        ChatEngine.load(tmp_path)
    with pytest.raises(ValueError, match="dtype is 'int3'"):
        ChatEngine.load(folder, dtype="int3")


answers = st.tuples(
    st.text("ab <\n&é", max_size=8), st.text("xy \n", max_size=5), st.text("a<&\n'", max_size=6), st.booleans()
)


@settings(max_examples=60, deadline=None)
@given(st.lists(answers, min_size=1, max_size=4), st.sampled_from(["disabled", "adaptive", "enabled"]))
def test_the_ids_of_a_turn_begin_with_the_ids_of_the_turn_before(
    tokenizer: Tokenizer, template: ChatTemplate, tools: Tools, turns: list[tuple[str, str, str, bool]], thinking: str
) -> None:
    encoder = PromptEncoder(template, tokenizer)
    transcripts = Transcripts(encoder)
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go [e~[ on."}]
    before: list[int] = []
    for number, (text, reasoning, path, cut) in enumerate(turns):
        prompt = transcripts.prompt(messages, tools, thinking)
        assert prompt.token_ids[: len(before)] == before
        assert prompt.reused_tokens == len(before)
        # The kept ids are spelled otherwise than an encoder would, and still say the same (a template does not write
        # the opening of empty reasoning, which a model may have been given).
        anew = encoder.encode(messages, tools, thinking=thinking)
        said = tokenizer.decode(prompt.token_ids).replace("<mm:think></mm:think>", "</mm:think>")
        assert said == tokenizer.decode(anew)
        # The model spells its answer byte by byte, as no encoder would.
        opening = "" if thinking != "adaptive" else "<mm:think>" if reasoning else "</mm:think>"
        if thinking == "disabled":
            reasoning = ""
        pieces = [opening, reasoning, "</mm:think>" if reasoning or thinking == "enabled" else "", text]
        ns = "]<]minimax[>["
        call = [ns, "<tool_call>", "\n", ns, '<invoke name="read">', ns, "<path>", path, ns, "</path>", ns]
        pieces += [*call, "</invoke>", "\n", ns, "</tool_call>"]
        generated: list[int] = []
        for piece in pieces:
            token = tokenizer.token_id(piece) if piece in encoder.markers or piece.startswith(("<", "</")) else None
            spelled = itertools.chain.from_iterable(tokenizer.encode(c, special=False) for c in piece)
            generated += [token] if token is not None else list(spelled)
        if not cut:
            generated.append(tokenizer.token_id("[e~[") or 0)
        answer = Answer(tokenizer, schemas, thinking=thinking, key=prompt.key)
        answer.feed(generated)
        answer.finish()
        assert answer.calls[0].arguments == {"path": path}
        transcripts.remember(prompt, answer.message(), generated)
        before = [*prompt.token_ids, *generated]
        messages = [*messages, *normalise([answer.message()]), {"role": "tool", "content": f"result {number} ]~b]"}]
