"""A work tree of our own: right content, right diff, nothing of the person's touched, nothing left behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m3agent.errors import BrokenEnvironment, M3Error
from m3agent.fix.deliver import apply_in_place
from m3agent.fix.worktree import Entry, open_worktree

Commit = Callable[[Path], None]


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_it_starts_from_the_commit_and_says_what_is_not_committed(shop: Path, temporary_folder: Path) -> None:
    committed = (shop / "shop/stock.py").read_text()
    (shop / "shop/stock.py").write_text("# being edited\n")
    (shop / "new.txt").write_text("mine")
    with open_worktree(shop) as worktree:
        assert (worktree.root / "shop/stock.py").read_text() == committed
        assert not (worktree.root / "new.txt").exists()
        assert worktree.changed() == ()
        assert "1 file(s) with changes" in worktree.notes[0]
        assert worktree.root.is_relative_to(temporary_folder)
    assert list(temporary_folder.iterdir()) == []
    assert (shop / "shop/stock.py").read_text() == "# being edited\n"


def test_a_part_of_a_repository_is_copied_as_it_is_now(tmp_path: Path, temporary_folder: Path, commit: Commit) -> None:
    part = tmp_path / "big/part"
    part.mkdir(parents=True)
    (tmp_path / "big/.gitignore").write_text("*.log\n")
    (part / "a.py").write_text("a = 1\n")
    git(tmp_path / "big", "init", "-q")
    commit(tmp_path / "big")
    (part / "a.py").write_text("a = 2\n")
    (part / "b.py").write_text("b = 1\n")
    (part / "x.log").write_text("ignored")
    with open_worktree(part) as worktree:
        assert sorted(p.name for p in worktree.root.iterdir()) == [".git", "a.py", "b.py"]
        assert (worktree.root / "a.py").read_text() == "a = 2\n"
        assert worktree.changed() == ()
    assert git(tmp_path / "big", "status", "--porcelain").split() == ["M", "part/a.py", "??", "part/b.py"]


@pytest.mark.parametrize("kind", ["plain", "no commit", "shallow", "detached"])
def test_awkward_repositories(kind: str, shop: Path, tmp_path: Path, temporary_folder: Path, commit: Commit) -> None:
    repo = shop
    if kind == "plain":
        (shop / ".git").rename(tmp_path / "moved")
    elif kind == "no commit":
        (shop / ".git").rename(tmp_path / "moved")
        git(shop, "init", "-q")
    elif kind == "shallow":
        (shop / "more").write_text("more")
        commit(shop)
        repo = tmp_path / "shallow"
        git(tmp_path, "clone", "-q", "--depth", "1", f"file://{shop}", str(repo))
    else:
        git(shop, "checkout", "-q", "--detach")
    with open_worktree(repo) as worktree:
        assert (worktree.root / "shop/stock.py").is_file()
        (worktree.root / "shop/stock.py").write_text("# changed\n")
        assert worktree.changed() == ("shop/stock.py",)
    assert list(temporary_folder.iterdir()) == []


def test_a_diff_of_new_removed_and_binary_files_applies(shop: Path, temporary_folder: Path, commit: Commit) -> None:
    (shop / "odd näme.txt").write_bytes(b"one\r\ntwo")
    commit(shop)
    with open_worktree(shop) as worktree:
        (worktree.root / "new.py").write_text("new = 1\n")
        (worktree.root / "odd näme.txt").write_bytes(b"one\r\nthree")
        (worktree.root / "shop/__init__.py").unlink()
        (worktree.root / "picture").write_bytes(b"\x00\xff\x00")
        assert sorted(worktree.changed()) == ["new.py", "odd näme.txt", "picture", "shop/__init__.py"]
        patch = worktree.diff().encode()
        expected = {p: (worktree.root / p).read_bytes() for p in ("new.py", "odd näme.txt", "picture")}
    subprocess.run(["git", "apply"], cwd=shop, input=patch, check=True)
    assert {path: (shop / path).read_bytes() for path in expected} == expected
    assert not (shop / "shop/__init__.py").exists()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"\xe3\x83\x87/\xc3\xa4.py", "a/デ/ä.py"),
        (b"latin-\xe4.py", "a/latin-\udce4.py"),
        (b"a\x1b]0;x\x07.py", '"a/a\\033]0;x\\a.py"'),
    ],
    ids=["of people", "no UTF-8", "of a terminal"],
)
def test_a_diff_names_files_as_people_do_and_applies(
    name: bytes, shown: str, shop: Path, temporary_folder: Path, commit: Commit
) -> None:
    """The reviewer and the person read `a/\\343\\203…`."""
    file = Path(os.fsdecode(os.fsencode(shop) + b"/" + name))
    file.parent.mkdir(exist_ok=True)
    file.write_text("1\n")
    commit(shop)
    with open_worktree(shop) as worktree:
        (worktree.root / os.fsdecode(name)).write_text("2\n")
        patch = worktree.diff()
    assert f"--- {shown}\n" in patch
    applied = subprocess.run(["git", "-C", str(shop), "apply"], input=os.fsencode(patch), check=False)
    assert (applied.returncode, file.read_text()) == (0, "2\n")


def test_without_puts_files_back_for_a_while(shop: Path, temporary_folder: Path) -> None:
    with open_worktree(shop) as worktree:
        (worktree.root / "shop/stock.py").write_text("changed\n")
        (worktree.root / "new.py").write_text("new\n")
        with worktree.without(("shop/stock.py", "new.py")):
            assert worktree.changed() == ()
        assert (worktree.root / "shop/stock.py").read_text() == "changed\n"
        assert (worktree.root / "new.py").read_text() == "new\n"


def test_leftovers_of_the_tests_are_not_part_of_the_change(shop: Path, temporary_folder: Path) -> None:
    with open_worktree(shop) as worktree:
        (worktree.root / "out put[1].log").write_text("left by a test")
        (worktree.root / "shop/stock.py").write_text("overwritten by a test")
        worktree.settle()
        assert worktree.changed() == ()
        (worktree.root / "shop/stock.py").write_text("the change")
        assert worktree.changed() == ("shop/stock.py",)


def test_hooks_of_the_repository_do_not_run(shop: Path, tmp_path: Path, temporary_folder: Path) -> None:
    hook = shop / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'hook-ran'}\n")
    hook.chmod(0o755)
    with open_worktree(shop):
        pass
    assert not (tmp_path / "hook-ran").exists()


def test_it_is_removed_when_the_work_fails(shop: Path, temporary_folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), open_worktree(shop):
        raise KeyboardInterrupt
    assert list(temporary_folder.iterdir()) == []


def test_one_line_when_there_is_nothing_to_work_on(
    tmp_path: Path, shop: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(M3Error, match="is no folder"), open_worktree(tmp_path / "nothing"):
        pass
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrokenEnvironment, match="git is not installed"), open_worktree(shop):
        pass


def test_surrounding_git_variables_do_not_lead_elsewhere(
    shop: Path, tmp_path: Path, temporary_folder: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "not-this-one"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "not-this-index"))
    with open_worktree(shop) as worktree:
        assert worktree.changed() == ()


def test_a_link_that_a_command_left_is_not_followed_out_of_the_tree(
    shop: Path, tmp_path: Path, temporary_folder: Path
) -> None:
    """A command in the sandbox put a link in place of a file; putting the file back wrote to what the link names."""
    mine = tmp_path / "mine"
    mine.write_text("secret of the person\n")
    with open_worktree(shop) as worktree:
        committed = (worktree.root / "shop/stock.py").read_text()
        (worktree.root / "shop/stock.py").unlink()
        (worktree.root / "shop/stock.py").symlink_to(mine)
        (worktree.root / "new.py").symlink_to(mine)
        changed = worktree.changed()
        with worktree.without(changed):
            assert (worktree.root / "shop/stock.py").read_text() == committed
            assert worktree.changed() == ()
        assert mine.read_text() == "secret of the person\n"
        assert worktree.changed() == changed == ("new.py", "shop/stock.py")
        assert (worktree.root / "new.py").is_symlink()
        assert "secret of the person" not in worktree.diff()
        worktree.settle()
        assert (worktree.root / "shop/stock.py").read_text() == committed
        (worktree.root / "shop/stock.py").unlink()
        (worktree.root / "shop/stock.py").symlink_to(mine)
        with pytest.raises(M3Error, match="symbolic link"):
            apply_in_place(worktree)
    assert mine.read_text() == "secret of the person\n"


def test_a_folder_that_became_a_link_is_not_followed(shop: Path, tmp_path: Path, temporary_folder: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with open_worktree(shop) as worktree:
        (worktree.root / "shop").rename(tmp_path / "moved")
        (worktree.root / "shop").symlink_to(elsewhere)
        with worktree.without(worktree.changed()):
            assert (worktree.root / "shop/stock.py").is_file()
        assert (worktree.root / "shop").is_symlink()
        with pytest.raises(M3Error, match="leads out of the work tree"):
            worktree.put("shop/stock.py", Entry(b"x"))
    assert list(elsewhere.iterdir()) == []
