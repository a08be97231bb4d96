from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.errors import M3Error
from m3agent.events import Event, MessageAdded, RunEnded, RunStarted, ToolOutput, event_from_json, event_to_json
from m3agent.messages import ImagePart, ToolCall, assistant, tool_result, user
from m3agent.outputs import MAX_SAVED_OUTPUT_CHARS, open_outputs
from m3agent.session.export import fenced, to_markdown
from m3agent.session.replay import replay
from m3agent.session.store import SessionStore, new_run_id
from m3agent.settings import load_settings
from m3agent.sinks import Recorder
from m3agent.ui.samples import SAMPLES


def save(store: SessionStore, events: tuple[Event, ...] = SAMPLES, run_id: str | None = None) -> str:
    with store.create(run_id) as session:
        for event in events:
            session(event)
        return session.run_id


class View(Recorder):
    closed = False

    def close(self) -> None:
        self.closed = True


def test_the_samples_hold_every_kind_of_event() -> None:
    assert {type(event) for event in SAMPLES} == set(Event.__args__)  # type: ignore[attr-defined]


def test_what_is_saved_reads_back_equal(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "new" / "folder")
    recording = store.read(save(store))
    assert recording.events == SAMPLES
    assert not recording.torn


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=30)


@given(texts, texts, st.binary(max_size=20))
def test_any_text_survives_the_file(tmp_path_factory: pytest.TempPathFactory, one: str, two: str, data: bytes) -> None:
    call = ToolCall(id=one, name=two, arguments={one: [two, 1, None, {"x": True}]})
    events: tuple[Event, ...] = (
        MessageAdded(message=user(one, ImagePart(media_type="image/png", data=data))),
        MessageAdded(message=assistant(two, reasoning=one, calls=(call,))),
        MessageAdded(message=tool_result(one, two, is_error=True)),
        ToolOutput(call_id=one, text=two),
    )
    store = SessionStore(tmp_path_factory.mktemp("s"))
    assert store.read(save(store, events)).events == events
    assert tuple(event_from_json(json.loads(json.dumps(event_to_json(e)))) for e in events) == events


def test_every_event_is_in_the_file_before_the_next_happens(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    with store.create() as session:
        for number, event in enumerate(SAMPLES, start=1):
            session(event)
            assert len(store.read(session.run_id).events) == number


def test_a_file_cut_at_any_byte_keeps_every_whole_event(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    path = tmp_path / f"{save(store, run_id='whole')}.jsonl"
    data = path.read_bytes()
    for cut in [0, 1, len(data) - 1, *random.Random(3).sample(range(len(data)), 60)]:
        (tmp_path / "cut.jsonl").write_bytes(data[:cut])
        recording = store.read("cut")
        assert recording.events == SAMPLES[: data[:cut].count(b"\n")]
        assert recording.torn == (cut > 0 and data[cut - 1 : cut] != b"\n")


def test_a_torn_session_goes_on_after_its_last_whole_event(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    run_id = save(store)
    path = tmp_path / f"{run_id}.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    with store.append(run_id) as session:
        session(SAMPLES[0])
    assert store.read(run_id).events == (*SAMPLES[:-1], SAMPLES[0])


def test_damage_before_the_last_line_is_said_with_its_line(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    path = tmp_path / f"{save(store)}.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], b'{"kind": "no such"}', *lines[2:]]))
    with pytest.raises(M3Error, match="line 2"):
        store.read(path.stem)


def test_the_list_is_newest_first_and_says_how_runs_ended(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    save(store, run_id="20260101-000000-aaaa")
    save(store, SAMPLES[:9], run_id="20260102-000000-bbbb")
    (tmp_path / "20260103-000000-cccc.jsonl").write_text("no session\n")
    listed = list(store.list())
    assert [(s.run_id[-4:], s.outcome, s.command) for s in listed] == [
        ("bbbb", "", "fix"),
        ("aaaa", "fixed and verified", "fix"),
    ]


def test_the_beginning_of_an_id_is_enough_when_it_is_the_only_one(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    save(store, run_id="20260101-aaaa")
    save(store, run_id="20260102-bbbb")
    assert store.read("20260102").run_id == "20260102-bbbb"
    with pytest.raises(M3Error, match="2 sessions begin with"):
        store.read("2026")
    with pytest.raises(M3Error, match="there is no session"):
        store.read("1999")
    assert store.remove("20260101") == "20260101-aaaa"
    assert [s.run_id for s in store.list()] == ["20260102-bbbb"]


@pytest.mark.parametrize("run_id", ["../x", "/etc/passwd", "", "a/b", "*", "-x"])
def test_an_id_is_never_a_path(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(M3Error, match="no session id"):
        SessionStore(tmp_path).read(run_id)


def test_session_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "s")
    path = tmp_path / "s" / f"{save(store)}.jsonl"
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def test_ids_sort_by_time_and_differ() -> None:
    ids = [new_run_id() for _ in range(50)]
    assert len(set(ids)) == 50
    assert ids == sorted(ids)  # a fork and a way back in the same second, too: --resume takes the last


def test_a_replay_sends_the_same_events_and_closes_the_view(tmp_path: Path) -> None:
    store, view, pauses = SessionStore(tmp_path), View(), []
    replay(store.read(save(store)), view, pause_s=0.5, sleep=pauses.append)
    assert tuple(view.events) == SAMPLES
    assert view.closed
    assert pauses == [0.5] * len(SAMPLES)


def test_the_export_holds_the_conversation_the_diff_and_the_end(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    text = to_markdown(store.read(save(store)))
    assert "# m3 fix: Items at their minimum are ordered again" in text
    assert "+    if level >= self.minimum:" in text
    assert "fixed and verified (exit code 0" in text
    assert "\x1b" not in text


@given(st.text(alphabet="`a\n", max_size=40))
def test_a_fence_is_longer_than_any_inside(text: str) -> None:
    fence, *_, last = fenced(text).split("\n")
    assert fence == last
    assert fence not in text


def test_runs_that_never_ended_are_listed_by_what_they_began_with(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    started = RunStarted(run_id="x", command="run", model="m", repo="r", task="t", version="0")
    save(store, (started,))
    assert [s.outcome for s in store.list()] == [""]
    save(store, (started, RunEnded(exit_code=130, outcome="interrupted", summary="", duration_s=1)))
    assert sorted(s.outcome for s in store.list()) == ["", "interrupted"]


def test_of_a_flood_of_live_output_the_head_is_saved(tmp_path: Path) -> None:
    settings = load_settings(environ={"M3_HOME": str(tmp_path)})
    with open_outputs(settings, output="json") as out:
        for _ in range(200):
            out.sink(ToolOutput(call_id="c1", text="x" * 1000))
        out.sink(ToolOutput(call_id="c2", text="another call"))
    saved = SessionStore(settings.sessions_dir).read(out.run_id).events
    texts = [event.text for event in saved if isinstance(event, ToolOutput) and event.call_id == "c1"]
    assert 0 < sum(map(len, texts)) <= MAX_SAVED_OUTPUT_CHARS
    assert ToolOutput(call_id="c2", text="another call") in saved
