"""A model's arguments: lenient where the meaning is certain, otherwise one plain line for every problem."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3_tools.arguments import ALIASES, BadArguments, named_arguments, parse_arguments
from m3_tools.base import ToolContext, ToolResult, tool_spec
from m3_tools.toolset import all_tools

Call = Callable[..., ToolResult]
TOOLS = {tool.name: tool for tool in all_tools()}
GOOD: dict[str, dict[str, Any]] = {
    "read": {"path": "a", "symbol": "f", "start": 1, "end": 2, "column": 3},
    "grep": {"pattern": "a", "path": "b", "glob": "*.c", "ignore_case": True, "literal": True, "context": 2},
    "glob": {"pattern": "a", "path": "b", "include_ignored": True},
    "outline": {"path": "a"},
    "edit": {"path": "a", "old": "b", "new": "c", "replace_all": True},
    "edit_line": {"path": "a", "action": "replace", "line": "L1|", "text": "b"},
    "write": {"path": "a", "content": "b"},
    "move": {"path": "a", "to": "b"},
    "delete": {"path": "a"},
    "diff": {"path": "a"},
    "shell": {"command": "a", "workdir": "b", "timeout_s": 3.0},
    "test": {"tests": ["a"]},
    "todo": {"items": [{"text": "a", "state": "active"}]},
}
KNOWN = [
    (tool, name, alias)
    for tool, arguments in GOOD.items()
    for name in arguments
    for alias in ALIASES.get(name, ())
    if alias not in TOOLS[tool].args_type.model_fields
]


def parse(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return parse_arguments(arguments, TOOLS[tool].args_type).model_dump()


@pytest.mark.parametrize(("tool", "name", "alias"), KNOWN)
def test_the_names_that_other_tools_use_are_taken(tool: str, name: str, alias: str) -> None:
    arguments = {alias if key == name else key: value for key, value in GOOD[tool].items()}
    assert parse(tool, arguments) == parse(tool, GOOD[tool])
    assert alias not in tool_spec(TOOLS[tool]).parameters["properties"]


def test_a_call_can_be_shown_under_the_parameters_own_names() -> None:
    given = {"cmd": "rm x", "timeout": "5", "colour": 1}
    assert named_arguments(given, TOOLS["shell"].args_type) == {"command": "rm x", "timeout_s": "5", "colour": 1}
    given = {"file_path": "a", "edits": '[{"old_string": "b", "new_string": "c"}]'}
    shown = named_arguments(given, TOOLS["edit"].args_type)
    assert shown == {"path": "a", "edits": [{"old": "b", "new": "c"}]}


def test_an_alias_beside_the_parameter_itself_is_a_mistake() -> None:
    with pytest.raises(BadArguments, match="file_path is not a parameter"):
        parse("read", {"path": "a", "file_path": "b"})


@pytest.mark.parametrize(
    ("tool", "given", "meant"),
    [
        ("read", {"path": "a", "start": "3", "end": 7.0}, {"path": "a", "start": 3, "end": 7}),
        ("read", {"path": "a", "start": None, "column": None}, {"path": "a"}),
        ("grep", {"pattern": 5, "ignore_case": "true", "literal": "False"}, {"pattern": "5", "ignore_case": True}),
        ("shell", {"command": "a", "timeout": "90"}, {"command": "a", "timeout_s": 90.0}),
        ("test", {"tests": '["a", "b"]'}, {"tests": ["a", "b"]}),
        ("test", {"tests": "a.py::b"}, {"tests": ["a.py::b"]}),
        ("test", {"tests": "[a"}, {"tests": ["[a"]}),
        ("test", {"tests": None}, {}),
        ("todo", {"todos": '[{"content": "a", "state": "done"}]'}, {"items": [{"text": "a", "state": "done"}]}),
        ("todo", {"items": {"text": "a"}}, {"items": [{"text": "a"}]}),
        ("edit_line", {"path": "a", "action": "delete", "line": 4}, {"path": "a", "action": "delete", "line": "4"}),
        (
            "edit",
            {"file_path": "a", "edits": [{"old_string": "b", "new_string": "c"}, {"old_str": "d", "new_str": "e"}]},
            {"path": "a", "old": "b", "new": "c", "edits": [{"old": "d", "new": "e"}]},
        ),
        (
            "edit",
            {"path": "a", "edits": '[{"old": "b", "new": "c", "replace_all": "true"}]'},
            {"path": "a", "old": "b", "new": "c", "replace_all": True},
        ),
    ],
)
def test_what_is_meant_for_certain_is_taken(tool: str, given: dict[str, Any], meant: dict[str, Any]) -> None:
    assert parse(tool, given) == parse(tool, meant)


@pytest.mark.parametrize("text", ["[1, 2]", '{"a": 1}', "null", "true", "", " x "])
def test_a_text_that_looks_like_something_else_stays_text(text: str) -> None:
    assert parse("write", {"path": "a", "content": text})["content"] == text
    assert parse("edit", {"path": "a", "old": text, "new": text})["old"] == text


@pytest.mark.parametrize(
    ("tool", "given", "line"),
    [
        ("read", {}, "path is missing; expected text."),
        ("read", {"pth": "a"}, "pth is not a parameter. Did you mean path?"),
        ("edit", {"path": "a", "new_strng": "b"}, "new_strng is not a parameter. Did you mean new?"),
        ("read", {"path": ["a"]}, 'path: given ["a"], expected text.'),
        ("read", {"path": None}, "path: given null, expected text."),
        ("read", {"path": "a", "start": 0}, "start: given 0, expected a whole number, at least 1."),
        ("read", {"path": "a", "end": "x"}, 'end: given "x", expected a whole number, at least 1.'),
        (
            "grep",
            {"pattern": "a", "context": 99},
            "context: given 99, expected a whole number, at least 0, at most 20",
        ),
        ("grep", {"pattern": "a", "literal": "maybe"}, 'literal: given "maybe", expected true or false.'),
        (
            "shell",
            {"command": "a", "timeout_s": 9999},
            "given 9999, expected a number, above 0, at most 3600.",
        ),
        ("edit_line", {"path": "a", "line": "1", "action": "add"}, "one of replace, insert, delete."),
        ("edit", {"path": "a", "old": "b", "new": "c", "edits": [{"old": "d"}]}, "edits[0].new is missing"),
        ("edit", {"path": "a", "old": "b", "new": "c", "edits": 3}, "a list, each item an object with old, new"),
        (
            "todo",
            {"items": [{"text": "a", "state": "doing"}]},
            'items[0].state: given "doing", expected one of',
        ),
        ("todo", {"items": [{"text": ""}]}, 'items[0].text: given "", expected text that is not empty.'),
        ("test", {"tests": [["a"]]}, 'tests[0]: given ["a"], expected text.'),
    ],
)
def test_a_problem_is_one_plain_line(call: Call, tool: str, given: dict[str, Any], line: str) -> None:
    result = call(TOOLS[tool], **given)
    assert result.is_error
    assert result.text.startswith(f"{tool} was not run.\n")
    assert any(line in row for row in result.text.split("\n")), result.text


VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=80), st.just("\ud800")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@given(data=st.data(), tool=st.sampled_from(list(TOOLS)))
def test_whatever_is_given_a_problem_is_told_plainly(data: st.DataObject, tool: str) -> None:
    names = st.sampled_from([*TOOLS[tool].args_type.model_fields, "file_path", "colour"])
    arguments = data.draw(st.dictionaries(names, VALUE, max_size=4))
    try:
        parse_arguments(arguments, TOOLS[tool].args_type)
    except BadArguments as error:
        rows = str(error).encode("utf-8").decode().split("\n")
        assert rows[-1].startswith("The parameters are: ")
        assert len(rows) > 1
        for row in rows[:-1]:
            assert re.search(r"is missing|is not a parameter|: given .*, expected ", row), row
            assert len(row) < 300
            assert not re.search(r"Input should|type=|pydantic|validation", row)


def test_the_nearest_paths_are_named_for_one_that_does_not_exist(call: Call, context: ToolContext) -> None:
    for name in ("src/shop/stock.py", "src/shop/stack.py", "src/shop/order.py", "tests/test_stock.py", "a/b/c.txt"):
        path = context.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    missing = {
        "read": {"path": "shop/stock.py"},
        "grep": {"pattern": "x", "path": "shop/stock.py"},
        "outline": {"path": "shop/stock.py"},
        "edit": {"path": "shop/stock.py", "old": "a", "new": "b"},
        "edit_line": {"path": "shop/stock.py", "action": "delete", "line": "L1|"},
        "move": {"path": "shop/stock.py", "to": "x.py"},
        "delete": {"path": "shop/stock.py"},
    }
    for tool, arguments in missing.items():
        text = call(TOOLS[tool], **arguments).text
        assert text.startswith("shop/stock.py does not exist."), (tool, text)
        assert "Nearest: src/shop/stock.py, " in text, (tool, text)
    assert "Nearest: src/shop/" in call(TOOLS["glob"], pattern="*", path="src/shp").text
    assert "Nearest: src/shop/" in call(TOOLS["shell"], command="ls", workdir="src/shp").text
    assert call(TOOLS["read"], path="zzzzzz").text == "zzzzzz does not exist. Find the right name with glob."
    assert "Nearest: tests/test_stock.py" in call(TOOLS["read"], path="test/test_stock.py").text
    assert call(TOOLS["read"], path="src/shop/stok.py").text.count(".py") == 1 + 3  # at most three


def test_ignored_files_and_git_are_not_offered(call: Call, context: ToolContext) -> None:
    (context.root / ".gitignore").write_text("secret*\n")
    (context.root / "secret.py").write_text("")
    (context.root / ".git").mkdir()
    (context.root / ".git" / "config.py").write_text("")
    assert "Nearest" not in call(TOOLS["read"], path="secrets.py").text
    assert "Nearest" not in call(TOOLS["read"], path="configs.py").text
