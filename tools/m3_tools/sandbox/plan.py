"""The policy as steps of mounting, in order; the backends of Linux carry out the same steps."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from m3_tools.sandbox.policy import COVERED, Policy

_KERNEL = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
Kind = Literal["read", "write", "empty", "null", "dev", "proc"]


class Step(NamedTuple):
    """`read` and `write` show `source` at `target`; `empty` is a private folder, `null` an empty file.

    `dev` and `proc` are a private /dev, which holds only harmless devices, and the /proc of the command alone.
    """

    kind: Kind
    source: str
    target: str


def mount_plan(policy: Policy, *, sockets: bool = True) -> list[Step]:
    """The steps for `policy`. Paths that do not exist are left out; `placeholders` makes those that must exist.

    `sockets` False leaves out the scan for sockets of other programs, for a plan that does not depend on the machine.
    """
    steps = [Step("read", "/", "/"), Step("dev", "", "/dev"), Step("proc", "", "/proc")]
    # Root may write to kernel settings without any capability; bubblewrap covers them only for some users.
    steps += [Step("read", path, path) for path in _KERNEL if os.path.exists(path)]
    for covered in COVERED:
        if covered == Path("/tmp") and policy.scratch is not None:
            steps.append(Step("write", str(policy.scratch), "/tmp"))
        elif covered.is_dir() and not covered.is_symlink():
            steps.append(Step("empty", "", str(covered)))
    shown = [path for path in policy.readable if _needs_showing(path, policy)]
    if policy.network:  # name servers are often named by a link into /run
        shown += [path for path in (Path("/run/systemd/resolve"), Path("/run/resolvconf")) if path.is_dir()]
    steps += [Step("read", str(path), str(path)) for path in _parents_first(shown)]
    steps += [Step("write", str(path), str(path)) for path in _parents_first(policy.writable)]
    steps += [_empty(path) for path in policy.hidden if os.path.exists(path) and not _holds_any(path, policy.writable)]
    if sockets:
        visible = (*shown, *policy.writable)
        found = (path for path in foreign_sockets() if not _covered(path) or _below_any(path, visible))
        steps += [Step("null", "", str(path)) for path in found]
    # A mount point cannot be renamed, but the folders above it can: so these are made mount points, too.
    for folder in _parents_first({parent for path in policy.protected for parent in _between(path, policy.writable)}):
        steps.append(Step("write", str(folder), str(folder)))
    for path in _parents_first(policy.protected):
        if os.path.lexists(path) and not path.is_symlink():
            steps.append(Step("read", str(path), str(path)))
    return steps


def foreign_sockets() -> Iterator[Path]:
    """Unix sockets that other programs listen on: a way out that neither a read-only mount nor a network namespace
    closes.
    """
    try:
        lines = Path("/proc/net/unix").read_text("utf-8", "surrogateescape").splitlines()[1:]
    except OSError:
        return
    names = {parts[7] for line in lines if len(parts := line.split(maxsplit=7)) == 8 and parts[7].startswith("/")}
    for path in sorted({Path(os.path.realpath(name)) for name in names}):
        with contextlib.suppress(OSError):  # what this user cannot reach, no command of theirs can
            if stat.S_ISSOCK(path.stat().st_mode):
                yield path


def _empty(path: Path) -> Step:
    real = os.path.realpath(path)
    return Step("empty" if path.is_dir() else "null", "", real)


def _needs_showing(path: Path, policy: Policy) -> bool:
    return _covered(path) and not _below_any(path, policy.writable) and os.path.exists(path)


def _between(path: Path, roots: Sequence[Path]) -> Iterator[Path]:
    """The folders that exist below a root and above `path`."""
    for parent in path.parents:
        if parent in roots or not _below_any(parent, roots):
            return
        if parent.is_dir() and not parent.is_symlink():
            yield parent


def _parents_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(set(paths), key=lambda path: (len(path.parts), path))


def _covered(path: Path) -> bool:
    return _below_any(path, COVERED)


def _below_any(path: Path, roots: Sequence[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _holds_any(path: Path, roots: Sequence[Path]) -> bool:
    return any(root.is_relative_to(path) for root in roots)
