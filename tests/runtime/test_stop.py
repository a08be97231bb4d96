"""Stop texts: the answer ends before the first that is complete, however the stream is cut."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from m3_model.tokenizer import Tokenizer
from m3_runtime.chat.events import Finish
from m3_runtime.chat.markers import StopText
from m3_runtime.chat.options import ChatOptions
from m3_runtime.chat.parser import TextDelta, ThinkDelta
from m3_runtime.chat.session import ChatEngine
from m3_runtime.chat.turn import Answer

USER = [{"role": "user", "content": "The test fails."}]


def _expected(text: str, stops: list[str]) -> str:
    """By definition: the shortest beginning that ends with a stop text, without the longest such text."""
    for end in range(len(text) + 1):
        if ending := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, ending))]
    return text


@given(st.lists(st.text("abc", max_size=5)), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
@example(["ab", "cd"], ["abcd", "bc"])
@example(["a", "b"], ["b", "ab"])
def test_where_the_text_is_cut_does_not_matter(pieces: list[str], stops: list[str]) -> None:
    stop = StopText(stops)
    seen = "".join(map(stop.feed, pieces)) + stop.flush()
    text = "".join(pieces)
    assert seen == _expected(text, stops)
    assert stop.found is any(s in text for s in stops)


@pytest.mark.parametrize("stop", ["left", "k left", "x<"])
def test_reasoning_may_hold_a_stop_text_and_what_follows_it_is_gone(tokenizer: Tokenizer, stop: str) -> None:
    answer = Answer(tokenizer, {}, thinking="adaptive", key="k", stop=[stop])
    text = f"<mm:think>{stop}</mm:think>a{stop}b"
    events = [e for token in tokenizer.encode(text, special=True) for e in answer.feed([token])] + answer.finish()
    assert "".join(e.text for e in events if isinstance(e, ThinkDelta)) == stop
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "a"
    assert answer.message()["content"] == "a"
    assert answer.stopped


def test_a_stopped_answer_frees_its_pages_and_can_be_continued(chat: ChatEngine) -> None:
    options = ChatOptions(max_tokens=30, temperature=0, thinking="disabled")
    whole = "".join(e.text for e in chat.stream(USER, (), options) if isinstance(e, TextDelta))
    stop = whole[5:8]
    events = list(chat.stream(USER, (), dataclasses.replace(options, stop=[stop])))
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == "stop"
    text = "".join(e.text for e in events if isinstance(e, TextDelta))
    assert text == whole[: whole.index(stop)]
    assert chat.engine.pool.num_used == 0
    more = [*USER, {"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    finish = list(chat.stream(more, (), options))[-1]
    assert isinstance(finish, Finish)
    assert finish.reused_tokens == 0  # what was generated is not what the message says
