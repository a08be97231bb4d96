"""A work tree of our own, so that the person's files and their git repository stay as they are.

A repository is cloned (its objects are shared, not copied) and checked out at HEAD without a branch. A folder that is
no repository, or is only a part of one, is copied into a small repository of its own. Both lie in the temporary folder
and are removed on every way out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from m3agent.errors import BrokenEnvironment, M3Error
from m3agent.git import GitFailed, commit_all, git, git_bytes

MAX_COPY_BYTES = 500_000_000
NEVER_COPIED = frozenset(
    {
        *(".git", ".hg", ".m3", ".venv", "venv", "node_modules", "__pycache__"),
        *(".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkTree:
    """Where the repair is made. `origin` is the person's folder, `root` ours, `base` the commit that ours started from.

    `notes` are sentences for the person, for instance on changes of theirs that are not part of it.
    """

    origin: Path
    root: Path
    base: str
    notes: tuple[str, ...] = ()
    is_clone: bool = False
    """Whether `base` is a commit of the person's repository, too."""

    def diff(self) -> str:
        """What was changed since the beginning, new files included, as a patch that `git apply` takes."""
        git(self.root, "add", "--all", "--intent-to-add")
        return git_bytes(
            self.root, "diff", "--no-color", "--no-ext-diff", "--no-textconv", "--binary", "--no-renames", self.base
        ).decode("utf-8", "surrogateescape")

    def changed(self) -> tuple[str, ...]:
        """The paths that differ from the beginning, relative to `root`."""
        git(self.root, "add", "--all", "--intent-to-add")
        names = git_bytes(self.root, "diff", "--name-only", "--no-renames", "-z", self.base)
        return tuple(name.decode("utf-8", "surrogateescape") for name in names.split(b"\0") if name)

    def base_bytes(self, path: str) -> bytes | None:
        """The file's bytes at the beginning, as they lie in a work tree; None if it did not exist."""
        entry = self.base_entry(path)
        return entry.data if entry else None

    def base_entry(self, path: str) -> Entry | None:
        """What stood at the path at the beginning; None if there was no file and no link."""
        return committed_entry(self.root, self.base, path)

    def settle(self, change: Sequence[str] = ()) -> None:
        """Take what lies there now beside the `change` as not ours: leftovers of a test run, for instance.

        Tracked files are as they were again. New ones go, but before there is a change: then they stay, since the tests
        may build on them, and count no more.
        """
        others = [name for name in self.changed() if name not in change]
        tracked = {name: entry for name in others if (entry := self.base_entry(name)) is not None}
        for name, entry in tracked.items():
            self.put(name, entry)
        leftovers = [name for name in others if name not in tracked]
        git(self.root, "reset", "--quiet")
        if change:
            for name in leftovers:
                self.put(name, None)
        elif leftovers:
            with (self.root / ".git/info/exclude").open("a", encoding="utf-8", errors="surrogateescape") as file:
                file.writelines(f"/{_quoted(name)}\n" for name in leftovers)

    @contextlib.contextmanager
    def without(self, paths: tuple[str, ...]) -> Iterator[None]:
        """Within the block the given paths are as they were at the beginning; afterwards the changes are back."""
        changed = {path: read_entry(self.root / path) for path in paths}
        try:
            for path in sorted(paths):  # a link goes before what stood in a folder of its name
                self.put(path, self.base_entry(path))
            yield
        finally:
            for path, entry in sorted(changed.items(), reverse=True):
                self.put(path, entry)

    def put(self, path: str, entry: Entry | None) -> None:
        """Make the path hold this and nothing else. What a command left there is not followed out of the tree."""
        file = self.root / path
        if not file.parent.resolve().is_relative_to(self.root):
            raise M3Error(f"{path} leads out of the work tree, through a link that a command made; nothing was written")
        if file.is_dir() and not file.is_symlink():
            if entry is None:
                return
            shutil.rmtree(file)
        write_entry(file, entry)


def _quoted(name: str) -> str:
    """A path as a pattern of .gitignore that means this path alone."""
    return "".join(f"\\{char}" if char in "\\*?[]#! " else char for char in name)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file's bytes, or a symbolic link with the text that it holds."""

    data: bytes
    is_link: bool = False


def read_entry(file: Path) -> Entry | None:
    """What lies at the path, or None where there is neither a regular file nor a link. Links are not followed."""
    if file.is_symlink():
        return Entry(os.fsencode(os.readlink(file)), is_link=True)
    return Entry(file.read_bytes()) if file.is_file() else None


def committed_entry(repo: Path, commit: str, path: str) -> Entry | None:
    """What a commit holds at the path, in the form in which it lies in a work tree."""
    try:
        mode = git_bytes(repo, "ls-tree", "-z", "--full-tree", commit, "--", f":(literal){path}")[:6]
        if mode == b"120000":
            return Entry(git_bytes(repo, "cat-file", "blob", f"{commit}:{path}"), is_link=True)
        if mode.startswith(b"100"):
            return Entry(git_bytes(repo, "cat-file", "--filters", f"{commit}:{path}"))
    except GitFailed:
        pass
    return None


def write_entry(file: Path, entry: Entry | None) -> None:
    """Make the path hold this, or nothing; a link there is replaced and not followed, a file's mode stays."""
    if entry is None or entry.is_link or file.is_symlink():
        file.unlink(missing_ok=True)
    if entry is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    if entry.is_link:
        file.symlink_to(os.fsdecode(entry.data))
    else:
        file.write_bytes(entry.data)


@contextlib.contextmanager
def open_worktree(repo: Path, base: str = "") -> Iterator[WorkTree]:
    """A work tree of our own for `repo`, at `base` (else HEAD); it is removed when the block ends, however it ends.

    Errors: M3Error if `repo` is no folder or has no such commit; BrokenEnvironment if git is missing or cannot read it.
    """
    if not repo.is_dir():
        raise M3Error(f"{repo} is no folder; give --repo the folder of the repository")
    holder = Path(tempfile.mkdtemp(prefix="m3-fix-")).resolve()
    # The folder keeps its name: tools and tests may show it, and some packages are found by it.
    root = holder / (repo.name or "repository")
    try:
        yield _fill(repo, root, base)
    except GitFailed as error:
        raise BrokenEnvironment(f"git cannot work with {repo}: {error}") from error
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def _fill(repo: Path, root: Path, base: str) -> WorkTree:
    if _is_bare(repo):
        raise M3Error(f"{repo} is a bare repository, without files to work on; give --repo a clone of it")
    top = top_level(repo)
    if top == repo.resolve() and has_commit(repo):
        return _clone(repo, root, base or "HEAD")
    if base:
        raise M3Error(f"{repo} has no commits of its own, so the work cannot start from {base}")
    if top == repo.resolve():
        return _copy(repo, root, inside=True, why="has no commit yet")
    if top is not None:
        return _copy(repo, root, inside=True, why="is a part of a larger git repository")
    return _copy(repo, root, inside=False, why="is no git repository")


def top_level(folder: Path) -> Path | None:
    """The root of the git work tree that holds the folder, or None."""
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
    except GitFailed:
        return None


def _is_bare(folder: Path) -> bool:
    try:
        return git(folder, "rev-parse", "--is-inside-git-dir", "--is-inside-work-tree") == "true\nfalse"
    except GitFailed:
        return False


def has_commit(folder: Path) -> bool:
    try:
        git(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    except GitFailed:
        return False
    return True


def _clone(repo: Path, root: Path, name: str) -> WorkTree:
    try:
        base = git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except GitFailed as error:
        raise M3Error(f"there is no commit {name!r} in {repo}") from error
    source = str(repo.resolve())
    try:
        git(root.parent, "clone", "--quiet", "--no-checkout", "--shared", source, str(root))
    except GitFailed:  # a shallow repository cannot lend its objects
        shutil.rmtree(root, ignore_errors=True)
        git(root.parent, "clone", "--quiet", "--no-checkout", source, str(root))
    git(root, "checkout", "--quiet", "--detach", base, environment={"GIT_LFS_SKIP_SMUDGE": "1"})
    notes = _add_submodules(repo.resolve(), root)
    attributes = root / ".gitattributes"
    if attributes.is_file() and b"filter=lfs" in attributes.read_bytes():
        notes.append("files kept by git-lfs are pointers in the work tree: tests that read them will fail there")
    if changed := git(repo, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules"):
        count = len(changed.splitlines())
        notes.append(
            f"{count} file(s) with changes that are not committed: the repair starts from {name}, without them"
        )
    return WorkTree(origin=repo.resolve(), root=root, base=base, notes=tuple(notes), is_clone=True)


def _add_submodules(repo: Path, root: Path) -> list[str]:
    """Clone the person's submodules into the work tree, each at the commit that is recorded; says which are missing."""
    listed = git_bytes(root, "ls-files", "--stage", "-z").split(b"\0") if (root / ".gitmodules").is_file() else []
    missing = []
    for line in listed:
        about, _, name = line.partition(b"\t")
        if not about.startswith(b"160000 "):
            continue
        path, commit = os.fsdecode(name), about.split()[1].decode()
        try:
            if not (repo / path / ".git").exists():
                raise GitFailed("it is not checked out")
            git(root, "clone", "--quiet", "--no-checkout", "--shared", str(repo / path), path)
            git(root / path, "checkout", "--quiet", "--detach", commit)
        except GitFailed:
            missing.append(path)
    if not missing:
        return []
    return [f"submodules that are not checked out in your repository, and so are empty here: {', '.join(missing)}"]


def _copy(repo: Path, root: Path, *, inside: bool, why: str) -> WorkTree:
    root.mkdir(parents=True)
    total = 0
    for name in _listed(repo) if inside else _walked(repo):
        source, target = repo / name, root / name
        if not source.is_file() or source.is_symlink():
            continue
        total += source.stat().st_size
        if total > MAX_COPY_BYTES:
            size = MAX_COPY_BYTES // 10**6
            raise M3Error(f"{repo} holds more than {size} MB; make it a git repository of its own first")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    git(root, "init", "--quiet")
    base = commit_all(root, "as it was")
    note = f"{repo.name} {why}: the repair is made in a copy of its files as they are now"
    return WorkTree(origin=repo.resolve(), root=root, base=base, notes=(note,))


def _listed(repo: Path) -> list[str]:
    """Tracked files and new ones that are not ignored, relative to the folder."""
    names = git_bytes(repo, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate", "--", ".")
    found = [name.decode("utf-8", "surrogateescape") for name in names.split(b"\0") if name]
    return [name for name in found if not NEVER_COPIED.intersection(Path(name).parts)]


def _walked(repo: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(repo):
        folders[:] = sorted(name for name in folders if name not in NEVER_COPIED)
        for name in sorted(files):
            yield str((Path(folder) / name).relative_to(repo))
