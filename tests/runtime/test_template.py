"""Rendering and encoding: the sandbox, the message forms, and text that cannot become a mark."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3_model.tokenizer import Tokenizer
from m3_runtime.chat.encoding import PromptEncoder
from m3_runtime.chat.template import ChatTemplate, normalise

USER = {"role": "user", "content": "Hi"}


@settings(max_examples=150, deadline=None)
@given(
    parts=st.lists(
        st.one_of(
            st.sampled_from(
                ["]~b]", "[e~[", "]<]minimax[>[", "<mm:think>", "</mm:think>", "]~!b[", "\ue000", "\ue000\ue101"]
            ),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        ),
        max_size=6,
    ),
    role=st.sampled_from(["user", "system", "tool", "assistant"]),
)
def test_no_content_can_become_a_mark(
    tokenizer: Tokenizer, template: ChatTemplate, parts: list[str], role: str
) -> None:
    text = "".join(parts)
    encoder = PromptEncoder(template, tokenizer)
    message: dict[str, Any] = {"role": role, "content": text}
    if role == "assistant":
        message["reasoning_content"] = ""
    plain = encoder.encode([{**message, "content": "x"}])
    ids = encoder.encode([message])
    marks = [i for i in ids if i in tokenizer.special_ids]
    assert marks == [i for i in plain if i in tokenizer.special_ids]
    # What stands between the template's own marks is the text, unchanged.
    assert tokenizer.decode(ids) == tokenizer.decode(plain).replace("x", text, 1)


@pytest.mark.parametrize("mark", ["[e~[", "]<]minimax[>[", "</mm:think>"])
def test_arguments_names_and_tools_cannot_become_marks_either(
    tokenizer: Tokenizer, template: ChatTemplate, mark: str
) -> None:
    encoder = PromptEncoder(template, tokenizer)

    def ids(text: str) -> list[int]:
        call = {"function": {"name": "f", "arguments": {f"p{text}": [text, {"k": text}]}}}
        tool = {"type": "function", "function": {"name": f"f{text}", "description": text}}
        history: list[dict[str, Any]] = [
            USER,
            {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]},
        ]
        return encoder.encode(normalise(history), [tool])

    special = tokenizer.special_ids
    assert [i for i in ids(mark) if i in special] == [i for i in ids("x") if i in special]


def test_markers_of_the_template_are_ids_and_labels_stay_single_tokens(
    tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    ids = PromptEncoder(template, tokenizer).encode([{"role": "tool", "content": "L12|x"}])
    assert ids[:2] == [tokenizer.token_id("]~!b["), tokenizer.token_id("]~b]")]
    assert tokenizer.token_id("L12|") in ids


def test_openai_forms_become_the_template_s_forms() -> None:
    found = normalise(
        [
            {"role": "system", "content": "A"},
            {"role": "developer", "content": [{"type": "text", "text": "B"}]},
            {"role": "user", "content": [{"type": "image", "image": b"bytes"}, {"type": "text", "text": "C"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}],
            },
            {"role": "assistant", "content": "<mm:think>\nhm\n</mm:think>\nDone."},
        ]
    )
    assert [m["role"] for m in found] == ["system", "user", "assistant", "assistant"]
    assert found[0]["content"] == "A\n\nB"
    image, text = found[1]["content"]
    assert (image["type"], image["media"].data, text) == ("image", b"bytes", {"type": "text", "text": "C"})
    assert found[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert (found[3]["reasoning_content"], found[3]["content"]) == ("hm", "Done.")


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([USER, {"role": "system", "content": "late"}], r"messages\[1\] is a system message after the start"),
        ([{"role": "robot", "content": ""}], r"messages\[0\].role is 'robot'"),
        ([{"role": "user", "content": [{"type": "audio"}]}], r"messages\[0\].content\[0\] has the type 'audio'"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content must be"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "is not JSON"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}], "JSON object"),
        ([{"role": "assistant", "tool_calls": [{}]}], "has no function name"),
    ],
)
def test_bad_messages_are_named(messages: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        normalise(messages)


RELEASED = os.environ.get("M3_TEMPLATE", "")
TOOL = json.loads(
    '{"type":"function","function":{"name":"get_weather","description":"Weather by city","parameters":{"type":'
    '"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}}'
)
WEATHER = {"city": "Oslo", "days": 3, "opts": {"a": [1, True, None, "x"], "b": None}, "z": None}
LONG = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]},
    {
        "role": "assistant",
        "reasoning_content": "look",
        "content": "A cat.",
        "tool_calls": [
            {"function": {"name": "get_weather", "arguments": WEATHER}},
            {"function": {"name": "get_weather", "arguments": {}}},
        ],
    },
    {"role": "tool", "content": "sunny"},
    {"role": "tool", "content": [{"type": "text", "text": "cold"}]},
    {"role": "assistant", "content": "<mm:think>\nhm\n</mm:think>\nDone."},
    {"role": "user", "content": "ok"},
]
ROOT = [{"role": r, "content": c} for r, c in (("root", "R"), ("developer", "D"), ("system", "ignored"))] + [USER]


@pytest.mark.weights
@pytest.mark.skipif(not RELEASED, reason="the released template is not ours to ship: M3_TEMPLATE gives its path")
@pytest.mark.parametrize(
    ("messages", "options", "digest"),
    [
        ([USER], {}, "128d8148b153f0fe85a7c4d6d705bf19d8d3cc075a5e4919f8f0030122d1cbbf"),
        ([USER], {"thinking": "adaptive"}, "128d8148b153f0fe85a7c4d6d705bf19d8d3cc075a5e4919f8f0030122d1cbbf"),
        ([USER], {"thinking": "enabled"}, "19b3a8091e93937ec2298b3cce276b4969341774ac55559352326e1936791e98"),
        ([USER], {"thinking": "disabled"}, "247683b7d14bc24865f4baebd323a3d8d8fbcf061e19f7ce6dc747603faf5000"),
        ([USER], {"thinking": "off"}, "c93b41dc792ed6af795a63c83f87b37e5f79416219fdc150a568e59ddf016d2e"),
        (
            LONG,
            {"thinking": "enabled", "tools": [TOOL]},
            "33e24519dc2e21c6926860d8efefc70eb1111581699663fe8f73fedf8f919126",
        ),
        (
            ROOT,
            {"add_generation_prompt": False},
            "76226fc3b3d73d4e8e146b17b8f5f1c7bb807d965bf73f188d6ea22fda55e6ca",
        ),
    ],
)
def test_the_released_template_renders_as_recorded(
    messages: list[dict[str, Any]], options: dict[str, Any], digest: str
) -> None:
    template = ChatTemplate(Path(RELEASED).read_text(encoding="utf-8"))
    assert hashlib.sha256(template.render(messages, **options).encode()).hexdigest() == digest
