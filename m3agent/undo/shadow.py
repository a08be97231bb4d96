"""Snapshots of a work tree in a git repository of our own, which lies outside of it."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from m3agent.fix.worktree import NEVER_COPIED
from m3agent.git import GitFailed, git, git_bytes

MAX_FILE_BYTES = 64 * 2**20
_ATTRIBUTES = "* -text -eol -crlf -ident -filter !working-tree-encoding\n"
"""Stands above every .gitattributes: bytes are kept as they are."""
_ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
_REMOVED = "0 0000000000000000000000000000000000000000\t"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A work tree at one moment: git's id of the tree, the permissions of each file, and what lay there ignored.

    A folder in `ignored` ends with a slash and stands for all that it holds.
    """

    tree: str
    modes: Mapping[str, int]
    ignored: frozenset[str]

    def ignores(self, name: str) -> bool:
        """Whether the file lay there as an ignored one."""
        parents = (f"{parent}/" for parent in PurePosixPath(name).parents)
        return name in self.ignored or any(parent in self.ignored for parent in parents)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One file in a snapshot: `mode` as lstat gives it, `blob` the id of its bytes or of a symlink's target."""

    mode: int
    blob: str


class Shadow:
    """The repository of snapshots of one work tree. Errors: GitFailed, and BrokenEnvironment without git."""

    def __init__(self, state_dir: Path, root: Path):
        self.root = Path(os.path.realpath(root))
        name = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:20]
        self._state_dir = os.path.realpath(state_dir) + os.sep
        self.folder = state_dir / "undo" / name
        self._git_dir = self.folder / "git"
        self._environment = {
            **_ALONE,
            "GIT_DIR": str(self._git_dir),
            "GIT_WORK_TREE": str(self.root),
            "GIT_INDEX_FILE": str(self.folder / "index"),
        }

    def prepare(self) -> None:
        """Make the repository, if it does not exist. Objects of the person's repository are used, not copied."""
        if not (self._git_dir / "HEAD").exists():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            git(self.folder, "init", "--quiet", "--bare", "--template=", str(self._git_dir), environment=_ALONE)
            (self._git_dir / "info").mkdir(exist_ok=True)
            (self._git_dir / "info" / "attributes").write_text(_ATTRIBUTES)
            (self._git_dir / "info" / "exclude").write_text("".join(f"{name}/\n" for name in sorted(NEVER_COPIED)))
            (self.folder / "root").write_bytes(os.fsencode(self.root))
        objects = self._persons_objects()
        if objects is not None:
            (self._git_dir / "objects" / "info").mkdir(exist_ok=True)
            (self._git_dir / "objects" / "info" / "alternates").write_bytes(os.fsencode(objects) + b"\n")

    def snapshot(self) -> Snapshot:
        """Keep every file that is not ignored as it is now."""
        self.prepare()
        known = set(self._names("ls-files", "-z"))
        modes = self._modes(self._list("--cached", "--others", "--deduplicate"))
        ignored = frozenset(self._list("--others", "--ignored", "--directory"))
        # A file that a step made ignored is still the one that was there before.
        modes |= self._modes(known - modes.keys())
        gone = b"".join(os.fsencode(f"{_REMOVED}{name}") + b"\0" for name in known - modes.keys())
        self._git("update-index", "-z", "--index-info", data=gone)
        self._git("update-index", "-z", "--add", "--replace", "--stdin", data=_joined(modes))
        return Snapshot(tree=self._git("write-tree").decode().strip(), modes=modes, ignored=ignored)

    def entries(self, tree: str) -> dict[str, str]:
        """The blob of each file in a tree."""
        rows = self._git("ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0")
        pairs = (row.split(b"\t", 1) for row in rows if row)
        return {os.fsdecode(name): head.split()[2].decode() for head, name in pairs}

    def changed_names(self, before: str, after: str) -> list[str]:
        """The files that differ between two trees."""
        return list(self._names("diff-tree", "-r", "-z", "--name-only", "--no-renames", before, after))

    def blob(self, blob_id: str) -> bytes:
        return self._git("cat-file", "blob", blob_id)

    def keep(self, name: str, tree: str) -> None:
        """Hold a tree against pruning, under a name."""
        self._git("update-ref", f"refs/steps/{name}", tree)

    def prune(self, kept: Iterable[str]) -> None:
        """Remove what no kept name holds."""
        kept = set(kept)
        for ref in self._git("for-each-ref", "--format=%(refname)", "refs/steps/").decode().split():
            if ref.removeprefix("refs/steps/") not in kept:
                self._git("update-ref", "-d", ref)
        self._git("gc", "--quiet", "--prune=now")

    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def _modes(self, names: Iterable[str]) -> dict[str, int]:
        """The modes of those that are regular files or symlinks of acceptable size, reached without a symlink."""
        top, modes = str(self.root), dict[str, int]()
        real: dict[str, bool] = {}
        for name in names:
            path = f"{top}{os.sep}{name}"
            try:
                found = os.lstat(path)
            except OSError:
                continue
            folder = os.path.dirname(path)
            if folder not in real:
                real[folder] = os.path.realpath(folder) == folder and not f"{folder}/".startswith(self._state_dir)
            is_file = stat.S_ISREG(found.st_mode) and found.st_size <= MAX_FILE_BYTES and os.access(path, os.R_OK)
            if real[folder] and (is_file or stat.S_ISLNK(found.st_mode)):
                modes[name] = found.st_mode
        return modes

    def _list(self, *options: str) -> list[str]:
        """Names as the person's git sees them; where there is none, ours goes by the .gitignore files."""
        arguments = ("ls-files", "-z", "--exclude-standard", *options)
        try:
            names = self._git(*arguments) if self._is_ignored() else git_bytes(self.root, *arguments)
        except GitFailed:
            names = self._git(*arguments)
        return [os.fsdecode(name) for name in names.split(b"\0") if name]

    def _is_ignored(self) -> bool:
        """Whether the root is an ignored part of a larger repository, which then knows nothing of its files."""
        if not git(self.root, "rev-parse", "--show-prefix"):
            return False
        try:
            git(self.root, "check-ignore", "--quiet", ".")
        except GitFailed:
            return False
        return True

    def _persons_objects(self) -> Path | None:
        try:
            kind, found = git(self.root, "rev-parse", "--show-object-format", "--git-path", "objects").splitlines()
        except (GitFailed, ValueError):
            return None
        return Path(os.path.realpath(self.root / found)) if kind == "sha1" else None

    def _names(self, *arguments: str) -> Iterator[str]:
        return (os.fsdecode(name) for name in self._git(*arguments).split(b"\0") if name)

    def _git(self, *arguments: str, data: bytes | None = None) -> bytes:
        return git_bytes(self.root, *arguments, data=data, environment=self._environment)


def _joined(names: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in sorted(names))
