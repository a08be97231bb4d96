"""diff, delete and move against a real repository: nothing is lost, nothing leads out, git's own state stays."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from m3_tools.base import DiffBlock, ToolContext, ToolResult
from m3_tools.delete import DeleteTool
from m3_tools.diff import MAX_CHARS, DiffTool
from m3_tools.edit import EditTool
from m3_tools.move import MoveTool
from m3_tools.read import ReadTool

Call = Callable[..., ToolResult]


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repo(context: ToolContext) -> Path:
    root = context.root
    git(root, "init", "-q")
    for name in ("a.txt", "sub/b c.txt", "sub/d.txt", "-dash", "ü.txt", os.fsdecode(b"odd\xff*\n")):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("one\ntwo\n")
    (root / ".gitignore").write_text("*.log\n")
    (root / "bin").write_bytes(b"\0\1")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    return root


def test_no_change_is_said(call: Call, repo: Path) -> None:
    assert call(DiffTool()).text == "No change in . since the last commit."
    assert call(DiffTool(), path="sub").text == "No change in sub since the last commit."


def test_every_kind_of_change_is_shown_staged_or_not(call: Call, repo: Path) -> None:
    (repo / "a.txt").write_text("one\r\n2\n")
    (repo / "sub/b c.txt").unlink()
    (repo / "sub/d.txt").write_text("one\n-- two\n")
    git(repo, "add", "sub/d.txt")
    (repo / "new ü.py").write_text("x = 1")
    (repo / "x.log").write_text("ignored")
    (repo / "bin").write_bytes(b"\0\2")
    (repo / "-dash").chmod(0o755)
    (repo / "link").symlink_to("/etc/passwd")
    result = call(DiffTool())
    head, _, rest = result.text.partition("\n\n")
    assert head.split("\n") == [
        "-dash: changed (+0 -0)",
        "a.txt: changed (+2 -2)",
        "bin: changed (+0 -0)",
        "link: new (+0 -0)",
        "new ü.py: new (+1 -0)",
        "sub/b c.txt: deleted (+0 -2)",
        "sub/d.txt: changed (+1 -1)",
    ]
    assert "-one\n-two\n+one␍\n+2" in rest
    assert "old mode 100644\nnew mode 100755" in rest
    assert "Binary files" in rest
    assert "(symlink to /etc/passwd)" in rest
    assert "+++ b/new ü.py\n@@ -0,0 +1 @@\n+x = 1\n\\ No newline at end of file" in rest
    assert "+-- two" in rest
    assert "x.log" not in result.text
    assert [b.path for b in result.display if isinstance(b, DiffBlock)] == [
        row.partition(": ")[0] for row in head.split("\n")
    ]
    assert call(DiffTool(), path="sub").text.startswith("sub/b c.txt: deleted (+0 -2)\nsub/d.txt: changed")
    assert call(DiffTool(), path="sub/b c.txt").text.startswith("sub/b c.txt: deleted")


def test_a_file_is_named_as_people_do(call: Call, repo: Path) -> None:
    (repo / "ä.py").write_text("1\n")
    git(repo, "add", "ä.py")
    shown = call(DiffTool()).text
    assert "ä.py: added (+1 -0)" in shown
    assert "+++ b/ä.py" in shown


def test_the_index_and_the_history_stay(call: Call, repo: Path) -> None:
    (repo / "a.txt").write_text("x\n")
    git(repo, "add", "a.txt")
    before = (git(repo, "status", "--porcelain"), (repo / ".git/index").read_bytes(), os.listdir(repo / ".git"))
    os.utime(repo / "sub/d.txt", (1, 1))  # only touched: no change, and nothing that git should write down
    assert "d.txt" not in call(DiffTool()).text
    assert not call(DeleteTool(), path="sub/d.txt").is_error
    assert before[1:] == ((repo / ".git/index").read_bytes(), os.listdir(repo / ".git"))


def test_a_change_within_the_clock_tick_of_the_index_is_seen(call: Call, repo: Path) -> None:
    git(repo, "config", "core.trustctime", "false")
    path = repo / "a.txt"
    os.utime(path, (1_000_000_000, 1_000_000_000))
    git(repo, "update-index", "--refresh")
    os.utime(repo / ".git/index", (1_000_000_000, 1_000_000_000))
    path.write_text("one\nTWO\n")  # the same size, and now the same time
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert call(DiffTool(), path="a.txt").text.startswith("a.txt: changed (+1 -1)")
    assert "Read it first" in call(DeleteTool(), path="a.txt").text
    assert path.exists()


def test_programs_in_the_settings_are_not_run(call: Call, repo: Path) -> None:
    spy = repo / ".git" / "spy"
    spy.write_text(f"#!/bin/sh\necho ran >> {repo}/.git/ran\ncat\n")
    spy.chmod(0o755)
    for key in ("diff.external", "core.fsmonitor", "diff.x.textconv", "diff.x.command", "core.pager", "pager.diff"):
        git(repo, "config", key, str(spy))
    (repo / ".gitattributes").write_text("*.txt diff=x\n")
    (repo / "a.txt").write_text("x\n")
    assert "a.txt: changed (+1 -2)" in call(DiffTool()).text
    assert not (repo / ".git" / "ran").exists()


def test_a_long_diff_is_bounded_and_names_what_is_left_out(call: Call, repo: Path) -> None:
    for n in range(6):
        (repo / f"long{n}.txt").write_text("".join(f"line {i} of a long new file\n" for i in range(3000)))
    (repo / "wide.txt").write_text("x" * 100_000)
    text = call(DiffTool()).text
    assert len(text) < MAX_CHARS + 2000
    assert "long5.txt: new (+3000 -0)" in text
    assert "more lines of long0.txt)" in text
    assert "(not shown for length: long2.txt, long3.txt, long4.txt, long5.txt; ask with path)" in text
    assert "[… 99,6" in text
    alone = call(DiffTool(), path="long4.txt").text
    assert MAX_CHARS * 0.9 < len(alone) < MAX_CHARS + 200


def test_before_the_first_commit_and_without_git(call: Call, context: ToolContext) -> None:
    (context.root / "a").write_text("x\n")
    assert call(DiffTool()).text.startswith("This folder is not in a git repository, so")
    git(context.root, "init", "-q")
    assert call(DiffTool()).text.startswith("a: new (+1 -0)")
    git(context.root, "add", "a")
    assert call(DiffTool()).text.startswith("a: added (+1 -0)")


def test_a_path_that_is_nowhere_is_refused(call: Call, repo: Path) -> None:
    assert "does not exist, neither now nor in the last commit. Nearest: a.txt" in call(DiffTool(), path="aa.txt").text
    assert "outside" in call(DiffTool(), path="..").text


class TestDelete:
    def test_a_committed_file_goes_unread(self, call: Call, repo: Path) -> None:
        for name in ("a.txt", "sub/b c.txt", "-dash", "ü.txt", os.fsdecode(b"odd\xff*\n")):
            (repo / name).write_text("one\n2\n")
            assert "+2" in call(DiffTool(), path=name).text
            (repo / name).write_text("one\ntwo\n")
            result = call(DeleteTool(), path=name)
            assert result.text.endswith(": deleted")
            assert not (repo / name).exists()
            (block,) = result.display
            assert isinstance(block, DiffBlock)
            assert "-one\n-two" in block.diff

    @pytest.mark.parametrize("state", ["untracked", "changed", "staged", "ignored"])
    def test_what_git_does_not_have_must_have_been_read(self, call: Call, repo: Path, state: str) -> None:
        name = {"untracked": "n.txt", "ignored": "n.log"}.get(state, "a.txt")
        (repo / name).write_text("mine\n")
        if state == "staged":
            git(repo, "add", name)
        assert "Read it first" in call(DeleteTool(), path=name).text
        assert (repo / name).exists()
        call(ReadTool(), path=name)
        (repo / name).write_text("changed since\n")
        assert "changed since it was read" in call(DeleteTool(), path=name).text
        call(ReadTool(), path=name)
        assert not call(DeleteTool(), path=name).is_error
        assert not (repo / name).exists()

    @pytest.mark.parametrize(
        "path", ["sub", ".", ".git/config", "../out.txt", "link", "none.txt", "pipe", "/etc/passwd"]
    )
    def test_refusals(self, call: Call, repo: Path, path: str) -> None:
        (repo.parent / "out.txt").write_text("x")
        (repo / "link").symlink_to("a.txt")
        os.mkfifo(repo / "pipe")
        before = sorted(str(p) for p in repo.parent.rglob("*"))
        assert call(DeleteTool(), path=path).is_error
        assert sorted(str(p) for p in repo.parent.rglob("*")) == before

    def test_without_git_a_read_file_can_go(self, call: Call, context: ToolContext) -> None:
        (context.root / "a").write_text("x")
        assert call(DeleteTool(), path="a").is_error
        call(ReadTool(), path="a")
        assert not call(DeleteTool(), path="a").is_error


class TestMove:
    def test_bytes_and_mode_move_and_folders_are_made(self, call: Call, repo: Path) -> None:
        (repo / "a.txt").chmod(0o751)
        call(ReadTool(), path="a.txt")
        assert call(MoveTool(), path="a.txt", to="new/er/a.txt").text == "a.txt: moved to new/er/a.txt"
        target = repo / "new/er/a.txt"
        assert (target.read_text(), target.stat().st_mode & 0o7777) == ("one\ntwo\n", 0o751)
        assert not (repo / "a.txt").exists()
        assert not call(EditTool(), path="new/er/a.txt", old="one", new="1").is_error
        target.write_text("changed\n")
        assert "changed since" in call(EditTool(), path="new/er/a.txt", old="c", new="d").text  # still known as read

    @pytest.mark.parametrize(
        ("path", "to"),
        [
            ("a.txt", "bin"), ("a.txt", "a.txt"), ("a.txt", "sub"), ("a.txt", "bin/x"), ("a.txt", "../x"),
            ("a.txt", ".git/x"), ("a.txt", "dangling"), ("sub", "x"), ("none", "x"), (".git/config", "x"),
            ("link", "x"),
        ],
    )  # fmt: skip
    def test_refusals(self, call: Call, repo: Path, path: str, to: str) -> None:
        (repo / "link").symlink_to("a.txt")
        (repo / "dangling").symlink_to("bin")
        before = {str(p): p.read_bytes() for p in repo.parent.rglob("*") if p.is_file()}
        assert call(MoveTool(), path=path, to=to).is_error
        assert {str(p): p.read_bytes() for p in repo.parent.rglob("*") if p.is_file()} == before
