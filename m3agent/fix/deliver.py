"""Hands the verified change over: as a patch file, into the person's files, or as a commit on a branch."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from m3agent.errors import M3Error
from m3agent.fix.issue import Issue, issue_name
from m3agent.fix.pack import own_folder
from m3agent.fix.worktree import WorkTree, has_commit, read_bytes, top_level, write_or_remove
from m3agent.git import GitFailed, git, git_bytes

_AUTHOR = {"GIT_COMMITTER_NAME": "m3", "GIT_COMMITTER_EMAIL": "m3@localhost"}


def write_patch(worktree: WorkTree, issue: Issue, run_id: str, fallback: Path) -> Path:
    """Write the change to `.m3/fixes/` of the person's folder, which git does not see; returns the file.

    Where that folder cannot be written it goes to `fallback`.
    """
    name = f"{issue_name(issue)}-{run_id}.patch"
    data = worktree.diff().encode("utf-8", "surrogateescape")
    for make_folder in (partial(own_folder, worktree.origin, "fixes"), partial(_made, fallback / "fixes")):
        try:
            file = make_folder() / name
            file.write_bytes(data)
        except OSError:
            continue
        return file
    raise M3Error(f"the patch cannot be written: neither {worktree.origin} nor {fallback} allows it")


def check_untouched(worktree: WorkTree) -> None:
    """Refuse when one of the changed files is not, in the person's folder, what the repair started from."""
    stale = [path for path in worktree.changed() if read_bytes(worktree.origin / path) != worktree.base_bytes(path)]
    if stale:
        raise M3Error(
            f"not applied: {', '.join(stale)} has changes that the repair does not know; commit them first, "
            "or apply the patch by hand with git apply"
        )


def apply_in_place(worktree: WorkTree) -> tuple[str, ...]:
    """Write the changed files into the person's folder; returns their paths. All or nothing is checked before."""
    check_untouched(worktree)
    paths = worktree.changed()
    for path in paths:
        target = (worktree.origin / path).resolve()
        if not target.is_relative_to(worktree.origin):
            raise M3Error(f"not applied: {path} leads out of the repository")
    for path in paths:
        _replace(worktree.origin / path, read_bytes(worktree.root / path), worktree.root / path)
    return paths


@contextlib.contextmanager
def take_back(worktree: WorkTree, paths: tuple[str, ...]) -> Iterator[None]:
    """Where the block raises, the files that were applied are again as they were."""
    try:
        yield
    except BaseException:
        for path in paths:
            write_or_remove(worktree.origin / path, worktree.base_bytes(path))
        raise


def commit_on_branch(worktree: WorkTree, issue: Issue, message: str) -> str:
    """Commit the change on a new branch that starts at the person's HEAD; returns the branch's name.

    The checked out files, the index and the current branch stay as they are.
    """
    origin = worktree.origin
    top = top_level(origin)
    if top is None or not has_commit(origin):
        raise M3Error(f"no commit made: {origin} is no git repository with a commit; use --in-place or the patch")
    prefix = git(origin, "rev-parse", "--show-prefix")
    for path in worktree.changed():
        if _committed(top, prefix + path) != worktree.base_bytes(path):
            raise M3Error(f"no commit made: {path} has changes that are not committed; commit them first")
    with tempfile.TemporaryDirectory(prefix="m3-index-") as folder:
        own_index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git(top, "read-tree", "HEAD", environment=own_index)
        for path in worktree.changed():
            _stage(top, prefix + path, worktree.root / path, own_index)
        tree = git(top, "write-tree", environment=own_index)
    author = {"GIT_AUTHOR_NAME": "m3", "GIT_AUTHOR_EMAIL": "m3@localhost", **_AUTHOR}
    commit = git(top, "commit-tree", tree, "-p", "HEAD", "-m", message, environment=author)
    return _new_branch(top, f"m3/{issue_name(issue)}", commit)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _replace(target: Path, data: bytes | None, like: Path) -> None:
    """Put the file in place in one step, so that a crash leaves the old or the new one."""
    if data is None or not target.exists():
        write_or_remove(target, data)
        if data is not None:
            target.chmod(like.stat().st_mode & 0o777)
        return
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, target.stat().st_mode & 0o7777)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _committed(top: Path, path: str) -> bytes | None:
    try:
        return git_bytes(top, "cat-file", "--filters", f"HEAD:{path}")
    except GitFailed:
        return None


def _stage(top: Path, path: str, file: Path, own_index: dict[str, str]) -> None:
    data = read_bytes(file)
    if data is None:
        git(top, "update-index", "--force-remove", "--", path, environment=own_index)
        return
    blob = git_bytes(top, "hash-object", "-w", f"--path={path}", "--stdin", data=data).decode().strip()
    mode = "100755" if os.access(file, os.X_OK) else "100644"
    git(top, "update-index", "--add", "--cacheinfo", f"{mode},{blob},{path}", environment=own_index)


def _new_branch(top: Path, name: str, commit: str) -> str:
    for number in range(1, 100):
        branch = name if number == 1 else f"{name}-{number}"
        try:
            git(top, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")
        except GitFailed:
            git(top, "branch", branch, commit)
            return branch
    raise M3Error(f"no commit made: there are too many branches called {name}; remove old ones")
