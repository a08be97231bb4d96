"""What a fix shows beside its tests: linters, a review by a fresh fork, the page, and changes that are never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m3_tools.screenshot.picture import Picture
from m3agent.budget import Budget
from m3agent.events import RunEnded
from m3agent.exits import Exit
from m3agent.fix.checks import configured
from m3agent.fix.issue import Issue
from m3agent.fix.markdown import markdown_report
from m3agent.fix.report import build_report, evidence_text
from m3agent.fix.review import Review, review
from m3agent.fix.worktree import open_worktree
from m3agent.llm.protocol import ModelInfo, Unavailable
from m3agent.llm.scripted import ScriptedModel
from m3agent.messages import ImagePart, Message, ToolCall, assistant

Run = Callable[..., Any]


def edit(new: str, old: str = "level < limit", path: str = "shop/stock.py") -> list[Message]:
    """The turns that read the file and change it."""
    read = ToolCall(id="r", name="read", arguments={"path": path})
    return [
        assistant(calls=(read,)),
        assistant(calls=(ToolCall(id="e", name="edit", arguments={"path": path, "old": old, "new": new}),)),
    ]


def test_linters_and_the_review_stand_in_the_evidence(shop: Path, fix: Run, commit: Any) -> None:
    """What ruff found before is no fault of the change; the review sees the issue and the diff, and nothing else."""
    (shop / "ruff.toml").write_text('lint.select = ["F401"]\n')
    stock = (shop / "shop/stock.py").read_text()
    (shop / "shop/stock.py").write_text(f"import os\n\n{stock}")
    commit(shop)
    objection = assistant("**OBJECT**: shop/stock.py:4 forgets `order`.")
    model = ScriptedModel([*edit("level <= limit"), assistant("A secret thought."), objection])
    result = asyncio.run(fix(shop, model))
    assert result.code == Exit.OK, result.summary
    ruff = next(check for check in result.report["checks"] if check["name"] == "ruff")
    assert (ruff["before"], ruff["after"], ruff["new"], ruff["missing"]) == (1, 1, [], "")
    assert "1 findings before, 1 after" in result.summary
    assert result.report["review"]["verdict"] == "objects"
    assert "a fresh fork that saw issue and diff objects" in result.summary.splitlines()[1]
    asked = model.asked[-1]
    assert [message.role for message in asked.messages] == ["system", "user"]
    assert asked.tools == ()
    assert "+    return level <= limit" in asked.messages[1].text
    assert "An item at its limit is not ordered" in asked.messages[1].text
    assert "A secret thought." not in asked.messages[1].text
    page = Path(result.report["delivery"]["report"]).read_text()
    assert "- **Warning**: a fresh fork" in page
    assert "| before | 2 | 2 | 0 | 0 | 1 |" in page
    assert "+    return level <= limit" in page
    assert str(shop) not in page


def test_a_repair_that_makes_the_linter_find_more_is_refused_and_kept(shop: Path, fix: Run, commit: Any) -> None:
    (shop / "pyproject.toml").write_text('[tool.ruff.lint]\nselect = ["F401", "F841"]\n')
    commit(shop)
    sloppy = edit("level <= limit", path="shop/stock.py")
    unused = edit("import os\n\n\ndef needs_reorder", old="def needs_reorder")
    result = asyncio.run(fix(shop, ScriptedModel([*sloppy, *unused, *[assistant("Done.")] * 3]), max_steps=5))
    assert result.code != Exit.OK
    assert result.report["reason"].startswith("ruff finds 1 more than before: shop/stock.py: F401")
    assert "import os" in Path(result.report["delivery"]["patch"]).read_text()


def test_tools_are_those_that_the_repository_had_set_up(shop: Path, temporary_folder: Path, commit: Any) -> None:
    (shop / "setup.cfg").write_text("[flake8]\nmax-line-length = 100\n\n[mypy-shop]\n")
    commit(shop)
    with open_worktree(shop) as worktree:
        (worktree.root / "ruff.toml").write_text("")
        assert configured(worktree) == ["flake8"]


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (assistant("ACCEPT. Good."), Review(verdict="accepts", text="ACCEPT. Good.")),
        (assistant("I like it."), "neither ACCEPT nor OBJECT"),
        ([Unavailable("the server is gone")], "the server is gone"),
        ([30.0], "took too long"),
    ],
)
def test_a_review_that_fails_takes_nothing_from_the_proof(turn: Any, expected: Any) -> None:
    issue = Issue(title="t", body="b", source="s")
    budget = Budget(time_limit_s=0.4)
    found = asyncio.run(review(ScriptedModel([turn]), issue, "+x", budget, lambda event: None, seed=None))
    if isinstance(expected, Review):
        assert found == expected
    else:
        assert found.verdict == ""
        assert expected in found.missing


def test_nano_does_not_review() -> None:
    model = ScriptedModel([], info=ModelInfo(name="nano", context_tokens=4096, is_nano=True))
    issue = Issue(title="t", body="b", source="s")
    found = asyncio.run(review(model, issue, "+x", Budget(), lambda event: None, seed=None))
    assert "nano cannot review" in found.missing
    assert model.asked == []


@pytest.mark.parametrize("end", ["interrupted", "model"])
def test_a_change_is_kept_however_the_work_ends(shop: Path, fix: Run, end: str, tmp_path: Path) -> None:
    last: Any = [60.0] if end == "interrupted" else [Unavailable("the server is gone")]

    async def run() -> Any:
        task = asyncio.ensure_future(fix(shop, model))
        while len(model.asked) < 3:
            await asyncio.sleep(0.05)
        if end == "interrupted":
            task.cancel()
        return await task

    model = ScriptedModel([*edit("level <= 5"), last])
    if end == "interrupted":
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(run())
        (patch,) = (shop / ".m3/fixes").glob("*.patch")
    else:
        result = asyncio.run(run())
        assert result.code == Exit.MODEL_UNAVAILABLE
        patch = Path(result.report["delivery"]["patch"])
        assert str(patch) in result.summary
        assert "not verified: no test has judged the change" in result.summary
    assert "+    return level <= 5" in patch.read_text()


def test_the_page_holds_no_markup_of_the_issue(tmp_path: Path) -> None:
    issue = Issue(title="# x\n<script> @ann [a](http://b) `c` | d", body="", source="s")
    report = build_report(issue=issue, repo=tmp_path, model="nano", strategy="auto", budget=Budget())
    page = markdown_report(report, "not_fixed", "a\n\n# b")
    assert page.startswith("# \\# x \\<script\\> @\u2060ann \\[a\\](http://b) \\`c\\` \\| d\n")
    assert "**not fixed**. a \\# b" in page
    assert str(tmp_path) not in page
    assert evidence_text(report) == ""
    assert RunEnded(exit_code=0, outcome="x", summary="", duration_s=0, report=report).report["not_verified"] == []


@pytest.mark.parametrize(("reads_images", "named"), [(True, "The pictures, in order: shot.png."), (False, "")])
def test_the_review_sees_the_pictures_of_the_issue(reads_images: bool, named: str) -> None:
    """An issue may say no more than that its picture shows it."""
    info = ModelInfo(name="scripted", context_tokens=1_000_000, reads_images=reads_images)
    model = ScriptedModel([assistant("ACCEPT.")], info=info)
    shot = Picture(media_type="image/png", data=b"png", name="shot.png", width=4, height=3)
    issue = Issue(title="t", body="b", source="s")
    found = asyncio.run(review(model, issue, "+x", Budget(), lambda event: None, seed=None, pictures=(shot,)))
    assert found.verdict == "accepts"
    asked = model.asked[0].messages[1]
    assert named in asked.text
    assert ("pictures" in asked.text) == reads_images
    assert sum(isinstance(part, ImagePart) for part in asked.parts) == reads_images
