"""What the commands do that tell, test, repair and export; and the commands that a repository brings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from m3agent.chat.custom import CustomCommand
from m3agent.events import RunEnded, ToolEnded
from m3agent.messages import ToolCall, assistant
from m3agent.repository.config import read_brought
from m3agent.session.store import SessionStore
from m3agent.trust import TrustStore
from tests.agent.chat.talking import converse, settings_in


def call(number: int, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c{number}", name=name, arguments=arguments)


def test_the_tests_are_run_and_the_model_hears_how_they_ended(tmp_path: Path, repo: Path) -> None:
    found = converse(tmp_path, repo, [], ["/test", "/test test_sums.py::test_add", "/test '"], mode="plan")
    assert [e.name for e in found.events if isinstance(e, ToolEnded)] == ["test", "test"]
    assert found.texts[0].startswith("I ran the tests myself.\nIt gave:\n")
    assert "test_sums.py::test_add" in found.texts[0]
    assert found.texts[1].startswith("I ran the tests myself: test_sums.py::test_add.")
    assert "cannot be read" in found.told


def test_an_issue_is_worked_on_in_a_session_of_its_own_and_the_conversation_hears_it(
    tmp_path: Path, repo: Path
) -> None:
    (repo / "issue.md").write_text("# add is wrong\n\n`add(1, 2)` should be 3, see test_add.\n")
    found = converse(
        tmp_path / "home", repo, [assistant("I give up."), assistant("Good.")],
        ["/fix issue.md", "thanks", "/fix none.md", "/fix"],
    )  # fmt: skip
    assert found.texts[0].startswith("I ran `m3 fix` on the issue 'add is wrong'. How it ended: ")
    assert found.texts[1:] == ["thanks", "Good."]
    other = found.told.split("its session is ")[1].partition(":")[0]
    ended = SessionStore(tmp_path / "home" / "sessions").read(other).events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.outcome in found.texts[0]
    assert "none.md" in found.told
    assert "name an issue" in found.told


def test_the_list_of_steps_is_the_newest_one(tmp_path: Path, repo: Path) -> None:
    steps = [call(n, "todo", items=[{"text": f"step {n}", "state": "active"}]) for n in (1, 2)]
    found = converse(tmp_path, repo, [assistant(calls=(steps[0],)), assistant(calls=(steps[1],)), assistant(".")],
        ["/todo", "begin", "/todo"])  # fmt: skip
    assert "the model has made no list of steps" in found.told
    last = [event for event in found.events if isinstance(event, ToolEnded)][-1]
    assert last.text == "[>] step 2"


def test_what_this_machine_and_the_settings_give_is_told(tmp_path: Path, repo: Path) -> None:
    (tmp_path / "config.toml").write_text('[mcp.docs]\nurl = "http://127.0.0.1:9/mcp"\n')
    found = converse(tmp_path, repo, [], ["/doctor", "/mcp"])
    assert "ok  git" in found.told
    assert re.search(r"(ok|no)  sandbox  landlock: (works|does not work), ", found.told)
    assert "docs  http://127.0.0.1:9/mcp: not connected, or without tools" in found.told
    assert "no MCP servers are set" in converse(tmp_path / "other", repo, [], ["/mcp"]).told


def test_an_export_is_markdown_or_a_page(tmp_path: Path, repo: Path) -> None:
    converse(tmp_path / "home", repo, [assistant("An <b>answer</b>.")], ["a & b?", "/export t.html", "/export t.md"])
    page, text = (repo / "t.html").read_text(), (repo / "t.md").read_text()
    assert "<!DOCTYPE html>" in page
    assert "a &amp; b?" in page
    assert "An &lt;b&gt;answer&lt;/b&gt;." in page
    assert "## Person\n\na & b?" in text


def test_commands_of_a_repository_work_once_exactly_they_are_trusted(tmp_path: Path, repo: Path) -> None:
    folder = repo / ".m3" / "commands"
    folder.mkdir(parents=True)
    (folder / "review.md").write_text("# Review a file\n\nRead $ARGUMENTS and criticise it.\n")
    (folder / "help.md").write_text("never\n")
    home = tmp_path / "home"
    untrusted = converse(home, repo, [], ["/review sums.py"])
    assert "there is no command /review" in untrusted.told
    brought = read_brought(repo)
    assert brought is not None
    TrustStore(settings_in(home).state_dir).record(repo, brought.digest, trusted=True)
    trusted = converse(home, repo, [assistant("Bad.")], ["/review sums.py", "/help", "/rewind"])
    assert trusted.texts == ["# Review a file\n\nRead sums.py and criticise it.", "Bad."]
    assert "/review       Review a file" in trusted.told
    assert "/help         what can be typed here" in trusted.told
    (folder / "review.md").write_text("Delete everything.\n")
    assert "there is no command /review" in converse(home, repo, [], ["/review sums.py"]).told


@pytest.mark.parametrize(
    ("text", "arguments", "sent"),
    [("Do $ARGUMENTS now", "it", "Do it now"), ("Do it", "now", "Do it\n\nnow"), ("Do it", "", "Do it")],
)
def test_arguments_stand_in_their_place_or_at_the_end(text: str, arguments: str, sent: str) -> None:
    assert CustomCommand(text=text).with_arguments(arguments) == sent
