"""Grammars: exactly the calls that the tools allow can be generated, and what can be generated parses."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from m3_model.tokenizer import Tokenizer
from m3_runtime.chat.grammar import GrammarCompiler, GrammarMatcher
from m3_runtime.chat.parser import Call
from m3_runtime.chat.turn import Answer

VOCAB = 640
Tools = list[dict[str, Any]]


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    end = tokenizer.token_id("[e~[")
    assert end is not None
    return GrammarCompiler(tokenizer, VOCAB, end)


def _allowed(matcher: GrammarMatcher) -> list[int]:
    bits = np.zeros(-(-VOCAB // 32), dtype=np.int32)
    matcher.fill_mask(bits)
    return np.unpackbits(bits.view(np.uint8), bitorder="little").nonzero()[0].tolist()


def _walk(matcher: GrammarMatcher, seed: int, prefer: tuple[int, ...] = (), limit: int = 400) -> list[int]:
    """A random answer that the grammar allows; closing tokens are preferred half of the time so that it ends."""
    numbers = random.Random(seed)
    tokens: list[int] = []
    while not matcher.is_complete() and len(tokens) < limit:
        new = matcher.forced()
        if not new:
            allowed = _allowed(matcher)
            assert allowed, "the grammar is stuck"
            favoured = [t for t in allowed if t in prefer]
            new = [numbers.choice(favoured if favoured and numbers.random() < 0.5 else allowed)]
        matcher.consume(new)
        tokens += new
    return tokens


def _calls(tokenizer: Tokenizer, tools: Tools, tokens: list[int], thinking: str) -> Answer:
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    answer = Answer(tokenizer, schemas, thinking=thinking, key="k")
    answer.feed(tokens)
    answer.finish()
    return answer


@pytest.mark.parametrize("thinking", ["disabled", "adaptive", "enabled"])
@pytest.mark.parametrize("seed", range(15))
def test_every_forced_walk_is_a_valid_call(
    compiler: GrammarCompiler, tokenizer: Tokenizer, seed: int, thinking: str, tools: Tools
) -> None:
    matcher = compiler.compile(tools, thinking=thinking, tool_choice="required", single=True)
    closing = (tokenizer.token_id("]<]minimax[>["), tokenizer.token_id("</mm:think>"))
    tokens = _walk(matcher, seed, prefer=tuple(t for t in closing if t is not None))
    assert matcher.is_complete()
    answer = _calls(tokenizer, tools, tokens, thinking)
    (call,) = answer.calls
    assert not answer.has_bad_call
    if call.name == "edit_line":
        assert list(call.arguments) == ["path", "action", "line", "text"]
        assert call.arguments["action"] in ("replace", "insert", "delete")
    else:
        assert isinstance(call.arguments["path"], str)
        assert isinstance(call.arguments.get("start", 0), int)


def test_a_fixed_argument_takes_only_the_given_values_each_in_one_spelling(
    compiler: GrammarCompiler, tokenizer: Tokenizer, tools: Tools
) -> None:
    fixed = {"path": ["a.py", "b/c.py"], "line": ["L3|", "L14|"], "text": ["", "x"]}
    start = compiler.compile(tools[:1], thinking="disabled", tool_choice="edit_line", fixed_arguments=fixed)
    seen = set()
    spellings: dict[str, set[tuple[int, ...]]] = {}
    for seed in range(60):
        tokens = _walk(start.copy(), seed, prefer=tuple(i for i in tokenizer.special_ids))
        for call in _calls(tokenizer, tools, tokens, "disabled").calls:
            values = tuple(str(call.arguments[name]) for name in ("path", "action", "line", "text"))
            assert all(v in fixed[n] for n, v in zip(("path", "line", "text"), (values[0], *values[2:]), strict=True))
            seen.add(values)
        spellings.setdefault(
            repr([c.arguments for c in _calls(tokenizer, tools, tokens, "disabled").calls]), set()
        ).add(tuple(t for t in tokens))
    assert len(seen) > 10
    # Enumerated actions, paths, lines and texts stand between tag tokens, so a call has one sequence of ids.
    assert all(len(found) == 1 for found in spellings.values())


def test_free_text_may_hold_anything_but_marks_and_needs_no_call(
    compiler: GrammarCompiler, tokenizer: Tokenizer, tools: Tools
) -> None:
    matcher = compiler.compile(tools, thinking="disabled")
    matcher.consume(tokenizer.encode("a < b </path L3| é", special=False))
    allowed = _allowed(matcher)
    for literal, expected in {"]<]minimax[>[": True, "[e~[": True, "]~b]": False, "<path>": False, "L3|": True}.items():
        assert (tokenizer.token_id(literal) in allowed) is expected
    end = tokenizer.token_id("[e~[")
    assert end is not None
    matcher.consume([end])
    assert matcher.is_complete()


def test_without_a_call_allowed_the_namespace_token_is_forbidden(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    matcher = compiler.compile([], thinking="disabled")
    assert tokenizer.token_id("]<]minimax[>[") not in _allowed(matcher)


def test_beams_do_not_think_and_a_single_demanded_call_may(
    compiler: GrammarCompiler, tokenizer: Tokenizer, tools: Tools
) -> None:
    start = tokenizer.token_id("<mm:think>")
    for choice in ("required", "edit_line"):
        free = compiler.compile(tools, thinking="adaptive", tool_choice=choice)
        assert set(_allowed(free)) == {start, tokenizer.token_id("</mm:think>")}
        bound = compiler.compile(tools, thinking="adaptive", tool_choice=choice, single=True, may_think=False)
        forced = bound.forced() or _allowed(bound)
        assert forced[0] == tokenizer.token_id("</mm:think>")


def test_copies_go_their_own_ways(compiler: GrammarCompiler, tokenizer: Tokenizer, tools: Tools) -> None:
    matcher = compiler.compile(tools[:1], thinking="disabled", tool_choice="edit_line")
    matcher.consume(matcher.forced())
    other = matcher.copy()
    other.consume(tokenizer.encode("a.py", special=False))
    other.consume([tokenizer.token_id("]<]minimax[>[") or 0])
    assert len(_allowed(matcher)) > 100
    assert len(_allowed(other)) == 1
    with pytest.raises(ValueError, match="does not allow token"):
        matcher.consume([tokenizer.token_id("]~b]") or 0])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}},
        {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "number"}}, "required": ["b"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"$ref": "#/$defs/tree"},
        {"enum": ["a\nb", 'say "hi"', "<x>"]},
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_nested_schemas_generate_what_they_describe(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Mapping[str, Any], seed: int
) -> None:
    tree = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/tree"}},
        "required": ["n"],
    }
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"], "$defs": {"tree": tree}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    matcher = compiler.compile([tool], thinking="disabled", tool_choice="f", single=True)
    tokens = _walk(matcher, seed, prefer=tuple(tokenizer.special_ids), limit=3000)
    assert matcher.is_complete()
    (call,) = _calls(tokenizer, [tool], tokens, "disabled").calls
    assert isinstance(call, Call)
    value = call.arguments["v"]
    kind = schema.get("type")
    if kind == "array":
        assert all(isinstance(item, int) for item in value)
    elif "enum" in schema:
        assert value in schema["enum"]
    elif "anyOf" in schema:
        assert isinstance(value, int)
    elif "$ref" in schema:
        while value is not None:
            assert isinstance(value["n"], int)
            value = value.get("next")
    else:
        assert isinstance(value["b"], int | float)
        assert isinstance(value.get("a", True), bool)


def test_unknown_tools_and_parameters_are_refused(compiler: GrammarCompiler, tools: Tools) -> None:
    with pytest.raises(ValueError, match="tool_choice names 'write'; the tools are edit_line, read"):
        compiler.compile(tools, thinking="disabled", tool_choice="write")
    with pytest.raises(ValueError, match="fixed_arguments names 'nope'"):
        compiler.compile(tools[1:], thinking="disabled", tool_choice="read", fixed_arguments={"nope": ["x"]})


def test_a_map_of_free_names_may_be_written(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """The grammar cannot demand that a free name is closed by the same name; the parser does."""
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    matcher = compiler.compile([tool], thinking="disabled", tool_choice="f")
    tokens = tokenizer.encode(
        '{0}<tool_call>\n{0}<invoke name="f">{0}<v>{0}<width>3{0}</width>{0}<n_1>-4{0}</n_1>{0}</v>{0}</invoke>\n'
        "{0}</tool_call>[e~[".format("]<]minimax[>["),
        special=True,
    )
    matcher.consume(tokens)
    assert matcher.is_complete()
    assert _calls(tokenizer, [tool], tokens, "disabled").calls[0].arguments == {"v": {"width": 3, "n_1": -4}}
