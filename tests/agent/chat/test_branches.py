"""Forks, rewinds, summaries, questions aside: every branch is a session of its own, and nothing of another is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from m3agent.errors import M3Error
from m3agent.events import Aside, MessageAdded
from m3agent.llm.protocol import ContextFull, Finished, TextDelta, Unavailable
from m3agent.messages import Message, ToolCall, assistant
from m3agent.session.store import SessionStore
from tests.agent.chat.talking import Conversed, converse, settings_in


def call(number: int, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c{number}", name=name, arguments=arguments)


def write(number: int, path: str, text: str) -> Message:
    return assistant(calls=(call(number, "write", path=path, text=text),))


def saved_texts(home: Path, run_id: str) -> list[str]:
    events = SessionStore(home / "sessions").read(run_id).events
    return [event.message.text for event in events if isinstance(event, MessageAdded)][1:]


@pytest.fixture
def two_requests(tmp_path: Path, repo: Path) -> Conversed:
    turns = [write(1, "a.txt", "first\n"), assistant("Made a."), write(2, "a.txt", "second\n"), assistant("Changed a.")]
    return converse(tmp_path / "home", repo, turns, ["make a", "change a"])


def test_a_rewind_takes_conversation_and_files_back_together(
    two_requests: Conversed, tmp_path: Path, repo: Path
) -> None:
    home, old = tmp_path / "home", two_requests.began_as
    assert (repo / "a.txt").read_text() == "second\n"
    whole = saved_texts(home, old)
    after = converse(home, repo, [assistant("Here.")], ["/rewind", "/rewind 1", "something else"], resume=old)
    assert "1  change a" in after.told
    assert "2  make a" in after.told
    assert (repo / "a.txt").read_text() == "first\n"
    assert after.texts == [*whole[:4], "something else", "Here."]
    assert after.model.asked[0].messages[:5] == two_requests.chat.work.conversation.messages[:5]
    assert saved_texts(home, old) == whole
    assert saved_texts(home, after.chat.out.run_id) == after.texts
    # The branch can be resumed and rewound again, beyond the point where it began.
    again = converse(home, repo, [], ["/rewind 2"], resume=after.chat.out.run_id)
    assert again.texts == []
    assert not (repo / "a.txt").exists()


def test_a_rewind_touches_nothing_when_a_file_was_changed_since(
    two_requests: Conversed, tmp_path: Path, repo: Path
) -> None:
    (repo / "b.txt").write_text("mine\n")
    (repo / "a.txt").write_text("mine, too\n")
    after = converse(tmp_path / "home", repo, [], ["/rewind 2"], resume=two_requests.began_as)
    assert "a.txt was changed since then" in after.told
    assert (repo / "a.txt").read_text() == "mine, too\n"
    assert after.chat.out.run_id == two_requests.began_as
    assert len(after.texts) == 8


def test_a_rewind_that_fails_half_way_does_again_what_it_took_back(tmp_path: Path, repo: Path) -> None:
    turns = [write(1, "a.txt", "1\n"), assistant("."), write(2, "b.txt", "2\n"), assistant(".")]
    first = converse(tmp_path / "home", repo, turns, ["one", "two"])
    (repo / "a.txt").write_text("mine\n")
    after = converse(tmp_path / "home", repo, [], ["/rewind 2"], resume=first.began_as)
    assert "a.txt was changed since then" in after.told
    assert (repo / "b.txt").read_text() == "2\n"


def test_a_fork_goes_on_alone_and_the_other_one_stays(two_requests: Conversed, tmp_path: Path, repo: Path) -> None:
    home, old = tmp_path / "home", two_requests.began_as
    whole = saved_texts(home, old)
    fork = converse(home, repo, [assistant("In the fork.")], ["/fork", "and now?"], resume=old)
    assert saved_texts(home, old) == whole
    assert saved_texts(home, fork.chat.out.run_id) == [*whole, "and now?", "In the fork."]
    other = converse(home, repo, [assistant("In the other.")], ["go on", "/undo"], resume=old)
    assert other.texts == [*whole, "go on", "In the other."]
    assert (repo / "a.txt").read_text() == "first\n"


def test_a_summary_takes_the_place_of_the_conversation(tmp_path: Path, repo: Path) -> None:
    home = tmp_path / "home"
    turns = [assistant("x" * 5000), assistant("We looked at sums.py."), assistant("Then on.")]
    found = converse(home, repo, turns, ["tell me a lot", "/compact", "go on"])
    assert found.texts[0].endswith("We looked at sums.py.")
    assert found.texts[1:] == ["go on", "Then on."]
    assert found.model.asked[1].messages[:3] == (*found.model.asked[0].messages, assistant("x" * 5000))
    assert found.model.asked[1].tools == found.model.asked[0].tools  # what was read stays in the cache
    assert found.model.asked[2].messages[0] == found.model.asked[0].messages[0]
    assert saved_texts(home, found.began_as)[1] == "x" * 5000
    assert saved_texts(home, found.chat.out.run_id) == found.texts


def test_a_summary_that_saves_nothing_changes_nothing(tmp_path: Path, repo: Path) -> None:
    turns = [assistant("Yes."), assistant("A long summary of next to nothing.")]
    found = converse(tmp_path / "home", repo, turns, ["well?", "/compact"])
    assert "would not save much" in found.told
    assert found.texts == ["well?", "Yes."]
    assert found.chat.out.run_id == found.began_as


def test_a_full_window_is_summarised_from_shortened_results(tmp_path: Path, repo: Path) -> None:
    (repo / "big.txt").write_text("a line of words\n" * 900)
    turns = [
        assistant(calls=(call(1, "read", path="big.txt"),)), assistant("Long."),
        [ContextFull("full")], assistant("Read big.txt."),
    ]  # fmt: skip
    found = converse(tmp_path / "home", repo, turns, ["read it", "/compact"])
    whole, short = (sum(len(m.text) for m in asked.messages[1:]) for asked in found.model.asked[2:4])
    assert short < whole / 2
    assert found.texts[0].endswith("Read big.txt.")


def test_a_question_aside_leaves_no_trace_in_the_conversation(tmp_path: Path, repo: Path) -> None:
    home = tmp_path / "home"
    found = converse(
        home, repo, [assistant("Yes."), assistant("It adds."), assistant("No.")], ["one", "/btw what is add?", "two"]
    )
    assert found.texts == ["one", "Yes.", "two", "No."]
    assert Aside(question="what is add?", answer="It adds.") in found.events
    assert "what is add?" in found.model.asked[1].messages[-1].text
    assert saved_texts(home, found.began_as) == found.texts
    empty = converse(home, repo, [[TextDelta(text=" "), Finished(reason="stop")]], ["/btw well?", "/btw"])
    assert "gave no answer in words" in empty.told
    assert "write a question behind it" in empty.told


def test_a_question_aside_that_finds_no_model_is_answered_so_while_the_work_goes_on(tmp_path: Path, repo: Path) -> None:
    asks = assistant(calls=(call(1, "shell", command="echo hello"),))
    turns = [asks, [Unavailable("nobody is there")], assistant("It says hello.")]
    found = converse(tmp_path / "home", repo, turns, ["say it"], mode="ask", beside="/btw what is hello?")
    assert "nobody is there" in found.told
    assert found.texts[-1] == "It says hello."


def test_a_session_is_open_in_one_place_only(tmp_path: Path) -> None:
    store = SessionStore(settings_in(tmp_path).sessions_dir)
    with store.create("one"), pytest.raises(M3Error, match="open in another m3"):
        store.append("one")
    store.append("one").close()
