"""The parser: what can be written comes back equal, however the stream is cut; nothing broken becomes a call."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3_model.tokenizer import Tokenizer
from m3_runtime.chat.encoding import PromptEncoder
from m3_runtime.chat.parser import AnswerParser, BadCall, Call, ParserEvent, TextDelta, ThinkDelta
from m3_runtime.chat.syntax import NAMESPACE as NS
from m3_runtime.chat.template import ChatTemplate
from m3_runtime.chat.turn import Answer

Json = Any
names = st.from_regex(r"[a-z][a-z0-9_-]{0,6}", fullmatch=True)
nasty = st.sampled_from(
    [
        "<",
        ">",
        "&",
        "'",
        '"',
        "\n",
        "</path>",
        "<item>",
        NS,
        NS + "</invoke>",
        "<mm:think>",
        "</mm:think",
        "[e~[",
        "é",
        "🙂",
    ]
)
halves = st.sampled_from(["", "<tool_call>", "]<]mini", "\ue000", "\x00"])
texts = st.lists(
    st.one_of(nasty, halves, st.text(st.characters(exclude_categories=["Cs"]), max_size=6)), max_size=5
).map("".join)
# U+FDD0 is a code point that no text may use for interchange; the parser needs it for itself.
texts = texts.map(lambda text: text.replace("\ufdd0", ""))


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 2) -> tuple[Json, Json]:
    """A JSON schema and a value that fits it."""
    kinds = ["string", "integer", "number", "boolean", "enum", "nullable"] + (["array", "object"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "string":
        return {"type": "string"}, draw(texts)
    if kind == "integer":
        return {"type": "integer"}, draw(st.integers(-(10**9), 10**9))
    if kind == "number":
        return {"type": "number"}, draw(st.floats(-1e12, 1e12, allow_nan=False))
    if kind == "boolean":
        return {"type": "boolean"}, draw(st.booleans())
    if kind == "enum":
        options = draw(st.lists(texts, min_size=1, max_size=3))
        return {"enum": options}, draw(st.sampled_from(options))
    if kind == "nullable":
        return {"anyOf": [{"type": "null"}, {"type": "integer"}]}, draw(st.integers(0, 9))
    if kind == "array":
        item, _ = draw(typed_values(depth - 1))
        return {"type": "array", "items": item}, [_fitting(draw, item) for _ in range(draw(st.integers(0, 3)))]
    return draw(objects(depth - 1))


@st.composite
def objects(draw: st.DrawFn, depth: int = 2) -> tuple[Json, Json]:
    properties, value = {}, {}
    for name in draw(st.lists(names, max_size=3, unique=True)):
        properties[name], value[name] = draw(typed_values(depth))
    return {"type": "object", "properties": properties}, value


def _fitting(draw: st.DrawFn, schema: Json) -> Json:
    kinds: dict[str, Any] = {"string": texts, "integer": st.integers(0, 99), "boolean": st.booleans()}
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    if "anyOf" in schema:
        return draw(st.integers(0, 9))
    if schema["type"] == "array":
        return [_fitting(draw, schema["items"])]
    if schema["type"] == "object":
        return {name: _fitting(draw, part) for name, part in schema["properties"].items()}
    return draw(kinds.get(schema["type"], st.floats(-1e6, 1e6)))


def _without_markers(text: str) -> str:
    """The text without what spells a marker, also what does so once another is gone."""
    while text != (text := re.sub(f"</?mm:think>|{re.escape(NS)}", "", text)):
        pass
    return text


def _joined(events: Iterable[ParserEvent]) -> list[ParserEvent]:
    """Neighbouring deltas as one, since where a stream is cut must not matter."""
    result: list[ParserEvent] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, TextDelta | ThinkDelta) and type(last) is type(event):
            result[-1] = type(event)(text=last.text + event.text)
        else:
            result.append(event)
    return result


def _parse(text: str, tools: Json = None, *, thinking: str = "adaptive", cuts: int = 0) -> list[ParserEvent]:
    parser = AnswerParser(tools or {}, thinking=thinking)
    numbers = random.Random(cuts)
    events: list[ParserEvent] = []
    while text:
        size = numbers.randrange(1, 9) if cuts else len(text)
        events += parser.feed(text[:size])
        text = text[size:]
    return _joined(events + parser.finish())


@pytest.fixture(scope="module", params=["in M3's syntax", pytest.param("released", marks=pytest.mark.weights)])
def any_template(request: pytest.FixtureRequest, template: ChatTemplate) -> ChatTemplate:
    """The template of these tests, and the released one where M3_TEMPLATE gives its path."""
    if request.param != "released":
        return template
    if not (path := os.environ.get("M3_TEMPLATE")):
        pytest.skip("the released template is not ours to ship: M3_TEMPLATE gives its path")
    return ChatTemplate(Path(path).read_text(encoding="utf-8"))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(names, objects()), min_size=1, max_size=2, unique_by=lambda t: t[0]), texts, texts, st.randoms()
)
def test_what_is_written_tokenised_and_streamed_comes_back_equal(
    tokenizer: Tokenizer,
    any_template: ChatTemplate,
    calls: list[tuple[str, tuple[Json, Json]]],
    text: str,
    thought: str,
    cut: random.Random,
) -> None:
    text, thought = _without_markers(text), _without_markers(thought)  # spelled outside of a call these do count
    text = text.strip()
    written = [{"function": {"name": name, "arguments": value}} for name, (_, value) in calls]
    message = {"role": "assistant", "content": text, "reasoning_content": thought, "tool_calls": written}
    encoder = PromptEncoder(any_template, tokenizer)
    ids = encoder.encode([message], add_generation_prompt=False)
    header = encoder.encode([], add_generation_prompt=True)
    answer = Answer(tokenizer, {name: schema for name, (schema, _) in calls}, thinking="adaptive", key="k")
    events = _joined([e for token in ids[len(header) :] for e in answer.feed([token])] + answer.finish())
    found = [(e.name, e.arguments) for e in events if isinstance(e, Call)]
    assert found == [(name, value) for name, (_, value) in calls]
    assert [e.text for e in events if isinstance(e, ThinkDelta)] == ([thought] if thought else [])
    assert "".join(e.text for e in events if isinstance(e, TextDelta)).strip("\n") == text.strip("\n")
    assert not [e for e in events if isinstance(e, BadCall)]
    # The same, with the text between the marker tokens cut everywhere, nowhere and by chance.
    schemas = {name: schema for name, (schema, _) in calls}
    for longest in (1, 10**6, 7):
        assert _joined(_pieces(ids[len(header) :], tokenizer, schemas, cut, longest)) == [
            dataclasses.replace(e, id="") if isinstance(e, Call) else e for e in events
        ]


def _pieces(
    ids: list[int], tokenizer: Tokenizer, tools: Json, cut: random.Random, longest: int
) -> Iterator[ParserEvent]:
    """The events of an answer whose text comes in pieces of 1 to `longest` characters."""
    parser = AnswerParser(tools)
    for is_marker, group in itertools.groupby(ids, tokenizer.special_ids.__contains__):
        if is_marker:
            markers = [m for m in map(tokenizer.token_id, (NS, "<mm:think>", "</mm:think>")) if m is not None]
            for token in group:
                if token in markers:
                    yield from parser.feed_marker(tokenizer.decode([token]))
            continue
        text = tokenizer.decode(list(group))
        while text:
            size = cut.randint(1, longest) if longest < 10**6 else longest
            yield from parser.feed(text[:size])
            text = text[size:]
    yield from parser.finish()


BLOCK = (
    f'{NS}<tool_call>\n{NS}<invoke name="read">{NS}<path>a.py{NS}</path>{NS}<start>3{NS}</start>{NS}</invoke>\n'
    f"{NS}</tool_call>"
)
READ = {"read": {"properties": {"path": {"type": "string"}, "start": {"type": "integer"}}}}
CALL = Call(name="read", arguments={"path": "a.py", "start": 3})


@pytest.mark.parametrize("cuts", range(12))
@pytest.mark.parametrize(
    ("text", "thinking", "expected"),
    [
        (f"<mm:think>why</mm:think>Now:{BLOCK}", "adaptive", [ThinkDelta(text="why"), TextDelta(text="Now:"), CALL]),
        (f"why</mm:think>{BLOCK}", "enabled", [ThinkDelta(text="why"), CALL]),
        (f"</mm:think>{BLOCK}{BLOCK}", "adaptive", [CALL, CALL]),
        ("</mm:think>Hi", "disabled", [TextDelta(text="Hi")]),
        ("\n<mm:think>x</mm:think>Hi", "disabled", [ThinkDelta(text="x"), TextDelta(text="Hi")]),
        (f"<mm:think>x{NS}</mm:think>Hi", "adaptive", [ThinkDelta(text="x" + NS), TextDelta(text="Hi")]),
        (f"Hi{NS}<mm:think>x</mm:think>", "disabled", [TextDelta(text="Hi"), ThinkDelta(text="x")]),
        (BLOCK.removeprefix(f"{NS}<tool_call>\n"), "disabled", [CALL]),
        (BLOCK.replace(f"{NS}<", f"{NS} \n<"), "disabled", [CALL]),
        (BLOCK.replace('"read"', "'read'"), "disabled", [CALL]),
        (BLOCK.replace('"read"', "read"), "disabled", [CALL]),
        ("a < b and ]<] is no mark", "disabled", [TextDelta(text="a < b and ]<] is no mark")]),
        ("ends with ]<]minimax", "disabled", [TextDelta(text="ends with ]<]minimax")]),
        (f"x{NS}y", "disabled", [TextDelta(text=f"x{NS}y")]),
    ],
)
def test_known_shapes_however_the_stream_is_cut(
    text: str, thinking: str, expected: list[ParserEvent], cuts: int
) -> None:
    assert _parse(text, READ, thinking=thinking, cuts=cuts) == expected


@pytest.mark.parametrize("length", range(len(NS) + 12, len(BLOCK) - 14))
def test_a_call_that_is_cut_off_never_becomes_a_call(length: int) -> None:
    events = _parse(BLOCK[:length], READ, thinking="disabled")
    complete = f"{NS}</invoke>" in BLOCK[:length]
    assert [e for e in events if isinstance(e, Call)] == ([CALL] if complete else [])
    assert complete or any(isinstance(e, BadCall) and e.cut_off for e in events)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (f"{NS}<path>a{NS}</start>", "</start> closes <path>"),
        (f"{NS}<path>a", "<path> is not closed"),
        (f"{NS}<path>a{NS}</path>{NS}<path>b{NS}</path>", "given twice"),
        (f"text{NS}<path>a{NS}</path>", "text between the parameters"),
    ],
)
def test_a_malformed_call_is_shown_as_written_with_its_problem(body: str, problem: str) -> None:
    text = f'{NS}<tool_call>{NS}<invoke name="read">{body}{NS}</invoke>{NS}</tool_call>'
    (event,) = _parse(text, READ, thinking="disabled")
    assert isinstance(event, BadCall)
    assert problem in event.problem
    assert event.text == f'{NS}<invoke name="read">{body}{NS}</invoke>'


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, " 3 ", 3),
        ({"type": "integer"}, "three", "three"),
        ({"type": "string"}, " 3 ", " 3 "),
        ({"type": "string"}, "null", "null"),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": "array", "items": {"type": "integer"}}, f"{NS}<item>1{NS}</item>", [1]),
        ({"type": "array"}, "", []),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": "object"}, "", {}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, f"{NS}<k>1{NS}</k>", {"k": 1}),
        ({}, f"{NS}<item>1{NS}</item>", ["1"]),
        ({}, f"{NS}<k>1{NS}</k>", {"k": "1"}),
        ({"$ref": "#/$defs/n"}, "2.5", 2.5),
        ({"enum": [1, 2]}, "2", 2),
        ({"type": "boolean"}, "True", True),
    ],
)
def test_types_come_back_from_the_schema(schema: Json, text: str, value: Json) -> None:
    tools = {"f": {"properties": {"p": schema}, "$defs": {"n": {"type": "number"}}}}
    block = f'{NS}<tool_call>{NS}<invoke name="f">{NS}<p>{text}{NS}</p>{NS}</invoke>{NS}</tool_call>'
    assert _parse(block, tools, thinking="disabled") == [Call(name="f", arguments={"p": value})]


def test_reasoning_that_forgot_its_end_still_yields_the_call_of_a_real_token() -> None:
    parser = AnswerParser(READ, thinking="enabled")
    events = parser.feed("so I read it")
    for piece in re.split(f"({re.escape(NS)})", BLOCK):
        events += parser.feed_marker(piece) if piece == NS else parser.feed(piece)
    assert _joined(events + parser.finish()) == [ThinkDelta(text="so I read it"), CALL]


def test_zero_arguments() -> None:
    block = f'{NS}<tool_call>{NS}<invoke name="test">{NS}</invoke>{NS}</tool_call>'
    assert _parse(block, {}, thinking="disabled") == [Call(name="test", arguments={})]
