"""The same `fix` with the embedded model in this process and behind its own server: the same events."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from m3_runtime.chat.session import ChatEngine
from m3_runtime.server import create_app
from m3agent.events import Event, FixAsked, RunEnded, RunStarted, event_to_json
from m3agent.fix.flow import Fix
from m3agent.fix.intake import load_issue
from m3agent.fix.request import FixRequest
from m3agent.settings import load_settings
from m3agent.sinks import Recorder

CANDIDATES = 4


@pytest.fixture
def url() -> Iterator[str]:
    """The address of a server of nano, started for this test so that its caches are empty."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(ChatEngine.load("nano")), log_level="error"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join()


def record(repository: Path, model: str, home: Path) -> tuple[int, list[Event]]:
    """One fix in a fresh state folder; its exit code and its events."""
    settings = dataclasses.replace(load_settings(model=model), state_dir=home)
    spill_dir = home / "output"
    spill_dir.mkdir(parents=True)
    recorder = Recorder()
    issue = load_issue("1", repository, settings)
    request = FixRequest(repo=repository, issue=issue, candidates=CANDIDATES, seed=1)
    code = asyncio.run(Fix(request, settings, recorder, run_id="r", spill_dir=spill_dir).run())
    return code, recorder.events


def test_the_events_are_equal(example: Callable[[str], Path], url: str, tmp_path: Path) -> None:
    repository = example("inventory")
    code, direct = record(repository, "nano", tmp_path / "direct")
    code_over_http, over_http = record(repository, url, tmp_path / "http")
    assert code_over_http == code
    assert comparable(over_http) == comparable(direct)
    assert any(event.kind == "candidate_tried" for event in direct)


def comparable(events: list[Event]) -> list[Any]:
    """Events as JSON without durations, without where the patch lies, and without how the person named the model.

    The pieces in which text arrives are joined: where they are cut is up to the transport.
    """
    out: list[Any] = []
    for event in events:
        match event:
            case RunStarted():
                event = dataclasses.replace(event, model="")
            case FixAsked(choices=choices):
                event = dataclasses.replace(event, choices={**choices, "model": ""})
            case RunEnded(report=report):
                # The summary is the report as text, the place of the patch included.
                event = dataclasses.replace(event, summary="", report={**report, "delivery": list(report["delivery"])})
        value = without_durations(event_to_json(event))
        if out and value["kind"] == out[-1]["kind"] == "answer_text":
            value["text"] = out.pop()["text"] + value["text"]
        out.append(value)
    return out


def without_durations(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_durations(item) for key, item in value.items() if key != "duration_s"}
    return [without_durations(item) for item in value] if isinstance(value, list) else value
