"""`m3 fix` with the embedded model, as a process and through the library.

Whether nano repairs the example is measured elsewhere. Here stands what must hold whatever it answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from m3_runtime.chat.events import Candidate
from m3_runtime.chat.options import ChatOptions
from m3_runtime.chat.parser import Call
from m3_runtime.chat.session import ChatEngine, Turn
from m3_runtime.chat.transcript import Transcripts
from m3agent.fix.flow import Fix
from m3agent.fix.intake import load_issue
from m3agent.fix.prompt import search_tools
from m3agent.fix.request import FixRequest
from m3agent.llm.in_process import InProcessModel
from m3agent.llm.protocol import LanguageModel
from m3agent.settings import Settings, load_settings
from m3agent.sinks import discard

CANDIDATES = 4
Messages = Sequence[Mapping[str, Any]]


def tree_hash(folder: Path) -> str:
    """A hash over names, modes and bytes of everything in the folder; m3's own folder is left out."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if ".m3" not in path.relative_to(folder).parts):
        digest.update(f"{path.relative_to(folder)} {path.lstat().st_mode}\0".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def test_the_process_tells_the_truth_and_leaves_the_original_alone(
    example: Callable[[str], Path], environment: dict[str, str]
) -> None:
    repository = example("inventory")
    before = tree_hash(repository)
    options = ["--repo", str(repository), "--issue", "1", "--model", "nano", "--candidates", str(CANDIDATES)]
    command = [sys.executable, "-m", "m3agent", "fix", *options, "--output", "json"]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=240)
    assert done.returncode in (0, 1), done.stderr
    result = json.loads(done.stdout)
    assert tree_hash(repository) == before
    assert result["exit_code"] == done.returncode
    assert result["outcome"] == ("fixed" if done.returncode == 0 else "not_fixed")
    assert (result["model"], result["strategy"]) == ("m3-nano", "search")
    tests = result["tests"]
    assert len(tests["targets"]) == tests["before"]["failed"] == 2
    assert 0 <= result["candidates"]["tried"] <= result["candidates"]["limit"] == CANDIDATES
    assert result["proven"] == (done.returncode == 0)
    if done.returncode == 0:
        assert tests["fixed"] == tests["targets"]
        assert tests["after"]["failed"] == tests["after"]["errors"] == 0
        assert tests["undone"]["failed"] == 2
        assert not tests["broken"] + tests["missing"] + tests["still_failing"]
        patch = Path(result["delivery"]["patch"])
        assert patch.read_text().count("\n+++ ") == len(result["files"]) == 1
        subprocess.run(["git", "apply", "--check", str(patch)], cwd=repository, check=True)
    else:
        assert not result["delivery"]


class Recorded:
    """Every prompt that an engine builds with its messages, and the ids of every answered turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prompts: list[tuple[list[Any], Turn]] = []
        self.answered: list[list[int]] = []
        prepare, remember = ChatEngine.prepare, Transcripts.remember

        def prepare_and_record(engine: ChatEngine, messages: Messages, tools: Messages, options: ChatOptions) -> Turn:
            turn = prepare(engine, messages, tools, options)
            self.prompts.append((list(messages), turn))
            return turn

        def remember_and_record(
            transcripts: Transcripts, prompt: Any, answer: Mapping[str, Any], generated: Sequence[int]
        ) -> None:
            self.answered.append([*prompt.token_ids, *generated])
            remember(transcripts, prompt, answer, generated)

        monkeypatch.setattr(ChatEngine, "prepare", prepare_and_record)
        monkeypatch.setattr(Transcripts, "remember", remember_and_record)

    def check(self) -> int:
        """Each prompt begins with those of the turns before it; returns how many kept the ids of an answer too."""
        kept = 0
        for number, (messages, turn) in enumerate(self.prompts):
            ids, reused = list(turn.prompt.token_ids), turn.prompt.reused_tokens
            for earlier, past in self.prompts[:number]:
                if len(earlier) < len(messages) and messages[: len(earlier)] == earlier:
                    assert ids[: len(past.prompt.token_ids)] == past.prompt.token_ids
            if any(message["role"] == "assistant" for message in messages) and not turn.prompt.note:
                assert ids[:reused] in self.answered
                kept += 1
        return kept


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(monkeypatch)


def test_every_prompt_of_a_fix_begins_with_the_ids_of_the_turns_before(
    example: Callable[[str], Path], tmp_path: Path, recorded: Recorded
) -> None:
    settings = load_settings(model="nano", state_dir=tmp_path / "state")

    async def opener(settings: Settings) -> LanguageModel:
        return InProcessModel(ChatEngine.load("nano"))

    repo = example("inventory")
    request = FixRequest(repo=repo, issue=load_issue("1", repo, settings), candidates=CANDIDATES, seed=1)
    fix = Fix(request, settings, discard, run_id="r", spill_dir=tmp_path, opener=opener)
    assert asyncio.run(fix.run()) in (0, 1)
    assert len(recorded.prompts) >= 3
    assert recorded.check() >= 2


def test_forks_that_go_on_to_the_last_turn_keep_the_ids_of_every_turn(recorded: Recorded) -> None:
    """The whole conversation of a repair on several forks, also where nano's own would have ended earlier."""
    engine = ChatEngine.load("nano", max_context=1024)
    tools = [tool.to_openai() for tool in search_tools()]
    code = "a.py (lines 1-2 of 2)\nL1|def last(items):\nL2|    return items[len(items)]"
    answers = ["0 passed, 1 failed\nFAILED test_a.py::test_last\nran a.py: last, first", code, "a.py: replaced L2|"]
    edit = {"path": ["a.py"], "line": ["L1|", "L2|"], "text": ["    return items[-1]"]}
    fixed = [{}, {"path": ["a.py"], "symbol": ["last", "first"]}, edit]
    names = ["test", "read", "edit_line"]
    start: list[dict[str, Any]] = [{"role": "system", "content": "S"}, {"role": "user", "content": "The last item."}]
    conversations = [start]
    for name, answer, values in zip(names, answers, fixed, strict=True):
        options = ChatOptions(
            temperature=0,
            max_tokens=120,
            thinking="disabled",
            tool_choice=name,
            fixed_arguments=values,
            candidates=1 if name == "test" else 3,
        )
        conversations = [
            [*messages, assistant_message(call), {"role": "tool", "content": answer, "tool_call_id": call.id}]
            for messages in conversations
            for call in calls(engine, messages, tools, options)[:2]
        ]
    assert len(conversations) >= 2
    for messages in conversations:
        list(engine.stream(messages, tools, ChatOptions(temperature=0, max_tokens=20, thinking="disabled")))
    assert recorded.check() == len(recorded.prompts) - 1


def calls(engine: ChatEngine, messages: Messages, tools: Messages, options: ChatOptions) -> list[Call]:
    events = list(engine.stream(messages, tools, options))
    return [e.call if isinstance(e, Candidate) else e for e in events if isinstance(e, Candidate | Call)]


def assistant_message(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    call_json = {"id": call.id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call_json]}
