"""Every change of the agent can be taken back, in every kind of repository, and nothing else is touched."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m3_tools.base import ToolContext, call_tool
from m3_tools.edit import EditTool
from m3_tools.shell import ShellTool
from m3agent.errors import M3Error
from m3agent.undo import journal as journal_module
from m3agent.undo import restore
from m3agent.undo.journal import UndoJournal
from tests.agent.conftest import git


def files(root: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in the folder but git's own: mode, and bytes or the target of a symlink."""
    found = {}
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if ".git" in parts or (path.is_dir() and not path.is_symlink()):
            continue
        data = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
        found["/".join(parts)] = (path.lstat().st_mode, data)
    return found


def git_state(root: Path) -> tuple[object, ...]:
    """The index's bytes, every ref, HEAD, the stash, and the status."""
    try:
        top = Path(git(root, "rev-parse", "--absolute-git-dir").strip())
    except subprocess.CalledProcessError:
        return ()
    index = (top / "index").read_bytes() if (top / "index").exists() else b""
    refs = git(root, "for-each-ref", "--format=%(refname) %(objectname)")
    environment = {"GIT_OPTIONAL_LOCKS": "0"}
    status = subprocess.run(
        ["git", "status", "--porcelain", "--ignored"], cwd=root, env={**os.environ, **environment}, capture_output=True
    ).stdout
    return index, refs, (top / "HEAD").read_bytes(), git(root, "stash", "list"), status


def plain(root: Path) -> None:
    pass


def without_commits(root: Path) -> None:
    git(root, "init", "-q")


def committed(root: Path) -> None:
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")


def staged(root: Path) -> None:
    committed(root)
    (root / "a.txt").write_text("staged\n")
    git(root, "add", "a.txt")
    (root / "a.txt").write_text("and changed again\n")


def detached(root: Path) -> None:
    committed(root)
    git(root, "checkout", "-q", "--detach")


def stashed(root: Path) -> None:
    committed(root)
    (root / "a.txt").write_text("stashed\n")
    git(root, "stash", "-q")


def with_line_endings(root: Path) -> None:
    (root / ".gitattributes").write_text("* text=auto eol=lf\n*.b filter=lfs ident working-tree-encoding=UTF-16\n")
    (root / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    (root / "x.b").write_bytes(b"\xff\xfe$Id$\r\n")
    git(root, "init", "-q")
    git(root, "config", "core.autocrlf", "true")


def with_submodule(root: Path) -> None:
    other = root.parent / "other"
    other.mkdir()
    (other / "inner.txt").write_text("inner\n")
    committed(other)
    committed(root)
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(root, "commit", "-qm", "sub")
    (root / "nested").mkdir()
    git(root / "nested", "init", "-q")


def subfolder(root: Path) -> None:
    committed(root.parent)


def ignored_subfolder(root: Path) -> None:
    (root.parent / ".gitignore").write_text("*\n")
    git(root.parent, "init", "-q")


SHAPES: list[Callable[[Path], None]] = [
    plain,
    without_commits,
    committed,
    staged,
    detached,
    stashed,
    with_line_endings,
    with_submodule,
    subfolder,
    ignored_subfolder,
]


def fill(root: Path) -> None:
    (root / "folder").mkdir(parents=True)
    (root / "a.txt").write_text("one\n")
    (root / "folder" / "b.txt").write_bytes(b"two\r\n\0\xff")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "private").write_text("mine\n")
    (root / "private").chmod(0o600)
    (root / "link").symlink_to("a.txt")
    (root / ".gitignore").write_text("*.log\nbuild/\n")
    (root / "kept.log").write_text("ignored\n")


COMMAND = """
echo changed > a.txt; rm folder/b.txt; mkdir -p new/deep; echo x > 'new/deep/na me.txt'; rm link; ln -s run.sh link
chmod 644 run.sh; rm private; echo y > kept.log; mv .gitignore was-ignore; printf 'a\\r\\n' > folder2; rm -rf folder
echo crlf > crlf.txt; mkdir private; echo z > private/inside; touch -- -dash 'ünïcode' $'new\\nline'
"""


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.__name__)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of files, in one of the shapes that repositories have."""
    folder = tmp_path / "outer" / "root"
    fill(folder)
    request.param(folder)
    return folder


@pytest.fixture
def journal(root: Path, tmp_path: Path) -> UndoJournal:
    return UndoJournal(tmp_path / "state", root, warn=pytest.fail)


def run(journal: UndoJournal, root: Path, command: str) -> None:
    with journal.step(command):
        subprocess.run(["bash", "-c", command], cwd=root, check=True)


def test_side_effects_of_a_command_are_undone_and_redone(journal: UndoJournal, root: Path) -> None:
    before, state = files(root), git_state(root)
    run(journal, root, COMMAND)
    after = files(root)
    assert journal.undo()
    assert files(root) == {**before, "kept.log": after["kept.log"]}
    ignored_too = {line for line in state[-1].splitlines()} if state else set()  # type: ignore[attr-defined]
    assert not state or (git_state(root)[:-1], set(git_state(root)[-1].splitlines())) == (state[:-1], ignored_too)  # type: ignore[attr-defined]
    assert journal.redo()
    assert files(root) == after
    assert journal.redo() == []


def test_submodules_are_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root)
    with_submodule(root)
    journal = UndoJournal(tmp_path / "state", root, warn=pytest.fail)
    run(journal, root, "echo x > sub/inner.txt; echo y > nested/new; echo z > a.txt")
    journal.undo()
    assert (root / "a.txt").read_text() == "one\n"
    assert (root / "sub" / "inner.txt").read_text() == "x\n"
    assert (root / "nested" / "new").read_text() == "y\n"


def test_a_linked_work_tree_has_a_history_of_its_own(tmp_path: Path) -> None:
    root, linked = tmp_path / "root", tmp_path / "linked"
    fill(root)
    committed(root)
    git(root, "worktree", "add", "-q", str(linked))
    state = git_state(root), git_state(linked)
    journal = UndoJournal(tmp_path / "state", linked, warn=pytest.fail)
    before = files(linked)
    run(journal, linked, "rm -r * && echo x > y")
    assert UndoJournal(tmp_path / "state", root).undo() == []
    assert journal.undo()
    assert files(linked) == before
    assert (git_state(root), git_state(linked)) == state


@pytest.mark.parametrize(
    "change",
    ["echo mine > a.txt", "rm a.txt", "chmod 600 a.txt", "rm a.txt; ln -s b a.txt", "rm a.txt; mkdir a.txt",
     "echo mine > folder/b.txt", "mkdir folder/b.txt; echo mine > folder/b.txt/c",
     "rmdir folder; mkdir elsewhere; ln -s elsewhere folder", "rmdir folder; echo mine > folder"],
)  # fmt: skip
def test_what_the_person_changed_since_is_never_overwritten(tmp_path: Path, change: str) -> None:
    root = tmp_path / "root"
    fill(root)
    (root / "elsewhere").mkdir()
    (root / "elsewhere" / "b.txt").write_text("other\n")
    committed(root)
    journal = UndoJournal(tmp_path / "state", root, warn=pytest.fail)
    run(journal, root, "echo new > a.txt; rm folder/b.txt; echo made > made; echo in > run.sh")
    (root / "folder").mkdir(exist_ok=True)
    subprocess.run(["bash", "-c", change.replace("mkdir elsewhere; ", "")], cwd=root, check=True)
    mine = files(root)
    with pytest.raises(M3Error, match="changed since"):
        journal.undo()
    assert files(root) == mine


def test_an_undo_that_a_kill_broke_off_is_done_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root)
    journal = UndoJournal(tmp_path / "state", root, warn=pytest.fail)
    before = files(root)
    run(journal, root, "echo new > a.txt; rm folder/b.txt; echo made > made")
    (root / "a.txt").write_bytes(before["a.txt"][1])  # as far as it came
    (root / "made").unlink()
    assert journal.undo()
    assert files(root) == before


def test_an_undo_that_cannot_write_leaves_the_files_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    fill(root)
    journal = UndoJournal(tmp_path / "state", root, warn=pytest.fail)
    before = files(root)
    run(journal, root, "echo new > a.txt; rm folder/b.txt; echo made > made")
    after, write = files(root), restore._write

    def full(path: Path, mode: int, content: bytes) -> None:
        if path.name == "b.txt":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, mode, content)

    with monkeypatch.context() as patched:
        patched.setattr(restore, "_write", full)
        with pytest.raises(M3Error, match=r"No space left on device.*the files are as they were"):
            journal.undo()
    assert files(root) == after
    assert journal.undo()
    assert files(root) == before


def test_a_step_that_cannot_be_recorded_is_told_and_its_result_stands(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root)
    told: list[str] = []
    journal = UndoJournal(tmp_path / "state", root, warn=told.append)
    run(journal, root, "echo 1 > a.txt")
    (journal._folder / "steps.json").write_text("rubbish")
    run(journal, root, "echo 2 > a.txt")
    assert (root / "a.txt").read_text() == "2\n"
    assert len(told) == 1


def test_a_person_may_change_other_files_meanwhile(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root)
    journal = UndoJournal(tmp_path / "state", root, warn=pytest.fail)
    run(journal, root, "echo new > a.txt")
    (root / "run.sh").write_text("mine")
    journal.undo()
    assert (root / "run.sh").read_text() == "mine"
    assert (root / "a.txt").read_text() == "one\n"


def test_a_file_that_a_step_made_ignored_comes_back(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root)
    committed(root)
    (root / "notes").write_text("mine\n")
    before = files(root)
    journal = UndoJournal(tmp_path / "state", root, warn=pytest.fail)
    run(journal, root, "echo notes >> .gitignore; echo lost > notes")
    journal.undo()
    assert files(root) == before


def test_tools_are_recorded_and_a_failure_too(context: ToolContext, tmp_path: Path) -> None:
    journal = UndoJournal(tmp_path / "state", context.root, warn=pytest.fail)
    watched = dataclasses.replace(context, around=journal.around)
    before = files(context.root)
    asyncio.run(call_tool(EditTool(), {"path": "sums.py", "old": "a - b", "new": "a + b"}, watched))
    asyncio.run(call_tool(ShellTool(), {"command": "rm test_sums.py; exit 3"}, watched))
    asyncio.run(call_tool(ShellTool(), {"command": "true"}, watched))
    assert [step.label for step in journal.history().steps] == ["edit sums.py", "shell rm test_sums.py; exit 3"]
    journal.undo()
    journal.undo()
    assert files(context.root) == before


def test_an_interrupted_command_can_be_undone(context: ToolContext, tmp_path: Path) -> None:
    journal = UndoJournal(tmp_path / "state", context.root, warn=pytest.fail)
    watched = dataclasses.replace(context, around=journal.around)
    before = files(context.root)

    async def interrupted() -> None:
        call = asyncio.create_task(call_tool(ShellTool(), {"command": "rm sums.py; touch x; sleep 60"}, watched))
        while not (context.root / "x").exists():
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(interrupted())
    journal.undo()
    assert files(context.root) == before


def test_a_run_is_undone_as_a_whole(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root)
    run(UndoJournal(tmp_path / "state", root, request="1"), root, "echo first > a.txt")
    second = UndoJournal(tmp_path / "state", root, request="2")
    run(second, root, "echo second > a.txt")
    run(second, root, "echo third > a.txt")
    assert len(second.undo_request()) == 4
    assert (root / "a.txt").read_text() == "first\n"
    run(second, root, "echo fourth > b")
    assert [step.label for step in second.history().steps] == ["echo first > a.txt", "echo fourth > b"]


def test_the_store_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "CHECK_EVERY", 1)
    root = tmp_path / "root"
    fill(root)
    journal = UndoJournal(tmp_path / "state", root, warn=pytest.fail, max_bytes=600_000)
    for number in range(12):
        with journal.step(str(number)):
            (root / "big").write_bytes(os.urandom(100_000))
    steps = journal.history().steps
    assert 1 <= len(steps) < 10
    assert steps[-1].label == "11"
    for _ in steps:
        assert journal.undo()
    assert journal.undo() == []


def test_a_folder_where_git_is_missing_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    fill(root)
    told: list[str] = []
    journal = UndoJournal(tmp_path / "state", root, warn=told.append)
    bash = shutil.which("bash")
    monkeypatch.setenv("PATH", str(tmp_path))
    for _ in range(2):
        with journal.step("x"):
            subprocess.run([str(bash), "-c", "echo x > a.txt"], cwd=root, check=True)
    assert len(told) == 1
    assert "git is not installed" in told[0]


def test_the_state_folder_inside_the_work_tree_is_not_part_of_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root)
    journal = UndoJournal(root / "state", root, warn=pytest.fail)
    run(journal, root, "echo x > a.txt; echo y > state/z")
    assert list(journal.history().steps[0].modes) == ["a.txt"]


NAMES = st.sampled_from(
    ["a.txt", "folder/b.txt", "folder", "new", "new/x", "new/x/y", "link", "é", ".gitignore", "c.log"]
)
EDITS = st.lists(
    st.tuples(st.sampled_from(["write", "remove", "link", "mode", "folder"]), NAMES, st.binary(max_size=20)), max_size=6
)


def apply(root: Path, kind: str, name: str, data: bytes) -> None:
    """One random edit; one that is impossible does nothing."""
    path = root / name
    try:
        if kind in ("write", "link", "folder") and not path.parent.is_dir():
            path.parent.mkdir(parents=True)
        if kind == "remove" and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif kind == "remove":
            path.unlink()
        elif kind == "write":
            path.write_bytes(data)
        elif kind == "link":
            path.unlink(missing_ok=True)
            path.symlink_to("folder" if data else "a.txt")
        elif kind == "mode" and not path.is_symlink():
            path.chmod(0o600 if data else 0o755)
        elif kind == "folder":
            path.unlink(missing_ok=True)
            path.mkdir()
    except OSError:
        pass


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.sampled_from([plain, without_commits, staged]), rounds=st.lists(EDITS, min_size=1, max_size=3))
def test_any_edits_are_undone_and_redone_to_the_byte(
    shape: Callable[[Path], None], rounds: list[list[tuple[str, str, bytes]]], tmp_path: Path
) -> None:
    root = Path(os.path.realpath(tmp_path)) / "root"
    shutil.rmtree(tmp_path, ignore_errors=True)
    fill(root)
    shape(root)
    journal = UndoJournal(tmp_path / "state", root, warn=pytest.fail)
    states = [files(root)]
    before = git_state(root)
    for number, edits in enumerate(rounds):
        with journal.step(str(number)):
            for edit in edits:
                apply(root, *edit)
        states.append(files(root))
    ignored = {name for state in states for name in state if name.endswith(".log") or _in_build(name)}
    count = len(journal.history().steps)
    for _ in range(count):
        assert journal.undo()
    assert without(files(root), ignored) == without(states[0], ignored)
    assert git_state(root)[:-1] == before[:-1]
    for _ in range(count):
        assert journal.redo()
    assert without(files(root), ignored) == without(states[-1], ignored)


def _in_build(name: str) -> bool:
    return name.startswith("build/")


def without(state: dict[str, tuple[int, bytes]], names: set[str]) -> dict[str, tuple[int, bytes]]:
    return {name: value for name, value in state.items() if name not in names}
