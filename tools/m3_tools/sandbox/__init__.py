"""The boundary around commands: an operating system's sandbox, behind one small interface.

    found = detect()                                   which backends work here, tried by crossing the boundary
    sandbox = Sandbox(found.backend, work_tree_policy(root))
    with sandbox.confine(argv, environment) as inside:
        ...run inside.argv with inside.environment...

Not covered: repositories of git inside the work tree other than its own; files in the work tree that the person runs
later; what a command reads and prints; Unix sockets in folders it can read that another program opens while it runs,
or opened by a relative name.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from m3_tools.sandbox.backends import BACKENDS, Backend
from m3_tools.sandbox.detect import Detection, Trial, detect, try_backend
from m3_tools.sandbox.placeholders import placeholders
from m3_tools.sandbox.policy import Limits, Policy, SandboxError, work_tree_policy

__all__ = [
    "BACKENDS", "Backend", "Confined", "Detection", "Limits", "Policy", "Sandbox", "SandboxError", "Trial",
    "confined", "detect", "reaches_network", "try_backend", "work_tree_policy",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Confined:
    """What is to be started instead of the command itself."""

    argv: list[str]
    environment: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Sandbox:
    """A backend that works here, and what commands may do in it."""

    backend: Backend
    policy: Policy

    @contextlib.contextmanager
    def confine(
        self, argv: Sequence[str], environment: Mapping[str, str], *, writable: Sequence[Path] = ()
    ) -> Iterator[Confined]:
        """The command line that runs `argv` inside; valid within the block. `writable` adds folders for this command.

        Errors: SandboxError when the boundary cannot be made.
        """
        policy = self.policy.with_writable(*writable).with_secrets_hidden()
        with placeholders(policy):
            yield Confined(argv=self.backend.command(argv, policy), environment=policy.allowed_environment(environment))


def reaches_network(sandbox: Sandbox | None) -> bool:
    """Whether commands share the machine's network; else each of them has a loopback device of its own."""
    return sandbox is None or sandbox.policy.network


@contextlib.contextmanager
def confined(
    sandbox: Sandbox | None, argv: Sequence[str], environment: Mapping[str, str], *, writable: Sequence[Path] = ()
) -> Iterator[Confined]:
    """`Sandbox.confine`, or the command as it is where there is no sandbox."""
    if sandbox is None:
        yield Confined(argv=list(argv), environment=dict(environment))
        return
    with sandbox.confine(argv, environment, writable=writable) as inside:
        yield inside
