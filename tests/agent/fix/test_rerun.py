"""`m3 replay --check` and `--live`: a recorded fix goes the same way again, or the first divergence is shown."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m3agent.errors import M3Error
from m3agent.events import MessageAdded
from m3agent.fix.rerun import Diverged, recheck, rerun_live
from m3agent.llm.protocol import LanguageModel
from m3agent.llm.scripted import ScriptedModel
from m3agent.messages import Message, TextPart, ToolCall, assistant, message_to_json
from m3agent.session.store import Recording, SessionStore
from m3agent.settings import Settings

Run = Callable[..., Any]
ROOT = Path(__file__).parents[3]
TRANSCRIPTS = ROOT / "tests" / "transcripts"
READ = [("shop/stock.py", "needs_reorder", -0.5)]
EDITS = {
    "needs_reorder": [
        ("replace", "L2|", "    return level == limit", -0.5),
        ("replace", "L2|", "    return level <= limit", -1.0),
    ]
}


def replies(recording: Recording) -> list[Message]:
    return [e.message for e in recording.events if isinstance(e, MessageAdded) and e.message.role == "assistant"]


def turns() -> list[Message]:
    edit = {"path": "shop/stock.py", "old": "level < limit", "new": "level <= limit"}
    return [
        assistant(calls=(ToolCall(id="1", name="read", arguments={"path": "shop/stock.py"}),)),
        assistant(calls=(ToolCall(id="2", name="edit", arguments=edit),)), assistant("Done."), assistant("ACCEPT."),
    ]  # fmt: skip


def opener(model: LanguageModel) -> Any:
    async def opened(_: Settings) -> LanguageModel:
        return model

    return opened


@pytest.mark.parametrize("name", ["by-hand-bytes", "by-hand-jmespath-refused", "by-hand-sqlparse"])
def test_recorded_results_lead_the_same_model_the_same_way(name: str, settings: Settings) -> None:
    recording = SessionStore(TRANSCRIPTS).read(name)
    messages = [e for e in recording.events if isinstance(e, MessageAdded)]
    assert asyncio.run(recheck(recording, settings, ScriptedModel(replies(recording)))) == len(messages)


def test_another_reply_is_the_first_divergence(settings: Settings) -> None:
    recording = SessionStore(TRANSCRIPTS).read("by-hand-bytes")
    said = replies(recording)
    call = said[1].tool_calls[0]
    said[1] = assistant(calls=(dataclasses.replace(call, arguments={**call.arguments, "path": "elsewhere.js"}),))
    model = ScriptedModel(said)
    with pytest.raises(Diverged) as first:
        asyncio.run(recheck(recording, settings, model))
    messages = [e.message for e in recording.events if isinstance(e, MessageAdded)]
    assert first.value.number == messages.index(replies(recording)[1]) + 1
    assert "the model's reply" in str(first.value)
    assert "+  path='elsewhere.js'" in str(first.value)
    assert len(model.asked) == 2


def test_a_live_run_of_an_agent_is_compared_step_by_step(shop: Path, fix: Run, settings: Settings) -> None:
    result = asyncio.run(fix(shop, ScriptedModel(turns()), strategy="agent"))
    recording = Recording(run_id="r", events=tuple(result.events.events))
    patches = sorted((shop / ".m3/fixes").iterdir())
    (shop / "shop/stock.py").write_text("# the person goes on\n")
    steps = asyncio.run(rerun_live(recording, settings, opener(ScriptedModel(turns()))))
    assert steps == len([e for e in recording.events if isinstance(e, MessageAdded)]) + 1
    assert sorted((shop / ".m3/fixes").iterdir()) == patches
    # The same model, but a tool that says something else: that is where it parts.
    at = next(i for i, e in enumerate(recording.events) if isinstance(e, MessageAdded) and e.message.role == "tool")
    said = recording.events[at]
    assert isinstance(said, MessageAdded)
    other = dataclasses.replace(said.message, parts=(TextPart(text="another file"),))
    changed = [*recording.events[:at], MessageAdded(message=other), *recording.events[at + 1 :]]
    with pytest.raises(Diverged, match="a tool's result") as first:
        asyncio.run(rerun_live(Recording(run_id="r", events=tuple(changed)), settings, opener(ScriptedModel(turns()))))
    assert "-another file" in str(first.value)


def test_a_live_run_of_a_search_compares_every_tried_edit(
    shop: Path, fix: Run, settings: Settings, proposing: Any
) -> None:
    result = asyncio.run(fix(shop, proposing(READ, EDITS)))
    recording = Recording(run_id="r", events=tuple(result.events.events))
    asyncio.run(rerun_live(recording, settings, opener(proposing(READ, EDITS))))
    first, second = EDITS["needs_reorder"]
    turned = {"needs_reorder": [(*first[:3], -2.0), second]}
    with pytest.raises(Diverged, match="a tried edit") as parted:
        asyncio.run(rerun_live(recording, settings, opener(proposing(READ, turned))))
    assert "+fixed" in str(parted.value)
    with pytest.raises(M3Error, match="use --live"):
        asyncio.run(recheck(recording, settings, proposing(READ, EDITS)))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--check", "--model", "scripted:SCRIPT"], 0, "the same: all"),
        (["--check", "--model", "scripted:EMPTY"], 1, "step 3: recorded the model's reply, now nothing"),
        (["--live", "--model", "scripted:SCRIPT"], 2, "only --check is possible"),
        (["--check", "--live"], 2, "exclude each other"),
    ],
)  # fmt: skip
def test_the_command(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    recording = SessionStore(TRANSCRIPTS).read("by-hand-bytes")
    store = SessionStore(tmp_path / "home" / "sessions")
    with store.create("again") as session:
        for event in recording.events:
            session(event)
    (tmp_path / "SCRIPT").write_text("\n".join(json.dumps(message_to_json(m)) for m in replies(recording)))
    (tmp_path / "EMPTY").write_text("")
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools"))
    done = subprocess.run(
        [sys.executable, "-m", "m3agent", "replay", "again", *arguments],
        env={**os.environ, "PYTHONPATH": paths, "M3_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
