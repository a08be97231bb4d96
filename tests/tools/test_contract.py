"""Every tool, whatever it is given, answers with a result: it never raises, and its text is valid and harmless."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3_tools.base import ToolContext, block_from_json, call_tool, tool_spec
from m3_tools.toolset import all_tools

TOOLS = {tool.name: tool for tool in all_tools() if tool.name not in ("shell", "test")}
NASTY = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "",
            ".",
            "..",
            "a.py",
            "sub",
            "/etc/passwd",
            "\ud800",
            "a\0b",
            "-x",
            "*",
            "**",
            "[",
            "(",
            "L1|",
            "~",
            "x" * 300,
        ]
    ),
)
VALUE = st.one_of(NASTY, st.integers(-2, 10), st.none(), st.booleans(), st.lists(NASTY, max_size=2))


@pytest.mark.parametrize("name", TOOLS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_no_arguments_make_a_tool_raise(name: str, data: st.DataObject) -> None:
    tool = TOOLS[name]
    properties = list(tool.args_type.model_fields)
    likely = st.fixed_dictionaries({}, optional={p: st.one_of(NASTY, VALUE) for p in properties})
    arguments: dict[str, Any] = data.draw(likely)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "repo"
        (root / "sub").mkdir(parents=True)
        (root / "a.py").write_text("def f():\n    return 1\n")
        context = ToolContext(root=root, spill_dir=Path(folder) / "spill")
        result = asyncio.run(call_tool(tool, arguments, context))
        outside = sorted(p.name for p in Path(folder).iterdir() if p.name != "spill")
    assert outside == ["repo"]
    result.text.encode("utf-8")
    assert not any((c < " " and c not in "\n\t") or "\x7f" <= c <= "\x9f" for c in result.text)
    for block in result.display:  # what a session stores reads back equal
        assert block_from_json(json.loads(json.dumps(dataclasses.asdict(block)))) == block


@pytest.mark.parametrize("tool", all_tools(), ids=lambda tool: tool.name)
def test_a_description_is_short_and_every_parameter_is_explained_or_plain(tool: Any) -> None:
    spec = tool_spec(tool)
    assert 60 < len(spec.description) < 480
    assert spec.parameters["type"] == "object"
    assert json.dumps(spec.to_openai())
    for name, schema in spec.parameters["properties"].items():
        assert "description" in schema or name == "ignore_case"


def test_names_are_unique() -> None:
    names = [tool.name for tool in all_tools()]
    assert len(set(names)) == len(names) == 15
