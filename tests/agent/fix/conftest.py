"""What the tests of `fix` share: copies of the example repositories, and a model whose proposals a test chooses."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from m3_tools.base import ToolSpec
from m3agent.events import RunEnded
from m3agent.fix.flow import Fix
from m3agent.fix.intake import load_issue
from m3agent.fix.request import FixRequest
from m3agent.llm.protocol import (
    CandidateReady,
    Finished,
    LanguageModel,
    ModelEvent,
    ModelInfo,
    Options,
    TextDelta,
    ToolCallReady,
    Usage,
)
from m3agent.messages import Message, ToolCall
from m3agent.settings import Settings, load_settings
from m3agent.sinks import Recorder
from m3agent.ui.jsonl import JsonResult

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
VALID = Draft202012Validator(json.loads((EXAMPLES.parent / "docs" / "fix-result.schema.json").read_text()))
Edit = tuple[str, str, str, float]
"""action, line, text, score"""


class ProposingModel:
    """Answers as the embedded model would: a call of the tool that it is asked for, from chosen rankings.

    `reads` is a list of (path, symbol, score), `edits` maps a symbol to its edits, best first. One that `sees` takes
    pictures.
    """

    def __init__(
        self, reads: Sequence[tuple[str, str, float]], edits: Mapping[str, Sequence[Edit]], *, sees: bool = False
    ):
        self.reads, self.edits, self.sees = reads, edits, sees
        self.asked: list[tuple[tuple[Message, ...], Options]] = []
        self.closed = 0

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(name="proposing double", context_tokens=4096, is_nano=True, reads_images=self.sees)

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], options: Options
    ) -> AsyncIterator[ModelEvent]:
        self.asked.append((tuple(messages), options))
        number = len(self.asked)
        match options.tool_choice:
            case "test":
                yield ToolCallReady(call=ToolCall(id=f"c{number}", name="test", arguments={}))
            case "read":
                for i, (path, symbol, score) in enumerate(self.reads):
                    call = ToolCall(id=f"c{number}_{i}", name="read", arguments={"path": path, "symbol": symbol})
                    yield CandidateReady(call=call, score=score)
            case "edit_line":
                read = messages[-2].tool_calls[0].arguments
                for i, (action, line, text, score) in enumerate(self.edits.get(str(read["symbol"]), ())):
                    arguments = {"path": read["path"], "action": action, "line": line, "text": text}
                    yield CandidateReady(
                        call=ToolCall(id=f"c{number}_{i}", name="edit_line", arguments=arguments), score=score
                    )
            case _:
                yield TextDelta(text="The comparison was wrong.")
        yield Finished(reason="tool_calls", usage=Usage(prompt_tokens=100, completion_tokens=5))

    async def aclose(self) -> None:
        self.closed += 1


@pytest.fixture
def proposing() -> type[ProposingModel]:
    return ProposingModel


@dataclasses.dataclass(frozen=True)
class Result:
    code: int
    events: Recorder
    report: Mapping[str, Any]
    outcome: str
    summary: str


def tree_hash(folder: Path) -> str:
    """A hash over names, modes and bytes of everything in the folder, `.git` included, `.m3` left out."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if ".m3" in path.relative_to(folder).parts:
            continue
        digest.update(os.fsencode(path.relative_to(folder)) + str(path.lstat().st_mode).encode())
        if path.is_symlink():
            digest.update(os.fsencode(os.readlink(path)))
        elif path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def make_repository(folder: Path) -> Path:
    """Turn the folder into a git repository with one commit."""
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=folder, check=True)
    commit_all(folder)
    return folder


def commit_all(folder: Path, message: str = "a commit") -> None:
    identity = ["-c", "user.name=T", "-c", "user.email=t@localhost"]
    for arguments in (["add", "-A"], [*identity, "commit", "-q", "-m", message]):
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def commit() -> Callable[[Path], None]:
    """Commit everything in a repository."""
    return commit_all


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    environment = {"M3_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    return load_settings(environ=environment, time_limit_s=120.0)


@pytest.fixture
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where work trees are made; empty again when a run is over."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def example(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of an example repository, as a git repository of its own."""

    def copy(name: str) -> Path:
        ignore = shutil.ignore_patterns("__pycache__", ".m3")
        return make_repository(Path(shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=ignore)))

    return copy


STOCK = """\
def needs_reorder(level, limit):
    return level < limit


def order(levels, limit):
    return [name for name, level in levels.items() if needs_reorder(level, limit)]
"""
STOCK_TEST = """\
import unittest

from shop.stock import needs_reorder, order


class StockTest(unittest.TestCase):
    def test_below(self):
        self.assertTrue(needs_reorder(3, 5))

    def test_above(self):
        self.assertFalse(needs_reorder(6, 5))

    def test_at_the_limit(self):
        self.assertTrue(needs_reorder(5, 5))

    def test_order(self):
        self.assertEqual(order({"a": 5, "b": 9}, 5), ["a"])
"""


ISSUE = "# An item at its limit is not ordered\n\nWith 5 left and a limit of 5 it should be ordered.\n"


def write_shop(folder: Path) -> Path:
    """The files of a repository with one bug, whose tests (of unittest, which starts faster) take a moment only."""
    files = {
        "shop/__init__.py": "",
        "shop/stock.py": STOCK,
        "tests/__init__.py": "",
        "tests/test_stock.py": STOCK_TEST,
        "issues/1.md": ISSUE,
    }
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The shop as a git repository with one commit."""
    return make_repository(write_shop(tmp_path / "shop"))


@pytest.fixture
def fix(settings: Settings, tmp_path: Path, temporary_folder: Path) -> Callable[..., Any]:
    """Run a fix and check what holds for each: the person's tree is unchanged and no work tree is left."""

    async def run(repo: Path, model: LanguageModel | None = None, ref: str = "1", **chosen: Any) -> Result:
        limits = {k: chosen.pop(k) for k in ("max_steps", "time_limit_s", "forges") if k in chosen}
        used = dataclasses.replace(settings, **limits)
        before = tree_hash(repo) if repo.is_dir() else ""
        events = Recorder()

        async def opener(_: Settings) -> LanguageModel:
            assert model is not None, "the model must not be needed here"
            return model

        if (repo / "shop").is_dir():
            chosen.setdefault("test_command", "python -m unittest")
        request = FixRequest(repo=repo, issue=load_issue(ref, repo, used), **chosen)
        work = Fix(request, used, events, run_id="test-run", spill_dir=tmp_path / "spill", opener=opener)
        code = await work.run()
        if not (request.in_place or request.commit or request.pull_request) and before:
            assert tree_hash(repo) == before
        assert list(temporary_folder.glob("m3-fix-*")) == []
        end = events.events[-1]
        assert isinstance(end, RunEnded)
        told = io.StringIO()
        JsonResult(told, run_id="test-run")(end)
        VALID.validate(json.loads(told.getvalue()))
        if end.report["files"]:
            assert Path(end.report["delivery"]["patch"]).is_file(), "a change was lost"
        return Result(code, events, end.report, end.outcome, end.summary)

    return run
