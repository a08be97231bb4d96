"""Hands the verified change over: as a patch file, into the person's files, or as a commit on a branch."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from m3agent.errors import M3Error
from m3agent.fix.issue import Issue, issue_name
from m3agent.fix.pack import own_folder
from m3agent.fix.worktree import Entry, WorkTree, committed_entry, has_commit, read_entry, top_level, write_entry
from m3agent.git import GitFailed, git, git_bytes
from m3agent.ui.clean import one_line

MAX_SUBJECT_CHARS = 72
MAX_NAMED = 10
_AUTHOR = {"GIT_COMMITTER_NAME": "m3", "GIT_COMMITTER_EMAIL": "m3@localhost"}


def write_patch(worktree: WorkTree, issue: Issue, run_id: str, fallback: Path, *, beside_the_code: bool = True) -> Path:
    """Write the change to `.m3/fixes/` of the person's folder, which git does not see; returns the file.

    Where that folder cannot be written, or is not `beside_the_code`, it goes to `fallback`.
    """
    name = f"{issue_name(issue)}-{run_id}.patch"
    data = worktree.diff().encode("utf-8", "surrogateescape")
    places = [partial(own_folder, worktree.origin, "fixes"), partial(_made, fallback / "fixes")]
    for make_folder in places if beside_the_code else places[1:]:
        try:
            file = make_folder() / name
            file.write_bytes(data)
        except OSError:
            continue
        return file
    raise M3Error(f"the patch cannot be written: neither {worktree.origin} nor {fallback} allows it")


def write_report(patch: Path, ending: str, text: str) -> Path:
    """Write a page beside the patch, under its name with another ending; returns the file."""
    file = patch.with_name(f"{patch.stem}{ending}")
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise M3Error(f"{file} cannot be written: {error.strerror or error}") from error
    return file


def check_untouched(worktree: WorkTree) -> None:
    """Refuse when one of the changed files is not, in the person's folder, what the repair started from."""
    changed = worktree.changed()
    stale = [path for path in changed if read_entry(worktree.origin / path) != worktree.base_entry(path)]
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
        if (worktree.root / path).is_symlink():
            raise M3Error(f"not applied: {path} is a symbolic link; apply the patch by hand with git apply")
    with take_back(worktree, paths):
        for path in paths:
            _replace(worktree.origin / path, read_entry(worktree.root / path), worktree.root / path)
    return paths


def check_can_commit(repo: Path) -> None:
    """Refuse where no branch can be made. It is known before the work begins. Errors: M3Error."""
    if top_level(repo) is None or not has_commit(repo):
        raise M3Error(f"no commit made: {repo} is no git repository with a commit; use --in-place or the patch")


@contextlib.contextmanager
def take_back(worktree: WorkTree, paths: tuple[str, ...]) -> Iterator[None]:
    """Where the block raises, the files that were applied are again as they were."""
    try:
        yield
    except BaseException:
        for path in paths:
            write_entry(worktree.origin / path, worktree.base_entry(path))
        raise


def commit_message(issue: Issue, report: Mapping[str, Any]) -> str:
    """The subject names the issue; the body says where it stands and what was shown. No folder of the person's."""
    tests = report["tests"]
    lines = [f"fix: {one_line(issue.title, MAX_SUBJECT_CHARS - 5)}", ""]
    source = Path(issue.source).name if Path(issue.source).is_absolute() else issue.source
    lines.append(f"Issue: {one_line(source)}")
    for key in ("before", "after"):
        if counts := tests[key]:
            lines.append(f"Tests {key}: {counts['passed']} passed, {counts['failed'] + counts['errors']} failed")
    shows = tests["targets"] or tests["shown"]
    lines += ["These fail without the change and pass with it:", *(f"- {one_line(i)}" for i in shows[:MAX_NAMED])]
    if len(shows) > MAX_NAMED:
        lines.append(f"- and {len(shows) - MAX_NAMED} more")
    return "\n".join([*lines, "", f"Made by m3 with {one_line(report['model'])}.", ""])


def commit_on_branch(worktree: WorkTree, issue: Issue, message: str, taken: Collection[str] = ()) -> str:
    """Commit the change on a new branch that starts where the work started; returns the branch's name.

    The checked out files, the index and the current branch stay as they are. `taken` are names not to use.
    """
    origin = worktree.origin
    check_can_commit(origin)
    top = top_level(origin)
    assert top is not None
    prefix = git(origin, "rev-parse", "--show-prefix")
    head = worktree.base if worktree.is_clone else git(top, "rev-parse", "HEAD")
    changed = worktree.changed()
    for path in changed:
        if committed_entry(top, head, prefix + path) != worktree.base_entry(path):
            raise M3Error(f"no commit made: {path} has changes that are not committed; commit them first")
    with tempfile.TemporaryDirectory(prefix="m3-index-") as folder:
        own_index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git(top, "read-tree", head, environment=own_index)
        for path in changed:
            _stage(top, prefix + path, worktree.root / path, own_index)
        tree = git(top, "write-tree", environment=own_index)
    author = {"GIT_AUTHOR_NAME": "m3", "GIT_AUTHOR_EMAIL": "m3@localhost", **_AUTHOR}
    commit = git_bytes(
        top, "commit-tree", tree, "-p", head, "-F", "-", data=message.encode(), environment=author
    ).decode()  # fmt: skip
    return _new_branch(top, f"m3/{issue_name(issue)}", commit.strip(), taken)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _replace(target: Path, entry: Entry | None, like: Path) -> None:
    """Put the file in place in one step, so that a crash leaves the old or the new one."""
    if entry is None or not target.exists():
        write_entry(target, entry)
        if entry is not None:
            target.chmod(like.stat().st_mode & 0o777)
        return
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(entry.data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, target.stat().st_mode & 0o7777)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _stage(top: Path, path: str, file: Path, own_index: dict[str, str]) -> None:
    entry = read_entry(file)
    if entry is None:
        git(top, "update-index", "--force-remove", "--", path, environment=own_index)
        return
    filtered = ("--no-filters",) if entry.is_link else (f"--path={path}",)
    blob = git_bytes(top, "hash-object", "-w", *filtered, "--stdin", data=entry.data).decode().strip()
    mode = "120000" if entry.is_link else "100755" if os.access(file, os.X_OK) else "100644"
    git(top, "update-index", "--add", "--cacheinfo", f"{mode},{blob},{path}", environment=own_index)


def _new_branch(top: Path, name: str, commit: str, taken: Collection[str]) -> str:
    """Make the first branch of `name`, `name-2`, `name-3`… that does not exist; returns its name."""
    existing = {*taken, *git(top, "for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads/").splitlines()}
    branch = next((b for n in range(1, 100) if (b := name if n == 1 else f"{name}-{n}") not in existing), None)
    if branch is None:
        raise M3Error(f"no commit made: there are too many branches called {name}; remove old ones")
    try:
        git(top, "branch", "--no-track", branch, commit)
    except GitFailed as error:
        raise M3Error(f"no commit made: the branch {branch} cannot be made: {error}") from error
    return branch
