"""Training conversations equal, id for id, what the chat template renders and the tools print."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import jinja2.sandbox
import numpy as np
import pytest

from m3_tools.base import ToolContext, call_tool, tool_spec
from m3_tools.edit_line import EditLineTool
from m3_tools.grep import GrepTool
from m3_tools.read import ReadTool
from m3_tools.run_tests import RunTests
from training.conversations import SYSTEM, TOOLS, DataSettings, examples, shown_path
from training.corpus import Corpus, build_corpus
from training.feed import Feed, packs
from training.held_out import cases, fixed_rank, is_fixed, right_line
from training.pictures import picture_examples
from training.requests import MAX_ROWS, plain_requests
from training.transcript import CODE, NANO, NO_LOSS, NS, TARGET, Encoder
from training.write_config import eyes_config

ROLES = {"developer": "system", "user": "user", "ai": "assistant", "tool": "tool"}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return build_corpus(None, processes=1, limit=120)


def render(messages: list[dict[str, Any]], **options: Any) -> str:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def fail(text: str) -> None:
        raise jinja2.TemplateError(text)

    environment.globals["raise_exception"] = fail
    return environment.from_string((NANO / "chat_template.jinja").read_text()).render(messages=messages, **options)


def specifications() -> list[dict[str, Any]]:
    specs = [tool_spec(tool) for tool in (ReadTool(), GrepTool(), EditLineTool(), RunTests())]
    return [{"type": "function", "function": {"name": s.name, "parameters": s.parameters}} for s in specs]


def parsed(text: str) -> list[dict[str, Any]]:
    """The messages of a rendered conversation, read back by markers."""
    messages: list[dict[str, Any]] = []
    for role, body in re.findall(r"\]~b\](developer|user|ai|tool)\n(.*?)\[e~\[\n", text, re.DOTALL):
        message: dict[str, Any] = {"role": ROLES[role], "content": body}
        if role == "developer":
            message["content"] = body.split("\n<tools>")[0]
        if role == "tool":
            message["content"] = body.removeprefix("<response>").removesuffix("</response>")
        if role == "ai":
            content, _, calls = body.removeprefix("</mm:think>").partition(f"{NS}<tool_call>\n")
            message["content"] = content
            mark = re.escape(NS)
            found = re.findall(rf'{mark}<invoke name="(\w+)">(.*?){mark}</invoke>\n', calls, re.DOTALL)
            message["tool_calls"] = [
                {
                    "function": {
                        "name": name,
                        "arguments": dict(re.findall(rf"{mark}<(\w+)>(.*?){mark}</\1>", inner, re.DOTALL)),
                    }
                }
                for name, inner in found
            ]
        messages.append(message)
    return messages


def test_ids_are_those_of_the_rendered_template(corpus: Corpus, encoder: Encoder) -> None:
    full = 0
    for _, example in zip(range(400), examples(corpus, seed=2), strict=False):
        text = encoder.decode(example.tokens.tolist())
        if "]~b]developer" not in text:
            continue
        full += 1
        again = render(parsed(text), tools=specifications())
        assert again == text
        assert encoder._markup.encode(again, add_special_tokens=False).ids == example.tokens.tolist()
    assert full > 50


def test_the_tool_list_is_that_of_fix() -> None:
    listed = [(s["function"]["name"], tuple(s["function"]["parameters"]["properties"])) for s in specifications()]
    assert tuple(listed) == TOOLS
    prompt = Path(__file__).parents[2] / "m3agent/prompts/nano.md"
    assert prompt.read_text().strip() == SYSTEM


def test_generation_continues_the_history(corpus: Corpus, encoder: Encoder) -> None:
    text = next(
        t
        for e in examples(corpus, seed=4)
        if "edit_line" in (t := encoder.decode(e.tokens.tolist())) and "]~b]user" in t
    )
    messages = parsed(text)
    for cut in range(2, len(messages)):
        if messages[cut]["role"] == "assistant":
            prompt = render(
                messages[:cut], tools=specifications(), add_generation_prompt=True, thinking_mode="disabled"
            )
            assert text.startswith(prompt)


def test_read_and_edit_print_what_training_shows(corpus: Corpus, encoder: Encoder, tmp_path: Path) -> None:
    checked = 0
    settings = DataSettings(shifted_labels=0.0, full_form=1.0, drop_docstring=0.0, plain_requests=0.0)
    for example in examples(corpus, seed=9, settings=settings):
        messages = parsed(encoder.decode(example.tokens.tolist()))
        if len(messages) < 9:
            continue
        read, shown = messages[4]["tool_calls"][0]["function"], messages[5]["content"]
        edit, result = messages[6]["tool_calls"][0]["function"], messages[7]["content"]
        head, *rows = shown.split("\n")
        first = int(rows[0][1:].split("|")[0])
        count = re.search(r" of (\d+)\)$", head)
        total = int(count.group(1)) if count else len(rows)
        body = [row.split("|", 1)[1] for row in rows]
        file = tmp_path / read["arguments"]["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(["#"] * (first - 1) + body + ["#"] * (total - first - len(rows) + 1)) + "\n")
        context = ToolContext(root=tmp_path, spill_dir=tmp_path / "spill")
        arguments = {"path": read["arguments"]["path"], "start": first, "end": first + len(rows) - 1}
        assert asyncio.run(call_tool(ReadTool(), arguments, context)).text == shown
        assert asyncio.run(call_tool(EditLineTool(), edit["arguments"], context)).text == result
        checked += 1
        if checked == 40:
            break


def test_read_and_grep_print_what_plain_requests_show(corpus: Corpus, tmp_path: Path) -> None:
    """On a repository that holds the module alone; a request whose result is made up (no match, tests) is passed by."""
    encoder, rng = Encoder(), random.Random(4)
    context = ToolContext(root=tmp_path, spill_dir=tmp_path / "spill")
    tools = {"read": ReadTool(), "grep": GrepTool()}
    checked = {"read": 0, "grep": 0}
    while min(checked.values()) < 15:
        unit = corpus.draw(rng)
        module = corpus.modules[unit.module]
        path = shown_path(module.path)
        asked = plain_requests(encoder, rng, SYSTEM, TOOLS, module, unit, path)
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(module.text)
        messages = parsed(encoder.decode(asked[0].tolist()))
        assert messages[-1]["role"] == "assistant"
        assert not messages[-1].get("tool_calls")
        for message, result in itertools.pairwise(messages):
            call = message["tool_calls"][0]["function"] if message.get("tool_calls") else {"name": ""}
            if call["name"] not in tools or "No match" in result["content"]:
                continue
            shown = result["content"]
            if f"{path} (lines 1-60 of" in shown or (call["name"] == "grep" and shown.count("\n") == MAX_ROWS):
                continue  # shown in part
            assert asyncio.run(call_tool(tools[call["name"]], call["arguments"], context)).text == shown
            checked[call["name"]] += 1
        file.unlink()


def test_loss_falls_on_replies_and_code_and_not_on_the_damaged_line(corpus: Corpus, encoder: Encoder) -> None:
    for _, example in zip(range(50), examples(corpus, seed=6, settings=DataSettings(plain_requests=0)), strict=False):
        learnt = encoder.decode(example.tokens[example.classes == TARGET].tolist())
        assert learnt.startswith(f"</mm:think>{NS}<tool_call>\n{NS}<invoke name=")
        assert example.classes[0] == NO_LOSS
        text = encoder.decode(example.tokens.tolist())
        edit = next(c for m in parsed(text) for c in m.get("tool_calls", []) if c["function"]["name"] == "edit_line")
        if edit["function"]["arguments"]["action"] == "insert":
            continue
        label = edit["function"]["arguments"]["line"]
        code = next(
            m["content"]
            for m in parsed(text)
            if m["role"] == "tool" and label in m["content"] and "\nL" in m["content"]
        )
        line = next(row for row in code.split("\n") if row.startswith(label)).removeprefix(label)
        shown = encoder.decode(example.tokens[example.classes == CODE].tolist())
        assert f"{line}\n" not in shown or code.count(line) > 1 or not line.strip()


def test_packs_hold_whole_documents(corpus: Corpus) -> None:
    stream = (e for _, e in zip(range(120), examples(corpus, seed=8), strict=False))
    documents = sum(len(p.starts) - 1 - (p.starts[-2:].tolist() != [p.starts[-2], 4096]) for p in packs(stream, 4096))
    assert documents >= 120
    pack = next(packs(examples(corpus, seed=8), 4096))
    again = next(packs(examples(corpus, seed=8), 4096))
    assert np.array_equal(pack.tokens, again.tokens)
    assert pack.starts[0] == 0
    assert pack.starts[-1] == 4096
    assert (np.diff(pack.starts) > 0).all()


def test_the_feed_hands_over_pictures_as_they_were_made(corpus: Corpus, encoder: Encoder) -> None:
    image = encoder.markup("]<]image[>[")[0]
    vision = eyes_config(image, image + 1)
    texts, seen = examples(corpus, seed=5000), picture_examples(vision, seed=5000)
    expected = packs(texts, 4096, pictures=seen, patches=4 * 1100)
    feed = Feed(corpus, processes=1, pack_tokens=4096, seed=5, vision=vision, picture_tokens=1100)
    try:
        for made, pack, _ in zip(expected, feed, range(6), strict=False):  # more than there are places for colours
            assert np.array_equal(made.tokens, pack.tokens)
            assert made.patches is not None
            assert pack.patches is not None
            assert np.array_equal(made.patches.rows, pack.patches.rows)
            assert np.array_equal(made.patches.colours, pack.patches.colours[: len(made.patches.colours)])
            assert len(pack.patches.colours) == 4 * 1100
    finally:
        feed.close()


def test_held_out_cases_are_solved_by_their_targets_alone(corpus: Corpus, encoder: Encoder) -> None:
    found = cases(corpus, count=60, seed=1)
    assert len(found) == 60
    for case in found:
        right = encoder.decode(case.target.tolist())
        assert is_fixed(case, right)
        assert right_line(case, right)
        assert not is_fixed(case, "replace" + right)
        wrong = f"replace{NS}</action>{NS}<line>L{case.first_label}|{NS}</line>{NS}<text>x = ({NS}</text>"
        assert fixed_rank(case, [wrong, right]) == 0, "an edit that does not parse takes no rank"
        assert fixed_rank(case, [wrong]) is None


def test_a_marker_in_code_stays_text(encoder: Encoder) -> None:
    text = f'x = "{NS}[e~["'
    assert encoder.decode(encoder.content(text)) == text
    assert not set(encoder.content(text)) & set(encoder.markup(f"{NS}[e~["))
    assert json.loads((NANO / "tokenizer.json").read_text())["normalizer"] is None
