"""Several edits in one call: all are made or none, and each is judged on the file as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from m3_tools.base import DiffBlock, ToolContext, ToolResult, tool_spec
from m3_tools.edit import EditTool

Call = Callable[..., ToolResult]
BEFORE = "import a\n\n\ndef f():\n    return a.g(1)\n\n\ndef h():\n    return a.g(2)\n"


@pytest.fixture
def edit(call: Call, context: ToolContext) -> Callable[..., tuple[ToolResult, str]]:
    def run(**arguments: object) -> tuple[ToolResult, str]:
        path = context.root / "f.py"
        path.write_text(BEFORE)
        result = call(EditTool(), path="f.py", **arguments)
        return result, path.read_text()

    return run


def test_all_edits_are_made_in_one_step(edit: Callable[..., tuple[ToolResult, str]]) -> None:
    result, after = edit(
        old="def h():",
        new="def h(x):",
        edits=[{"old": "import a", "new": "import a\nimport b"}, {"old": "g(2)", "new": "x"}],
    )
    assert after == BEFORE.replace("def h():", "def h(x):").replace("import a", "import a\nimport b").replace(
        "g(2)", "x"
    )
    assert result.text == (
        "f.py: 3 edits: replaced L1|, now L1| to L2|; replaced L8|, now L9|; replaced L9|, now L10|; "
        "lines below the last moved by +1"
    )
    (block,) = result.display
    assert isinstance(block, DiffBlock)
    assert block.diff.count("\n+") == 4  # the file's name and three lines


def test_the_list_alone_is_enough(edit: Callable[..., tuple[ToolResult, str]]) -> None:
    _, after = edit(edits=[{"old": "g(1)", "new": "g(3)"}, {"old": "g(2)", "new": "g(4)"}])
    assert after == BEFORE.replace("g(1)", "g(3)").replace("g(2)", "g(4)")


REFUSALS = {
    "one is not there": (
        [{"old": "g(1)", "new": "g(3)"}, {"old": "nowhere", "new": "x"}],
        "None of the 2 edits was made, because of edit 2. Nothing was changed: old is not in the file",
    ),
    "one is there twice": ([{"old": "g(1)", "new": "g(3)"}, {"old": "a.g", "new": "x"}], "occurs 2 times, at L5|, L9|"),
    "two overlap": ([{"old": "a.g(1)", "new": "x"}, {"old": "return a.g(1)", "new": "y"}], "the same text at L5|"),
    "two are the same": ([{"old": "g(1)", "new": "x"}, {"old": "g(1)", "new": "x"}], "the same text at L5|"),
    "one has no old": ([{"old": "g(1)", "new": "x"}, {"old": "", "new": "x"}], "because of edit 2. old is empty"),
    "one needs the text of another": (
        [{"old": "g(1)", "new": "k(1)"}, {"old": "k(1)", "new": "k(2)"}],
        "None of the 2 edits was made, because of edit 2.",
    ),
    "one changes nothing": ([{"old": "g(1)", "new": "x"}, {"old": "g(2)", "new": "g(2)"}], "the same; nothing to do"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_one_that_fails_stops_all(edit: Callable[..., tuple[ToolResult, str]], name: str) -> None:
    edits, said = REFUSALS[name]
    result, after = edit(edits=edits)
    assert result.is_error
    assert said in result.text
    assert after == BEFORE


def test_edits_side_by_side_are_no_overlap(edit: Callable[..., tuple[ToolResult, str]]) -> None:
    _, after = edit(
        edits=[{"old": "def f():\n", "new": "def F():\n"}, {"old": "    return a.g(1)\n", "new": "    pass\n"}]
    )
    assert after == BEFORE.replace("def f():\n    return a.g(1)\n", "def F():\n    pass\n")


def test_the_simple_form_stays_the_main_one() -> None:
    schema = tool_spec(EditTool()).parameters
    assert list(schema["properties"]) == ["path", "old", "new", "replace_all", "edits"]
    assert schema["required"] == ["path", "old", "new"]
