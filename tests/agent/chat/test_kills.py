"""A chat that ends at any byte and at any moment goes on: nothing saved is lost, nothing interrupted is run again."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from m3agent.chat.resume import saved_conversation
from m3agent.llm.scripted import Turn
from m3agent.messages import ToolCall, assistant
from m3agent.prompt import Conversation, open_calls
from m3agent.session.store import SessionStore
from m3agent.sinks import discard
from tests.agent.chat.talking import converse, settings_in
from tests.agent.conftest import git

BYTE_CUTS = 180
LINES = ("one", "two", "/fork", "three", "/rewind 1", "!echo person >> ran.txt", "/compact", "four")


def turns() -> list[Turn]:
    """Commands that leave a mark each time they run, files that are written, and an answer."""
    found: list[Turn] = []
    for number in range(1, 4):
        mark = ToolCall(id=f"m{number}", name="shell", arguments={"command": f"echo mark{number} >> ran.txt"})
        write = ToolCall(id=f"w{number}", name="write", arguments={"path": "w.txt", "text": f"{number}\n" * 50})
        found += [assistant("I do both.", reasoning="Hm. " * 20, calls=(mark, write)), assistant("Done. " * 200)]
    return [*found, assistant("A summary."), assistant("The end.")]


def talk(home: str, repo: str) -> None:
    converse(Path(home), Path(repo), turns(), LINES, approves=True)


def repository(folder: Path) -> Path:
    folder.mkdir()
    (folder / "sums.py").write_text("def add(a, b):\n    return a - b\n")
    git(folder, "init", "-q")
    return folder


def sessions(home: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted((home / "sessions").glob("*.jsonl"))}


def test_a_session_cut_at_any_byte_goes_on_with_every_whole_message(tmp_path: Path) -> None:
    home, repo = tmp_path / "home", repository(tmp_path / "repo")
    talk(str(home), str(repo))
    whole = sessions(home)
    assert len(whole) == 4  # the first, the fork, the rewound one, the summarised one
    dice = random.Random(7)
    settings, seen = settings_in(home), Counter[str]()
    for name in dice.choices(list(whole), k=BYTE_CUTS):
        data = whole[name][: dice.randrange(len(whole[name]))]
        lines, torn = data.count(b"\n"), not data.endswith(b"\n") and bool(data)
        path = home / "sessions" / "cut.jsonl"
        path.write_bytes(data)
        saved = saved_conversation(settings, "cut")
        messages = data[: data.rfind(b"\n") + 1].count(b'{"kind":"message_added"')
        assert len(saved.messages) == messages
        assert any("cut off" in line for line in saved.lost) == torn
        waiting = open_calls(saved.messages)
        assert sum("not run again" in line for line in saved.lost) == len(waiting)
        conversation = Conversation(discard, saved.messages)
        conversation.close_open_calls("interrupted")
        assert not open_calls(conversation.messages)
        SessionStore(settings.sessions_dir).append("cut").close()
        assert path.read_bytes() == data[: data.rfind(b"\n") + 1]
        seen.update({"torn": torn, "calls": bool(waiting), "reply": any("written" in line for line in saved.lost)})
        seen["empty"] += not lines
    assert min(seen[kind] for kind in ("torn", "calls", "reply")) >= 5, seen


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_a_chat_that_is_killed_at_any_moment_goes_on(tmp_path: Path, kills: int) -> None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.agent.chat.talking"])
    dice = random.Random(11)

    def start(number: int) -> tuple[Path, Path, multiprocessing.process.BaseProcess]:
        home, repo = tmp_path / f"home{number}", repository(tmp_path / f"repo{number}")
        process = processes.Process(target=talk, args=(str(home), str(repo)))
        process.start()
        return home, repo, process

    start(-1)[2].join()  # the first one also loads the modules
    began = time.monotonic()
    start(-2)[2].join()
    takes_s = time.monotonic() - began
    sudden = 0
    for number in range(kills):
        home, repo, process = start(number)
        time.sleep(dice.uniform(0.05, 0.95) * takes_s)
        process.kill()
        process.join()
        before = sessions(home)
        sudden += any(saved_conversation(settings_in(home), name).lost for name in before)
        ran = repo / "ran.txt"
        for name, data in before.items():
            marks = ran.read_text() if ran.exists() else ""
            after = converse(home, repo, [assistant("Here again.")], ["and now?"], resume=name, approves=True)
            assert after.texts[-2:] == ["and now?", "Here again."]
            assert not open_calls(after.chat.work.conversation.messages)
            kept = data[: data.rfind(b"\n") + 1]
            assert sessions(home)[name].startswith(kept)
            assert (ran.read_text() if ran.exists() else "") == marks
        counts = Counter(ran.read_text().split()) if ran.exists() else Counter()
        assert not counts or max(counts.values()) == 1, counts
    print(f"{kills} kills, {sudden} of them in the middle of something; every session went on")
    assert sudden >= kills // 8, "hardly any kill hit a chat at work"
