"""The parts of a chat that need no terminal: what waits, what was pasted, what completes, what is counted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.chat.inbox import Inbox
from m3agent.chat.meter import Meter
from m3agent.chat.session import last_chat
from m3agent.chat.status import short, status_line
from m3agent.errors import M3Error
from m3agent.events import AnswerText, RunStarted, TurnEnded, TurnStarted
from m3agent.llm.protocol import ModelInfo
from m3agent.session.store import SessionStore
from m3agent.settings import Settings
from m3agent.ui.completion import mention, ranked
from m3agent.ui.paste import Pastes


def test_a_turn_reads_messages_up_to_the_first_command() -> None:
    inbox = Inbox()
    for line in ("one", "two", "!ls", "three"):
        inbox.put(line)
    assert inbox.messages() == ["one", "two"]
    assert inbox.messages() == []
    assert inbox.waiting == ("!ls", "three")


def test_what_is_for_later_is_not_read_by_the_turn_that_runs() -> None:
    inbox = Inbox()
    inbox.put("now")
    inbox.put("afterwards", later=True)
    inbox.put("after that")
    assert inbox.messages() == ["now"]
    assert inbox.messages() == []
    assert inbox.waiting == ("afterwards", "after that")


def test_what_is_held_waits_for_the_next_word_and_keeps_its_order() -> None:
    async def main() -> None:
        inbox = Inbox()
        inbox.put("one")
        inbox.hold()
        assert inbox.messages() == []
        reading = asyncio.create_task(inbox.read())
        await asyncio.sleep(0.01)
        assert not reading.done()
        inbox.put("")
        assert await reading == "one"
        inbox.close()
        assert await inbox.read() is None

    asyncio.run(main())


pasted = st.text(st.sampled_from("ab \n\r[]pasted 9lines#2"), max_size=2000)


@given(st.lists(st.tuples(st.text("xyz ", max_size=5), pasted), max_size=6))
def test_what_was_pasted_arrives_whole_and_in_its_place(parts: list[tuple[str, str]]) -> None:
    pastes = Pastes()
    draft = "".join(typed + pastes.add(text) for typed, text in parts)
    whole = [(typed, text.replace("\r\n", "\n").replace("\r", "\n")) for typed, text in parts]
    assert pastes.expand(draft) == "".join(typed + text for typed, text in whole)


def test_long_texts_stand_as_names_that_differ() -> None:
    pastes = Pastes()
    one, other = "a\n" * 1234, "b\n" * 1234
    assert pastes.add(one) == "[pasted 1,234 lines]"
    assert pastes.add(other) == "[pasted 1,234 lines #2]"
    assert pastes.add(one) == "[pasted 1,234 lines]"
    assert pastes.add("x" * 5000) == "[pasted 5,000 characters]"
    assert pastes.add("short\ntext") == "short\ntext"


def test_the_nearest_file_comes_first() -> None:
    names = ["tests/test_sums.py", "sums.py", "docs/sums of money.md", "other.py", "src/utils/misc.py"]
    assert ranked("sum", names)[:3] == ["sums.py", "docs/sums of money.md", "tests/test_sums.py"]
    assert ranked("sumis", names) == ["src/utils/misc.py"]
    assert ranked("SUMS.P", names)[0] == "sums.py"
    assert mention("docs/sums of money.md") == '@"docs/sums of money.md"'
    assert mention("naïve.md") == "@naïve.md"


@given(st.text(max_size=4), st.lists(st.text(max_size=8), max_size=8))
def test_ranking_finds_exactly_the_names_that_hold_the_characters_in_order(query: str, names: list[str]) -> None:
    def holds(name: str) -> bool:
        rest = iter(name.casefold())
        return all(c in rest for c in query.casefold())

    assert sorted(ranked(query, names)) == sorted(name for name in names if holds(name))


def ended(prompt: int, cached: int, written: int) -> TurnEnded:
    return TurnEnded(
        turn=1, finish="stop", prompt_tokens=prompt, cached_tokens=cached, completion_tokens=written, duration_s=3.0
    )


def test_the_meter_counts_turns_and_the_speed_from_the_first_word_on() -> None:
    now = [0.0]
    meter = Meter(clock=lambda: now[0])
    info = ModelInfo(name="m3", context_tokens=1_000_000)
    assert status_line(info, "ask", meter).plain == "m3 · ask · window 1M"
    for begin in (10.0, 20.0):
        now[0] = begin
        meter(TurnStarted(turn=1))
        now[0] = begin + 1
        meter(AnswerText(text="x"))
        now[0] = begin + 3
        meter(ended(100_000, 75_000, 100))
    assert (meter.turns, meter.read_tokens, meter.cached_tokens, meter.written_tokens) == (2, 50_000, 150_000, 200)
    assert status_line(info, "plan", meter).plain == "m3 · plan · 10 % of 1M · 75 % cached · 50 tokens/s"


@pytest.mark.parametrize(
    ("tokens", "shown"), [(0, "0"), (999, "999"), (4096, "4.1k"), (200_000, "200k"), (10**6, "1M")]
)
def test_counts_are_short(tokens: int, shown: str) -> None:
    assert short(tokens) == shown


def test_the_last_chat_is_the_newest_one_about_this_folder(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    with pytest.raises(M3Error, match="there is no chat about"):
        last_chat(settings, tmp_path / "here")
    store = SessionStore(settings.sessions_dir)
    for number, (command, repo) in enumerate([("chat", "here"), ("chat", "here"), ("chat", "there"), ("run", "here")]):
        with store.create(f"2026010{number}-000000-aaaa") as session:
            started = RunStarted(
                run_id=session.run_id, command=command, model="m", repo=str(tmp_path / repo), task="", version="0"
            )
            session(started)
    assert last_chat(settings, tmp_path / "here") == "20260101-000000-aaaa"
